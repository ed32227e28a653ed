"""`python -m node_agent.launch`: the twin of `python -m torch.distributed.launch`.

The same as `node-agent`, but that scripts get `--local-rank=N` as their first argument unless `--use-env` is given.
"""

import sys

from node_agent.cli.main import main

if __name__ == "__main__":
    sys.exit(main(use_env=False))
