"""`node-agent`, also as `python -m node_agent`."""

import gc
import sys


def main() -> int:
    """Run the command line; returns the exit code."""
    gc.disable()  # while everything is loaded, of which nothing is garbage: see agent_process.py
    from node_agent.cli.main import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
