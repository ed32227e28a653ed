"""`rdzv-server`, also as `python -m rdzv_server`."""

import gc
import sys


def main() -> int:
    """Run the program and return its exit code, also if Ctrl-C comes during its imports."""
    gc.disable()  # imports do not make garbage; the server collects it once it serves
    try:
        from rdzv_server.cli import main

        return main()
    except KeyboardInterrupt:
        return 1


if __name__ == "__main__":
    sys.exit(main())
