"""`python -m node_agent.launch`: the twin of `python -m torch.distributed.launch`.

It works like `node-agent`, but without `--use-env` it passes `--local-rank=N` to each script as the first argument.
"""

import sys

from node_agent.kernel import early_signals, late_imports


def main() -> int:
    """Run the program and return its exit code."""
    early_signals.hold()
    late_imports.begin()
    from node_agent.cli import main as cli

    return cli.main(use_env=False)


if __name__ == "__main__":
    sys.exit(main())
