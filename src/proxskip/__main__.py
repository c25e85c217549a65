"""``python -m proxskip``."""

import sys

from proxskip.cli import main

if __name__ == "__main__":
    sys.exit(main())
