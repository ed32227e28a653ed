"""What may happen to the server and its disk, alone or while something happens to a node, and what each must cost."""

from tests.chaos.fleet import LEASE_S
from tests.chaos.monkey import BRIEF_S, Monkey
from tests.chaos.node_actions import an_agent_dies


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
    await m.pause(0.0, m.random.choice((0.05, 0.6)))
    async with m.server_down():
        await m.pause(0.0, 1.0)


async def the_server_dies_with_an_agent(m: Monkey) -> None:
    (node,) = m.nodes(1)
    await m.kill_agents(node)
    m.ledger.node_lost(node)
    await m.pause(0.0, m.random.choice((0.05, 0.6)))
    async with m.server_down():
        await m.pause(0.0, 1.0)
    await m.calm()
    await m.return_one_by_one(node)


async def an_agent_is_replaced_while_the_server_is_down(m: Monkey) -> None:
    (node,) = m.nodes(1)
    async with m.server_down():
        await m.kill_agents(node)
        m.ledger.node_lost(node)
        await m.pause(0.0, 1.0)
        await m.start_agents(node)
        await m.pause(0.0, 1.0)


async def the_server_dies_while_the_disk_is_full(m: Monkey) -> None:
    async with m.disk_full():
        async with m.server_down():
            await m.pause(0.0, 1.0)
        await m.pause(0.0, BRIEF_S)


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
