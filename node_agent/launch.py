"""`python -m node_agent.launch`: the twin of `python -m torch.distributed.launch`.

The same as `node-agent`, but that scripts get `--local-rank=N` as their first argument unless `--use-env` is given.
"""

import gc
import sys
from os.path import abspath, dirname


def main() -> int:
    """Run the command line; returns the exit code."""
    gc.disable()  # while everything is loaded, of which nothing is garbage: see agent.py
    # As in __main__: ours, whatever stands in the current folder or on PYTHONPATH.
    sys.path.insert(0, dirname(dirname(abspath(__file__))))
    import protocol  # noqa: F401

    del sys.path[0]
    from node_agent import cli

    return cli.main(use_env=False)


if __name__ == "__main__":
    sys.exit(main())
