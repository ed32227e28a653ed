"""Server modes: an agent's server is in its own process, at one or several endpoints, or hosted by this node."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from rdzv_protocol.flag_values import address

from node_agent import words
from node_agent.kernel import late_imports
from node_agent.kernel.config import LaunchPlan, UsageError
from node_agent.kernel.core.effects import Level
from node_agent.kernel.output.console import Console
from node_agent.kernel.transport.retrying import Transport

OTHERS_MARGIN_S = 5.0
"""Seconds for the other nodes' agents, beyond the time for their workers."""


@asynccontextmanager
async def server_of(plan: LaunchPlan, console: Console) -> AsyncIterator[tuple[Callable[[], Transport], str]]:
    """Yield a function that opens a connection to the plan's server, and the server's name for people.

    At the end, a server hosted by this node continues until the other nodes know the end of the run. Raises
    `UsageError` if it cannot be hosted.
    """
    target, join = plan.target, plan.config.join
    for note in plan.notes:
        console.log(note, Level.NOTICE)
    if target.endpoint is not None:
        host, port = target.endpoint
        console.log(words.progress.joining(join.run_id, address(host, port), join.node_id), Level.ROUTINE)
    if target.endpoint is None:
        from node_agent.servers.standalone import Standalone

        async with Standalone(console, has_page=plan.config.status_page) as alone:
            yield alone.transport, "localhost"
    elif target.hosts:
        from node_agent.servers.hosted import HostedServer

        only_here = target.is_for_this_machine
        hosted = HostedServer(host, port, plan.credentials, console, is_for_this_machine=only_here)
        try:
            hosted.ensure()
        except OSError as error:
            raise UsageError(words.rendezvous.cannot_host(port, error.strerror or error)) from None
        yield hosted.transport, address(host, port)
        await hosted.wait_for_agents(plan.config.shutdown_timeout_s + OTHERS_MARGIN_S, plan.config.signals)
    else:
        late_imports.import_msgpack()
        from node_agent.servers.failover import Failover

        servers = Failover([target.endpoint, *target.others], plan.credentials, console.log)
        yield servers.transport, servers.name
