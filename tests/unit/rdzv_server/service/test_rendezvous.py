"""What a newcomer waits for that claims to be a node which is still there. No HTTP."""

import asyncio

import pytest
from rdzv_protocol.errors import AgentFenced, NodeRankTaken
from rdzv_protocol.messages import PollRequest, Reply, Wait
from rdzv_protocol.timing import HOLDS_PER_LEASE

from rdzv_server.server import RendezvousServer
from tests.support.scenario import RUN_ID, Connection, a_join, settings_of

SHORT_S = 0.6
"""A lease that a test sees end."""
LONG_S = 600.0
PATIENCE_S = 10.0


async def join(server: RendezvousServer, name: str, lease_s: float) -> Reply:
    settings = settings_of("3", lease_s=lease_s)
    request = a_join(name, node_rank=0, settings=settings, explicit_run_id=True)
    return await server.rendezvous.ask(request, Connection(name))


async def poll_for_ever(server: RendezvousServer, name: str) -> None:
    reply = await server.rendezvous.ask(PollRequest(run_id=RUN_ID, agent_id=name, revision=0), Connection(name))
    while True:
        reply = await server.rendezvous.ask(
            PollRequest(run_id=RUN_ID, agent_id=name, revision=reply.revision), Connection(name)
        )


async def test_a_holder_that_lives_is_asked_and_keeps_its_node_rank_at_once():
    async with RendezvousServer() as server, asyncio.timeout(PATIENCE_S):
        await join(server, "old", LONG_S)
        polling = asyncio.create_task(poll_for_ever(server, "old"))
        await asyncio.sleep(0)
        with pytest.raises(NodeRankTaken, match="taken by node old: give every node its own"):
            await join(server, "new", LONG_S)
        assert not polling.done()
        polling.cancel()


async def test_a_holder_that_is_silent_loses_its_node_rank_in_half_of_its_lease():
    """Its connection stands, as that of a host which is gone does."""
    async with RendezvousServer() as server, asyncio.timeout(PATIENCE_S):
        await join(server, "old", SHORT_S)
        await server.rendezvous.ask(
            PollRequest(run_id=RUN_ID, agent_id="old", revision=0, hold=False), Connection("old")
        )
        began = server.rendezvous.now()
        reply = await join(server, "new", SHORT_S)
        assert isinstance(reply.directive, Wait)
        (run,) = server.rendezvous.runs()
        assert set(run.agents) == {"new"}
        (gone,) = run.departures
        assert gone.cause == "another agent of its node joined, and it gave no sign of life"
        assert gone.at - began == pytest.approx(SHORT_S / HOLDS_PER_LEASE, abs=SHORT_S / 4)
        with pytest.raises(AgentFenced):
            await server.rendezvous.ask(PollRequest(run_id=RUN_ID, agent_id="old", revision=0), Connection("old"))
