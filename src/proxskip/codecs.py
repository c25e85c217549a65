"""How vectors are compressed before they are sent, and how many bits that takes."""

from proxskip.links.codecs import *  # noqa: F403
from proxskip.links.codecs import __all__ as __all__
