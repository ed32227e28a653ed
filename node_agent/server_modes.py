"""An agent where its launch plan places it: alone, at a server or several, or hosting one."""

from collections.abc import Callable

from node_agent.agent import Agent
from node_agent.config import AgentConfig, LaunchPlan, UsageError
from node_agent.output.console import Console
from node_agent.transport.base import Link

FAREWELL_S = 5.0
"""How long the other nodes' agents may take besides the time that their workers get."""

MakeDriver = Callable[[AgentConfig, Callable[[], Link], str, Console], Agent]


async def run(
    plan: LaunchPlan, config: AgentConfig, console: Console, make_driver: MakeDriver = Agent, *, page: bool = True
) -> int:
    """Run the agent to its exit code. `page`: with a server of its own, whether that opens its status page.

    Raises `UsageError` if it cannot host the server that it should.
    """
    for note in plan.notes:
        console.say(note)
    if plan.target.endpoint is None:
        return await _run_alone(config, console, make_driver, page)
    if plan.target.hosts:
        return await _run_hosting(plan, config, console, make_driver, *plan.target.endpoint)
    return await _run_at_servers(plan, config, console, make_driver)


async def _run_alone(config: AgentConfig, console: Console, make_driver: MakeDriver, page: bool) -> int:
    from node_agent.transport.in_process import Standalone

    async with Standalone(console.say, page=page and config.status_page) as server:
        return await make_driver(config, server.link, "localhost", console).run()


async def _run_at_servers(plan: LaunchPlan, config: AgentConfig, console: Console, make_driver: MakeDriver) -> int:
    from node_agent.transport.failover import Servers

    assert plan.target.endpoint
    servers = Servers([plan.target.endpoint, *plan.target.others], plan.credentials, console.say)
    return await make_driver(config, servers.link, servers.name, console).run()


async def _run_hosting(
    plan: LaunchPlan, config: AgentConfig, console: Console, make_driver: MakeDriver, host: str, port: int
) -> int:
    from node_agent.transport.server_subprocess import HostedServer

    server = HostedServer(host, port, plan.credentials, console)
    try:
        server.ensure()
    except OSError as error:
        raise UsageError(f"cannot host rdzv-server at port {port} of this node: {error.strerror or error}") from None
    exit_code = await make_driver(config, server.link, f"{host}:{port}", console).run()
    await server.farewell(config.shutdown_timeout_s + FAREWELL_S, config.signals)
    return exit_code
