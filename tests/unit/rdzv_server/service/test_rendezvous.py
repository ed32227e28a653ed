"""Requests of a newcomer that claims to be a node which is still there. No HTTP."""

import asyncio

import pytest
from rdzv_protocol import timing
from rdzv_protocol.actions import LogsRequest
from rdzv_protocol.errors import AgentFenced, NoAnswer, NodeRankTaken, QueryRefused, ServerUnavailable
from rdzv_protocol.messages import AnswerRequest, PollRequest, Reply, Start, Wait
from rdzv_protocol.queries import LogTail, QueryAnswer, Refused
from rdzv_protocol.timing import HOLDS_PER_LEASE

from rdzv_server.core import admission
from rdzv_server.server import RendezvousServer
from rdzv_server.service import rendezvous
from rdzv_server.service.interface import OperatorRequest
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
    """The connection stands, as that of a host which is gone does."""
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


# Agents of one machine, which have its name.


async def forms(server: RendezvousServer, name: str, nodes: int) -> None:
    """Join and poll, as an agent does, until the round begins."""
    connection = Connection(name)
    request = a_join(name, node="machine", settings=settings_of(str(nodes), lease_s=LONG_S), explicit_run_id=True)
    reply = await server.rendezvous.ask(request, connection)
    while isinstance(reply.directive, Wait):
        poll = PollRequest(run_id=RUN_ID, agent_id=name, revision=reply.revision)
        reply = await server.rendezvous.ask(poll, connection)
    assert isinstance(reply.directive, Start)


@pytest.mark.parametrize("just_s", [admission.JUST_S, 0.0], ids=["joining together", "each probed by the next"])
async def test_agents_of_one_machine_form_without_waiting_for_a_hold(monkeypatch, just_s):
    monkeypatch.setattr(admission, "JUST_S", just_s)
    monkeypatch.setattr(rendezvous, "FIRST_HOLD_S", LONG_S)
    monkeypatch.setattr(timing, "LONGEST_HOLD_S", LONG_S)
    async with RendezvousServer() as server, asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(forms(server, f"agent {number}", 8) for number in range(8)))


# Connections that are closed before what they brought is looked at.


async def test_a_request_whose_connection_is_closed_joins_nothing():
    async with RendezvousServer() as server:
        request = a_join("a", settings=settings_of("1"))
        with pytest.raises(ServerUnavailable):
            await server.rendezvous.ask(request, Connection("evicted", is_closed=True))
        assert server.rendezvous.runs() == []


# Questions of operators to agents.

QUESTION = OperatorRequest(LogsRequest(run_id=RUN_ID, rank=0), "admin 10.0.0.7")
OPERATOR = Connection("operator")


async def a_running_agent(server: RendezvousServer) -> Reply:
    request = a_join("a", settings=settings_of("1", lease_s=LONG_S))
    return await server.rendezvous.ask(request, Connection("a"))


async def polls(server: RendezvousServer, reply: Reply, asked: tuple[int, ...] = ()) -> Reply:
    poll = PollRequest(run_id=RUN_ID, agent_id="a", revision=reply.revision, asked=asked)
    return await server.rendezvous.ask(poll, Connection("a"))


async def answers(server: RendezvousServer, number: int, answer: QueryAnswer) -> None:
    request = AnswerRequest(run_id=RUN_ID, agent_id="a", number=number, answer=answer)
    await server.rendezvous.ask(request, Connection("a", "beside"))


async def test_a_question_reaches_a_parked_poll_at_once_and_its_answer_whoever_asked(caplog):
    caplog.set_level("INFO", "rdzv_server")
    async with RendezvousServer() as server, asyncio.timeout(PATIENCE_S):
        reply = await a_running_agent(server)
        parked = asyncio.create_task(polls(server, reply))
        question = asyncio.create_task(server.rendezvous.ask(QUESTION, OPERATOR))
        reply = await parked
        (query,) = reply.queries
        assert (query.rank, query.stream, query.lines) == (0, "stderr", 50)
        held = asyncio.create_task(polls(server, reply, (query.number,)))
        again = await polls(server, reply)  # the reply was lost: whoever does not know of it is told again
        assert [each.number for each in again.queries] == [query.number]
        await answers(server, query.number, LogTail(path="/x.log", text="Boom", offset=4))
        log = await question
        assert (log.node_id, log.path, log.text, log.round) == ("a", "/x.log", "Boom", 1)
        assert "the log of rank 0 on node a was read by admin 10.0.0.7" in caplog.text
        held.cancel()


async def test_a_refusal_of_the_agent_reaches_whoever_asked_as_one_line():
    async with RendezvousServer() as server, asyncio.timeout(PATIENCE_S):
        reply = await a_running_agent(server)
        question = asyncio.create_task(server.rendezvous.ask(QUESTION, OPERATOR))
        (query,) = (await polls(server, reply)).queries
        await answers(server, query.number, Refused(reason="not\nhere\x1b[2J"))
        with pytest.raises(QueryRefused, match=r"^not.here") as refusal:
            await question
        assert str(refusal.value).isprintable()


async def test_an_agent_that_is_silent_keeps_nobody_waiting(monkeypatch):
    monkeypatch.setattr(rendezvous, "AGENT_ANSWERS_S", 0.1)
    async with RendezvousServer() as server, asyncio.timeout(PATIENCE_S):
        await a_running_agent(server)
        with pytest.raises(NoAnswer, match=r"the agent of node a has not answered within 0\.1 s"):
            await server.rendezvous.ask(QUESTION, OPERATOR)


async def test_a_server_that_ends_and_an_operator_who_goes_leave_nothing_behind():
    async with RendezvousServer() as server, asyncio.timeout(PATIENCE_S):
        reply = await a_running_agent(server)
        gone, waits = (asyncio.create_task(server.rendezvous.ask(QUESTION, OPERATOR)) for _ in range(2))
        queries = (await polls(server, reply)).queries
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        await answers(server, queries[0].number, Refused(reason="late"))
    with pytest.raises(ServerUnavailable):
        await waits
