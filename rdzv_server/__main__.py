"""`rdzv-server`, also as `python -m rdzv_server`."""

import sys


def main() -> int:
    """Run the command line; returns the exit code."""
    from rdzv_server import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
