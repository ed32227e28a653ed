"""`rdzvctl`, also as `python -m rdzvctl`."""

import sys


def main() -> int:
    """Run the program and return its exit code, also if Ctrl-C comes during its imports."""
    try:
        from rdzvctl.cli import main

        return main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
