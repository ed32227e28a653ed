"""Entry point of `node-agent`, also called by `python -m node_agent`."""

import sys


def main() -> int:
    """Run the program and return its exit code, also if Ctrl-C comes during the imports."""
    try:
        from node_agent.kernel import late_imports

        late_imports.begin()
        from node_agent.cli.main import main

        return main()
    except KeyboardInterrupt:
        return 1


if __name__ == "__main__":
    sys.exit(main())
