"""Program `node-agent`: a command line in, an exit code out."""

import os
import sys
from collections.abc import Sequence

from node_agent.cli.parser import read
from node_agent.cli.plan import plan_launch
from node_agent.config import UsageError


def main(argv: Sequence[str] | None = None, *, use_env: bool = True) -> int:
    """Parse the command line and run the agent. Exit codes: see `--help`.

    `use_env` False: as `torch.distributed.launch`, scripts get `--local-rank`.
    """
    try:
        arguments = read(sys.argv[1:] if argv is None else argv, os.environ)
        plan = plan_launch(arguments, os.environ, use_env=use_env)
        from node_agent import agent  # when the command line is good

        return agent.run(plan)
    except UsageError as error:
        print(f"node-agent: error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:  # before the signal handlers stood
        return 1
