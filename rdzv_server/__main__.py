"""`rdzv-server`, also as `python -m rdzv_server`."""

import sys

from rdzv_server.cli import main

if __name__ == "__main__":
    sys.exit(main())
