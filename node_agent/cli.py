"""What `node-agent` does with its command line."""

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NoReturn

from node_agent import meeting
from node_agent.commandline.config import Order, make_order
from node_agent.commandline.usage import UsageError
from node_agent.console import Console
from node_agent.driver import Driver
from node_agent.orphans import Orphans
from node_agent.processes import given_up


def main(argv: Sequence[str] | None = None, *, use_env: bool = True) -> int:
    """Parse the command line and run the agent. Exit codes: see `--help`.

    `use_env` False: as `torch.distributed.launch`, scripts get `--local-rank`.
    """
    try:
        order = make_order(sys.argv[1:] if argv is None else argv, os.environ, use_env=use_env)
    except UsageError as error:
        fail(str(error))
    try:
        return asyncio.run(_run(order))
    except UsageError as error:
        fail(str(error))
    except KeyboardInterrupt:  # before the signal handlers stood
        return 1


def fail(message: str) -> NoReturn:
    """End with one line and exit code 2."""
    print(f"node-agent: error: {message}", file=sys.stderr)  # noqa: T201
    raise SystemExit(2)


async def _run(order: Order) -> int:
    console = Console("node-agent", asyncio.get_running_loop())
    orphans = Orphans(os.urandom(8).hex())
    config = replace(order.config, environment={**order.config.environment, **orphans.mark})
    try:
        return await meeting.run(order, config, console, partial(Driver, orphans=orphans))
    finally:
        for pid in orphans.close():
            console.say(given_up(pid))
        console.close()
