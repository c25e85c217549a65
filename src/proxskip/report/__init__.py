"""One self-contained HTML page from a Report: no network, figures with and without scripts, light and dark."""

from proxskip.report.document import page

__all__ = ["page"]
