"""One agent's process, from its launch plan to its exit code."""

import asyncio
import gc
import os
from functools import partial

from msgspec.structs import replace

from node_agent import server_modes
from node_agent.agent import Agent
from node_agent.config import LaunchPlan
from node_agent.output.console import Console
from node_agent.workers.orphans import Orphans
from node_agent.workers.process import given_up


def run(plan: LaunchPlan) -> int:
    """Run the agent in an event loop of its own. Raises `UsageError` if it cannot host the server that it should."""
    return asyncio.run(_run(plan))


async def _run(plan: LaunchPlan) -> int:
    loop = asyncio.get_running_loop()
    loop.call_soon(_collect_garbage)  # from when everything has been loaded
    console = Console("node-agent", loop)
    orphans = Orphans(os.urandom(8).hex())
    config = replace(plan.config, environment={**plan.config.environment, **orphans.mark})
    try:
        return await server_modes.run(plan, config, console, partial(Agent, orphans=orphans))
    finally:
        for pid in orphans.close():
            console.say(given_up(pid))
        console.close()


def _collect_garbage() -> None:
    """But not look for it in what has been loaded: that stays."""
    gc.freeze()
    gc.enable()
