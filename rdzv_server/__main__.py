"""`rdzv-server`, also as `python -m rdzv_server`."""

import sys
from os.path import abspath, dirname


def main() -> int:
    """Run the command line; returns the exit code."""
    # `protocol` is a common name: take ours, whatever stands in the current folder or on PYTHONPATH.
    sys.path.insert(0, dirname(dirname(abspath(__file__))))
    import protocol  # noqa: F401

    del sys.path[0]
    from rdzv_server import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
