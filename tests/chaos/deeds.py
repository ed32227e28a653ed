"""The table of deeds: what may happen to a run, and what that must cost.

`DEEDS` end with all nodes at work again, and what the ledger was told is what they cost. `NUISANCES` come beside a deed,
are brief, and cost nothing.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.chaos.fleet import LEASE_S, NODES
from tests.chaos.monkey import BRIEF_S, Monkey
from tests.hosts.cluster import SERVER

Act = Callable[[Monkey], Awaitable[None]]


@dataclass(frozen=True)
class Deed:
    """What is done, and beside which nuisances it may be done."""

    act: Act
    nuisances: tuple[Act, ...]

    @property
    def name(self) -> str:
        return self.act.__name__.replace("_", " ")


# Workers.


async def a_worker_dies(m: Monkey) -> None:
    m.kill_workers(*m.nodes(1))
    m.ledger.worker_failed()


async def workers_die_at_once(m: Monkey) -> None:
    m.kill_workers(*m.nodes(3))
    m.ledger.worker_failed()


async def a_worker_dies_while_its_agent_is_stopped(m: Monkey) -> None:
    (node,) = m.nodes(1)
    async with m.agent_stopped(node):
        m.kill_workers(node)
        m.ledger.worker_failed()
        await m.pause(0.0, BRIEF_S)


async def a_worker_dies_while_its_host_is_cut_off(m: Monkey) -> None:
    (node,) = m.nodes(1)
    async with m.cut_off(node):
        m.kill_workers(node)
        m.ledger.worker_failed()
        await m.pause(0.0, BRIEF_S)


# Agents.


async def an_agent_dies(m: Monkey) -> None:
    (node,) = m.nodes(1)
    await m.kill_agents(node)
    m.ledger.node_lost()
    await m.calm()
    await m.return_one_by_one(node)


async def agents_die_at_once(m: Monkey) -> None:
    nodes = m.nodes(m.random.randint(2, 3))
    await m.kill_agents(*nodes)
    m.ledger.node_lost()
    await m.calm()
    await m.return_one_by_one(*nodes)


async def all_agents_die_at_once(m: Monkey) -> None:
    await m.kill_agents(*NODES)
    m.ledger.node_lost()
    await m.pause(0.0, 2.0)
    await m.start_agents(*NODES)


async def an_agent_is_dismissed(m: Monkey) -> None:
    (node,) = m.nodes(1)
    m.say(f"end the agent of {node}")
    await m.fleet.dismiss_agent(node)
    m.ledger.node_left()
    await m.calm()
    await m.return_one_by_one(node)


async def an_agent_dies_while_a_round_forms(m: Monkey) -> None:
    """And is replaced before the round is complete."""
    held, failing, dying = m.nodes(3)
    async with m.worker_held(held):
        m.kill_workers(failing)
        m.ledger.worker_failed()
        await m.fleet.stops(held)
        await m.kill_agents(dying)
        m.ledger.node_lost()
        await m.pause(0.0, 1.5)
        await m.start_agents(dying)
        await m.fleet.waits(dying)


async def an_agent_dies_while_another_is_stopped(m: Monkey) -> None:
    stopped, dying = m.nodes(2)
    async with m.agent_stopped(stopped):
        await m.kill_agents(dying)
        m.ledger.node_lost()
        await m.pause(0.0, BRIEF_S)
    await m.calm()
    await m.return_one_by_one(dying)


async def an_agent_dies_while_another_is_stopped_for_long(m: Monkey) -> None:
    stopped, dying = m.nodes(2)
    async with m.agent_stopped(stopped):
        await m.kill_agents(dying)
        m.ledger.node_lost()
        await without(m, stopped)
    await back(m, stopped)
    await m.return_one_by_one(dying)


async def an_agent_is_stopped_for_long(m: Monkey) -> None:
    (node,) = m.nodes(1)
    async with m.agent_stopped(node):
        await without(m, node)
    await back(m, node)


# Hosts.


async def a_host_is_cut_off_for_long(m: Monkey) -> None:
    (node,) = m.nodes(1)
    async with m.cut_off(node):
        await without(m, node)
    await back(m, node)


async def a_worker_dies_on_a_host_that_is_cut_off_for_long(m: Monkey) -> None:
    """Nobody hears of its death before the host is given up, which explains it."""
    (node,) = m.nodes(1)
    async with m.cut_off(node):
        m.kill_workers(node)
        await without(m, node)
    await back(m, node)


async def the_server_is_cut_off_for_long(m: Monkey) -> None:
    """It must give every node up; they form one new round when it is back."""
    async with m.cut_off(SERVER):
        await m.fleet.deserted()
        m.ledger.node_lost()


async def without(m: Monkey, node: str) -> None:
    """The run gives the node up and goes on."""
    m.fleet.up.discard(node)
    m.ledger.node_lost()
    await m.calm()


async def back(m: Monkey, node: str) -> None:
    """A node that was given up finds out, and joins anew."""
    m.fleet.up.add(node)
    m.ledger.node_arrived()
    await m.calm()


# The server and its disk.


async def the_server_is_down(m: Monkey) -> None:
    async with m.server_down():
        await m.pause(0.0, LEASE_S + 1.0)


async def the_server_is_stopped_for_long(m: Monkey) -> None:
    async with m.server_stopped():
        await m.pause(LEASE_S + 1.0, LEASE_S + 2.0)


async def a_worker_dies_while_the_server_is_down(m: Monkey) -> None:
    async with m.server_down():
        m.kill_workers(*m.nodes(1))
        m.ledger.worker_failed()
        await m.pause(0.0, 2.0)


async def the_server_dies_with_a_worker(m: Monkey) -> None:
    """Within the time in which the failure is reported, written down and acted on."""
    m.kill_workers(*m.nodes(1))
    m.ledger.worker_failed()
    await m.pause(0.0, 0.05)
    async with m.server_down():
        await m.pause(0.0, 1.0)


async def the_server_dies_with_an_agent(m: Monkey) -> None:
    (node,) = m.nodes(1)
    await m.kill_agents(node)
    m.ledger.node_lost()
    await m.pause(0.0, 0.05)
    async with m.server_down():
        await m.pause(0.0, 1.0)
    await m.calm()
    await m.return_one_by_one(node)


async def an_agent_is_replaced_while_the_server_is_down(m: Monkey) -> None:
    (node,) = m.nodes(1)
    async with m.server_down():
        await m.kill_agents(node)
        m.ledger.node_lost()
        await m.pause(0.0, 1.0)
        await m.start_agents(node)
        await m.pause(0.0, 1.0)


async def the_server_dies_while_a_round_forms(m: Monkey) -> None:
    held, failing = m.nodes(2)
    async with m.worker_held(held):
        m.kill_workers(failing)
        m.ledger.worker_failed()
        await m.fleet.stops(held)
        async with m.server_down():
            await m.pause(0.0, 1.0)


async def a_worker_dies_while_the_disk_is_full(m: Monkey) -> None:
    async with m.disk_full():
        m.kill_workers(*m.nodes(1))
        m.ledger.worker_failed()
        await m.fleet.in_trouble()
        await m.pause(0.0, BRIEF_S)


async def a_worker_dies_while_the_disk_is_full_for_long(m: Monkey) -> None:
    async with m.disk_full():
        m.kill_workers(*m.nodes(1))
        m.ledger.worker_failed()
        await m.fleet.in_trouble()
        await m.pause(LEASE_S + 1.0, LEASE_S + 2.0)


async def a_worker_dies_while_the_disk_is_slow(m: Monkey) -> None:
    async with m.disk_slow(0.1, 0.5):
        m.kill_workers(*m.nodes(1))
        m.ledger.worker_failed()
        await m.calm()


async def an_agent_dies_while_the_disk_is_slow(m: Monkey) -> None:
    async with m.disk_slow(0.1, 0.5):
        await an_agent_dies(m)


async def a_worker_dies_while_the_disk_hangs(m: Monkey) -> None:
    async with m.disk_slow(LEASE_S + 1.0, LEASE_S + 1.0):
        m.kill_workers(*m.nodes(1))
        m.ledger.worker_failed()
        await m.pause(LEASE_S + 2.0, LEASE_S + 2.0)


# Nuisances: the ledger hears nothing of them.


async def server_down(m: Monkey) -> None:
    async with m.server_down():
        await m.pause(0.0, BRIEF_S)


async def server_stopped(m: Monkey) -> None:
    async with m.server_stopped():
        await m.pause(0.2, BRIEF_S)


async def server_cut_off(m: Monkey) -> None:
    async with m.cut_off(SERVER):
        await m.pause(0.2, BRIEF_S)


async def agent_stopped(m: Monkey) -> None:
    (node,) = m.nodes(1)
    if node in m.fleet.agents:
        async with m.agent_stopped(node):
            await m.pause(0.2, BRIEF_S)


async def host_cut_off(m: Monkey) -> None:
    async with m.cut_off(*m.nodes(1)):
        await m.pause(0.2, BRIEF_S)


async def disk_slow(m: Monkey) -> None:
    async with m.disk_slow(0.1, 0.3):
        await m.pause(0.5, 1.0)


async def disk_full(m: Monkey) -> None:
    async with m.disk_full():
        await m.pause(0.2, BRIEF_S)


AGENT = (agent_stopped,)
HOST = (host_cut_off, server_cut_off)
SERVER_ = (server_down, server_stopped, disk_slow, disk_full)

DEEDS = (
    Deed(a_worker_dies, AGENT + HOST + SERVER_),
    Deed(workers_die_at_once, AGENT + HOST + SERVER_),
    Deed(a_worker_dies_while_its_agent_is_stopped, HOST + SERVER_),
    Deed(a_worker_dies_while_its_host_is_cut_off, AGENT + SERVER_),
    Deed(an_agent_dies, AGENT + HOST + SERVER_),
    Deed(agents_die_at_once, AGENT + HOST + SERVER_),
    Deed(all_agents_die_at_once, HOST + SERVER_),
    Deed(an_agent_is_dismissed, AGENT + HOST + SERVER_),
    Deed(an_agent_dies_while_a_round_forms, AGENT + HOST + SERVER_),
    Deed(an_agent_dies_while_another_is_stopped, HOST + SERVER_),
    Deed(an_agent_dies_while_another_is_stopped_for_long, HOST + SERVER_),
    Deed(an_agent_is_stopped_for_long, HOST + SERVER_),
    Deed(a_host_is_cut_off_for_long, AGENT + SERVER_),
    Deed(a_worker_dies_on_a_host_that_is_cut_off_for_long, AGENT + SERVER_),
    Deed(the_server_is_cut_off_for_long, AGENT + SERVER_),
    Deed(the_server_is_down, AGENT + HOST),
    Deed(the_server_is_stopped_for_long, AGENT + HOST),
    Deed(a_worker_dies_while_the_server_is_down, AGENT + HOST),
    Deed(the_server_dies_with_a_worker, AGENT + HOST),
    Deed(the_server_dies_with_an_agent, AGENT + HOST),
    Deed(an_agent_is_replaced_while_the_server_is_down, HOST),
    Deed(the_server_dies_while_a_round_forms, AGENT + HOST),
    Deed(a_worker_dies_while_the_disk_is_full, AGENT + HOST),
    Deed(a_worker_dies_while_the_disk_is_full_for_long, AGENT + HOST),
    Deed(a_worker_dies_while_the_disk_is_slow, AGENT + HOST),
    Deed(an_agent_dies_while_the_disk_is_slow, AGENT + HOST),
    Deed(a_worker_dies_while_the_disk_hangs, AGENT + HOST),
)
