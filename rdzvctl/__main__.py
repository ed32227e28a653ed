"""`rdzvctl`, also as `python -m rdzvctl`."""

import sys

from rdzvctl.cli import main

if __name__ == "__main__":
    sys.exit(main())
