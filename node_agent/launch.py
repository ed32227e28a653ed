"""`python -m node_agent.launch`: the twin of `python -m torch.distributed.launch`.

The same as `node-agent`, but that scripts get `--local-rank=N` as their first argument unless `--use-env` is given.
"""

import gc
import sys


def main() -> int:
    """Run the command line; returns the exit code."""
    gc.disable()  # while everything is loaded, of which nothing is garbage: see agent_process.py
    from node_agent.cli.main import main as run

    return run(use_env=False)


if __name__ == "__main__":
    sys.exit(main())
