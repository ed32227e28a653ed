"""`node-agent`, also as `python -m node_agent`."""

import sys

from node_agent.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
