"""Entry point of `node-agent`, also called by `python -m node_agent`."""

import sys


def main() -> int:
    """Run the program and return its exit code."""
    from node_agent.kernel import early_signals

    early_signals.hold()
    from node_agent.kernel import late_imports

    late_imports.begin()
    from node_agent.cli.main import main

    return main()


if __name__ == "__main__":
    sys.exit(main())
