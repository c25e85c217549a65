"""The old name of ``proxskip.interfaces``, until 0.4."""

from proxskip.lazy.names import moved

__getattr__ = moved(__name__, "proxskip.interfaces")
