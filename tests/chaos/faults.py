"""Faults that may accompany an action at any moment: brief, and without an effect on the run."""

from tests.chaos.monkey import BRIEF_S, Act, Monkey
from tests.hosts.cluster import SERVER


async def agent_stopped(m: Monkey) -> None:
    (node,) = m.nodes(1)
    if node in m.fleet.agents:
        async with m.agent_stopped(node):
            await m.pause(0.2, BRIEF_S)


async def host_cut_off(m: Monkey) -> None:
    async with m.cut_off(*m.nodes(1)):
        await m.pause(0.2, BRIEF_S)


async def server_cut_off(m: Monkey) -> None:
    async with m.cut_off(SERVER):
        await m.pause(0.2, BRIEF_S)


async def network_lossy(m: Monkey) -> None:
    async with m.network_lossy():
        await m.pause(0.5, 2.0)


async def server_down(m: Monkey) -> None:
    async with m.server_down():
        await m.pause(0.0, BRIEF_S)


async def server_stopped(m: Monkey) -> None:
    async with m.server_stopped():
        await m.pause(0.2, BRIEF_S)


async def disk_slow(m: Monkey) -> None:
    async with m.disk_slow(0.1, 0.3):
        await m.pause(0.5, 1.0)


async def disk_full(m: Monkey) -> None:
    async with m.disk_full():
        await m.pause(0.2, BRIEF_S)


async def etcd_down(m: Monkey) -> None:
    async with m.etcd_down():
        await m.pause(0.0, BRIEF_S)


async def proxy_down(m: Monkey) -> None:
    async with m.proxy_down():
        await m.pause(0.0, BRIEF_S)


async def names_lost(m: Monkey) -> None:
    async with m.names_lost():
        await m.pause(0.2, 2.0)


async def strangers_call(m: Monkey) -> None:
    async with m.strangers():
        await m.pause(0.5, 2.0)


AGENT: tuple[Act, ...] = (agent_stopped,)
HOST: tuple[Act, ...] = (host_cut_off, server_cut_off, network_lossy, proxy_down, names_lost)
STATE: tuple[Act, ...] = (server_down, server_stopped, disk_slow, disk_full, etcd_down, strangers_call)
NEWCOMER: tuple[Act, ...] = tuple(fault for fault in HOST if fault is not names_lost)
"""Faults of hosts that a new agent, which does not know the server's address yet, survives within a lease. A resolver
that has asked while all names were lost waits longer."""
