"""`python -m node_agent.launch`: the twin of `python -m torch.distributed.launch`.

The same as `node-agent`, but that scripts get `--local-rank=N` as their first argument unless `--use-env` is given.
"""

import sys

from node_agent.kernel import late_imports


def main() -> int:
    """Run the program, and return its exit code."""
    late_imports.begin()
    from node_agent.cli import main as cli

    return cli.main(use_env=False)


if __name__ == "__main__":
    sys.exit(main())
