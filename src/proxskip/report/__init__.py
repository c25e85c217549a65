"""One self-contained HTML page from a report: no network access, figures with and without scripts, light and dark."""
