"""The old name of ``proxskip.engines.in_process``, until 0.4."""

from proxskip.lazy.names import moved

__getattr__ = moved(__name__, "proxskip.engines.in_process")
