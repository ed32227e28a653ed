"""Requests of a newcomer that claims to be a present node. No HTTP."""

import asyncio
from typing import Any

import pytest
from rdzv_protocol import timing
from rdzv_protocol.actions import LogsRequest, ResizeRequest, StacksRequest
from rdzv_protocol.errors import AgentFenced, NoAnswer, NodeRankTaken, QueryRefused, ServerUnavailable, SettingsConflict
from rdzv_protocol.evidence import Evidence
from rdzv_protocol.messages import (
    AnswerRequest,
    EndedScript,
    Finish,
    FinishedWorkers,
    PollRequest,
    Progress,
    Reply,
    ReportRequest,
    Start,
    Wait,
)
from rdzv_protocol.queries import LogTail, QueryAnswer, Refused
from rdzv_protocol.settings import RunSettings
from rdzv_protocol.timing import HOLDS_PER_LEASE

from rdzv_server.core.events import LeaseRenewed
from rdzv_server.core.kernel import admission, finishing
from rdzv_server.core.kernel.machine import RunMachine
from rdzv_server.core.kernel.run import REQUESTS
from rdzv_server.core.policies import words as policy_words
from rdzv_server.core.policies.hangs import words as hang_words
from rdzv_server.core.views import summary_view
from rdzv_server.server import RendezvousServer
from rdzv_server.service import fair_scheduler, operator_requests, rendezvous
from rdzv_server.service.interface import OperatorRequest
from rdzv_server.words import admission as words
from rdzv_server.words import losses
from rdzv_server.words import service as service_words
from tests.support.message_search import has_message, pattern
from tests.support.scenario import RUN_ID, Connection, a_failure, a_join, settings_of

SHORT_S = 0.6
"""A lease so short that a test sees it end."""
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


async def test_a_live_holder_is_probed_and_keeps_its_node_rank_at_once():
    async with RendezvousServer() as server, asyncio.timeout(PATIENCE_S):
        await join(server, "old", LONG_S)
        polling = asyncio.create_task(poll_for_ever(server, "old"))
        await asyncio.sleep(0)
        with pytest.raises(NodeRankTaken, match=pattern(words.node_rank_taken, node_id="old")):
            await join(server, "new", LONG_S)
        assert not polling.done()
        polling.cancel()
        (run,) = server.rendezvous.runs()
        assert run.refused == {"new": words.claims_taken_rank(0, "old")}


async def test_a_silent_holder_loses_its_node_rank_after_half_a_lease():
    """The connection stays open, like that of a host that has vanished."""
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
        assert gone.cause == losses.PROBE_UNANSWERED
        assert gone.at - began == pytest.approx(SHORT_S / HOLDS_PER_LEASE, abs=SHORT_S / 4)
        with pytest.raises(AgentFenced):
            await server.rendezvous.ask(PollRequest(run_id=RUN_ID, agent_id="old", revision=0), Connection("old"))


async def test_a_newcomer_that_leaves_while_the_holder_is_asked_leaves_no_trace():
    async with RendezvousServer() as server, asyncio.timeout(PATIENCE_S):
        await join(server, "old", LONG_S)
        newcomer = asyncio.create_task(join(server, "new", LONG_S))
        while not server.rendezvous._probes:  # noqa: ASYNC110
            await asyncio.sleep(0)
        newcomer.cancel()
        await asyncio.gather(newcomer, return_exceptions=True)
        assert not server.rendezvous._probes


# The summary of the run, for a scheduler.


async def asks_for_summary(server: RendezvousServer, **asked: bool) -> Reply:
    poll = PollRequest(run_id=RUN_ID, agent_id="a", revision=0, hold=False, **asked)
    return await server.rendezvous.ask(poll, Connection("a"))


async def test_a_poll_gets_the_summary_of_the_run_only_if_it_asks_for_it(monkeypatch):
    async with RendezvousServer() as server, asyncio.timeout(PATIENCE_S):
        await join(server, "a", LONG_S)
        assert (await asks_for_summary(server)).summary is None
        found = (await asks_for_summary(server, wants_summary=True)).summary
        assert (found.phase, found.nodes) == ("forming", 1)

        def raises(run, now):
            raise ZeroDivisionError

        monkeypatch.setattr(summary_view, "view", raises)
        reply = await asks_for_summary(server, wants_summary=True)
        assert reply.summary is None and isinstance(reply.directive, Wait)
        (run,) = server.rendezvous.runs()
        assert not run.set_apart, "the run continues without a summary"


# Agents of one machine, with its name.


async def forms(server: RendezvousServer, name: str, nodes: int) -> None:
    """Join and poll, as an agent does, until the round begins."""
    connection = Connection(name)
    request = a_join(name, node="machine", settings=settings_of(str(nodes), lease_s=LONG_S), explicit_run_id=True)
    reply = await server.rendezvous.ask(request, connection)
    while isinstance(reply.directive, Wait):
        poll = PollRequest(run_id=RUN_ID, agent_id=name, revision=reply.revision)
        reply = await server.rendezvous.ask(poll, connection)
    assert isinstance(reply.directive, Start)


@pytest.mark.parametrize("just_s", [admission.RECENTLY_S, 0.0], ids=["joining together", "each probed by the next"])
async def test_agents_of_one_machine_form_without_waiting_for_a_hold(monkeypatch, just_s):
    monkeypatch.setattr(admission, "RECENTLY_S", just_s)
    monkeypatch.setattr(rendezvous, "FIRST_HOLD_S", LONG_S)
    monkeypatch.setattr(timing, "LONGEST_HOLD_S", LONG_S)
    async with RendezvousServer() as server, asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(forms(server, f"agent {number}", 8) for number in range(8)))


# A slow server.


@pytest.mark.parametrize(("nodes", "held_s"), [(2, 1.0), (1_000, 2.0), (2_000, 4.0), (10_000, 5.0)])
def test_a_join_of_a_large_run_is_held_until_a_busy_server_has_read_the_other_joins(nodes, held_s):
    """A busy machine takes 1 ms for each join. If agents hear before that only what the round waits for, they ask
    again, and the round takes twice as long.
    """
    settings = RunSettings(min_nodes=nodes, max_nodes=nodes, lease_s=10.0)
    assert rendezvous._first_hold_s(settings, is_crowd=False) == held_s


@pytest.mark.parametrize(("is_crowd", "held_s"), [(False, 5.0), (True, 10.0 / 1.5)])
async def test_a_join_in_a_crowd_is_held_longer_but_not_until_its_agent_gives_up(monkeypatch, is_crowd, held_s):
    loop, held = asyncio.get_running_loop(), []

    async def park(key, hold_s):
        held.append(hold_s)

    async def enter(event):
        machine, now = await entered(event), loop.time()
        with monkeypatch.context() as patch:
            patch.setattr(loop, "time", lambda: now)  # one burst, also on a busy machine
            for _ in range(fair_scheduler.CALLS_PER_TURN + 1 if is_crowd else 0):
                fair_scheduler.scheduler().ask("another run", lambda: None)
        return machine

    async with RendezvousServer() as server:
        entered = server.rendezvous._enter
        monkeypatch.setattr(server.rendezvous, "_enter", enter)
        monkeypatch.setattr(server.rendezvous._long_polls, "park", park)
        await server.rendezvous.ask(a_join("a", settings=settings_of("10000", lease_s=10.0)), Connection("a"))
    assert held == [pytest.approx(held_s)]
    assert held_s < timing.answer_timeout_s(10.0)


@pytest.mark.parametrize(("took_s", "held_s"), [(0.4, 9.6), (3.4, 6.6), (30.0, 0.0)])
async def test_the_hold_of_a_poll_begins_when_it_arrives(monkeypatch, took_s, held_s):
    """The agent counts from then. Otherwise it would abandon a slow but healthy server."""
    loop, ahead_s, held = asyncio.get_running_loop(), [0.0], []

    async def submit(*about):
        ahead_s[0] += took_s
        return await taken(*about)

    async def park(key, hold_s):
        held.append(hold_s)

    async with RendezvousServer() as server:
        settings = settings_of("1", lease_s=20.0)
        reply = await server.rendezvous.ask(a_join("a", settings=settings), Connection("a"))
        taken = server.rendezvous._driver.submit
        monkeypatch.setattr(server.rendezvous._driver, "renew", lambda *about: False)  # it has other things to write
        monkeypatch.setattr(server.rendezvous._driver, "submit", submit)
        monkeypatch.setattr(server.rendezvous._long_polls, "park", park)
        now = loop.time()
        monkeypatch.setattr(loop, "time", lambda: now + ahead_s[0])
        poll = PollRequest(run_id=RUN_ID, agent_id="a", revision=reply.revision)
        await server.rendezvous.ask(poll, Connection("a"))
        monkeypatch.undo()
    assert held == [pytest.approx(held_s)]


# Connections that close before their requests are read.


async def test_a_request_whose_connection_is_closed_joins_nothing():
    async with RendezvousServer() as server:
        request = a_join("a", settings=settings_of("1"))
        with pytest.raises(ServerUnavailable):
            await server.rendezvous.ask(request, Connection("evicted", is_closed=True))
        assert server.rendezvous.runs() == []


# Questions of operators to agents.

QUESTION = OperatorRequest(LogsRequest(run_id=RUN_ID, rank=0), "admin 10.0.0.7")
OPERATOR = Connection("operator")


async def test_each_of_many_actions_at_once_gets_its_own_answer():
    """One batch carries them out, and a run remembers the ids of fewer."""
    async with RendezvousServer() as server, asyncio.timeout(PATIENCE_S):
        await a_running_agent(server)
        wanted = [ResizeRequest(run_id=RUN_ID, min_nodes=1, max_nodes=2 + number) for number in range(REQUESTS + 2)]
        done = await asyncio.gather(*(server.rendezvous.ask(OperatorRequest(each, "me"), OPERATOR) for each in wanted))
        for answer, each in zip(done, wanted, strict=True):
            assert answer.changed and f"1:{each.max_nodes} " in answer.message


async def test_an_agent_whose_connection_closes_while_its_join_is_written_is_absent():
    async with RendezvousServer() as server, asyncio.timeout(PATIENCE_S):
        connection = Connection("a")
        join = a_join("a", settings=settings_of("2", lease_s=LONG_S))
        joining = asyncio.create_task(server.rendezvous.ask(join, connection))
        while not server.rendezvous.connections._paths:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not server.rendezvous.runs()
        server.rendezvous.lost(connection)
        object.__setattr__(connection, "is_closed", True)
        while not ((runs := server.rendezvous.runs()) and "a" in runs[0].leases.absent_since):  # noqa: ASYNC110
            await asyncio.sleep(0)
        joining.cancel()


async def test_an_agent_whose_poll_is_read_after_its_connection_closed_is_absent():
    """The poll is the first over this connection, so the close by itself would have meant nothing."""
    async with RendezvousServer() as server:
        connection = Connection("a")
        await server.rendezvous.ask(a_join("a", settings=settings_of("1", lease_s=LONG_S)), connection)
        (run,) = server.rendezvous.runs()
        server.rendezvous.lost(connection)
        poll = PollRequest(run_id=RUN_ID, agent_id="a", revision=0)
        with pytest.raises(ServerUnavailable):
            await server.rendezvous.ask(poll, Connection("a", is_closed=True))
        async with asyncio.timeout(PATIENCE_S):
            while "a" not in run.leases.absent_since:  # noqa: ASYNC110
                await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("changes", "is_refused"),
    [
        ({}, False),
        ({"command": ""}, False),
        ({"command": "00000002"}, True),
        ({"content": "00000002"}, False),
        ({"content": "00000002", "explicit_run_id": False}, True),
        ({"content": "", "explicit_run_id": False}, False),
        ({"folder": "00000002", "explicit_run_id": False}, False),
    ],
    ids=str,
)
async def test_a_spare_with_another_command_does_not_get_the_runs_success(changes: dict[str, Any], is_refused: bool):
    """It has not run, and its job must not look finished. It has the node id of the first, as on one machine."""
    async with RendezvousServer() as server, asyncio.timeout(PATIENCE_S):
        its = {"command": "00000001", "content": "00000001", "folder": "00000001"}
        same = {"explicit_run_id": True, **its, **changes}
        first = {**same, **its}
        for name, its in (("a", first), ("b", same)):
            request = a_join(name, node="a", settings=settings_of("1"), program="train.py", **its)
            reply = await server.rendezvous.ask(request, Connection(name))
        assert isinstance(reply.directive, Wait)
        await server.rendezvous.ask(ReportRequest(run_id=RUN_ID, agent_id="a", round=1), Connection("a"))
        poll = PollRequest(run_id=RUN_ID, agent_id="b", revision=reply.revision)
        if is_refused:
            likeness = "command" if same["command"] == first["command"] else "program"
            another = pattern(words.succeeded_with_another(RUN_ID, "a", "train.py", likeness))
            with pytest.raises(SettingsConflict, match=another):
                await server.rendezvous.ask(poll, Connection("b"))
        else:
            assert isinstance((await server.rendezvous.ask(poll, Connection("b"))).directive, Finish)


async def test_a_run_knows_how_many_polls_wait_for_an_answer():
    async with RendezvousServer() as server, asyncio.timeout(PATIENCE_S):
        for name in "ab":
            await server.rendezvous.ask(a_join(name, settings=settings_of("2", lease_s=LONG_S)), Connection(name))
        (run,) = server.rendezvous.runs()
        polling = {name: asyncio.create_task(poll_for_ever(server, name)) for name in "ab"}
        while run.leases.parked != 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        polling["a"].cancel()
        while run.leases.parked != 1:  # noqa: ASYNC110
            await asyncio.sleep(0)
        polling["b"].cancel()


async def a_running_agent(server: RendezvousServer) -> Reply:
    request = a_join("a", settings=settings_of("1", lease_s=LONG_S))
    return await server.rendezvous.ask(request, Connection("a"))


async def polls(server: RendezvousServer, reply: Reply, asked: tuple[int, ...] = ()) -> Reply:
    poll = PollRequest(run_id=RUN_ID, agent_id="a", revision=reply.revision, asked=asked)
    return await server.rendezvous.ask(poll, Connection("a"))


async def answers(server: RendezvousServer, number: int, answer: QueryAnswer) -> None:
    request = AnswerRequest(run_id=RUN_ID, agent_id="a", number=number, answer=answer)
    await server.rendezvous.ask(request, Connection("a", "beside"))


async def test_a_question_reaches_a_parked_poll_at_once_and_its_answer_the_caller(caplog):
    caplog.set_level("INFO", "rdzv_server")
    async with RendezvousServer() as server, asyncio.timeout(PATIENCE_S):
        reply = await a_running_agent(server)
        parked = asyncio.create_task(polls(server, reply))
        question = asyncio.create_task(server.rendezvous.ask(QUESTION, OPERATOR))
        reply = await parked
        (query,) = reply.queries
        assert (query.rank, query.stream, query.lines) == (0, "stderr", 50)
        held = asyncio.create_task(polls(server, reply, (query.number,)))
        again = await polls(server, reply)  # the reply was lost: an agent that does not know the query gets it again
        assert [each.number for each in again.queries] == [query.number]
        await answers(server, query.number, LogTail(path="/x.log", text="Boom", offset=4))
        log = await question
        assert (log.node_id, log.path, log.text, log.round) == ("a", "/x.log", "Boom", 1)
        assert service_words.log_was_read(RUN_ID, 0, "a", "admin 10.0.0.7") in caplog.text
        held.cancel()


async def test_a_refusal_of_the_agent_reaches_the_operator_as_one_line():
    async with RendezvousServer() as server, asyncio.timeout(PATIENCE_S):
        reply = await a_running_agent(server)
        question = asyncio.create_task(server.rendezvous.ask(QUESTION, OPERATOR))
        (query,) = (await polls(server, reply)).queries
        await answers(server, query.number, Refused(reason="not\nhere\x1b[2J"))
        with pytest.raises(QueryRefused, match=r"^not.here") as refusal:
            await question
        assert str(refusal.value).isprintable()


async def test_the_wait_for_a_silent_agent_is_bounded(monkeypatch):
    monkeypatch.setattr(operator_requests, "AGENT_ANSWERS_S", 0.1)
    async with RendezvousServer() as server, asyncio.timeout(PATIENCE_S):
        await a_running_agent(server)
        with pytest.raises(NoAnswer, match=pattern(service_words.agent_did_not_answer, node_id="a", limit_s=0.1)):
            await server.rendezvous.ask(QUESTION, OPERATOR)


async def test_an_operator_without_a_stack_sees_the_reasons():
    async with RendezvousServer() as server, asyncio.timeout(PATIENCE_S):
        reply = await a_running_agent(server)
        question = asyncio.create_task(
            server.rendezvous.ask(OperatorRequest(StacksRequest(run_id=RUN_ID), "admin"), OPERATOR)
        )
        (query,) = (await polls(server, reply)).queries
        await answers(server, query.number, Evidence(groups=(), problems=("no such program",)))
        why = f"{service_words.no_stacks(hang_words.NO_EVIDENCE)}; no such program"
        with pytest.raises(NoAnswer, match=why):
            await question


async def test_an_ending_server_and_a_cancelled_request_leave_nothing_behind():
    async with RendezvousServer() as server, asyncio.timeout(PATIENCE_S):
        reply = await a_running_agent(server)
        gone, waits = (asyncio.create_task(server.rendezvous.ask(QUESTION, OPERATOR)) for _ in range(2))
        queries = (await polls(server, reply)).queries
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        await answers(server, queries[0].number, Refused(reason="late"))
    with pytest.raises(ServerUnavailable):
        await waits


async def test_a_run_whose_core_raises_over_a_directive_is_set_apart_and_its_agent_keeps_its_workers(monkeypatch):
    async with RendezvousServer() as server, asyncio.timeout(PATIENCE_S):
        reply = await a_running_agent(server)
        with monkeypatch.context() as broken:
            broken.setattr(RunMachine, "directive_for", lambda *_: 1 / 0)
            poll = PollRequest(run_id=RUN_ID, agent_id="a", revision=reply.revision, hold=False)
            told = await server.rendezvous.ask(poll, Connection("a"))
        assert isinstance(told.directive, Wait) and "ZeroDivisionError" in told.directive.reason
        assert server.rendezvous.state().set_apart == [RUN_ID]
        await server.rendezvous.with_driver(RUN_ID, lambda driver: driver.submit(RUN_ID, LeaseRenewed("a")))
        assert isinstance((await server.rendezvous.ask(poll, Connection("a"))).directive, Start)


# Workers that still run long after others have finished.


async def test_agents_log_that_workers_still_run_long_after_others_finished(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(finishing, "WARNED_AFTER_S", 60.0)
    async with RendezvousServer() as server, asyncio.timeout(PATIENCE_S):
        await server.rendezvous.ask(a_join("a", settings=settings_of("1"), local_world_size=2), Connection("a"))
        finished = FinishedWorkers(round=1, ranks=(0,), ago_s=60.0)
        poll = PollRequest(run_id=RUN_ID, agent_id="a", revision=0, hold=False, finished=finished)
        await server.rendezvous.ask(poll, Connection("a"))
        reply = await server.rendezvous.ask(poll, Connection("a"))
        assert reply.warning == "rank 0 finished 1 min ago; still running: rank 1 on node a"


async def test_a_failure_report_does_not_say_that_an_ended_script_continues(caplog: pytest.LogCaptureFixture) -> None:
    async with RendezvousServer() as server, asyncio.timeout(PATIENCE_S):
        await server.rendezvous.ask(a_join("a", settings=settings_of("1")), Connection("a"))
        ended = EndedScript(round=1, rank=0, error="ValueError: boom")
        poll = PollRequest(run_id=RUN_ID, agent_id="a", revision=0, hold=False, ended_script=ended)
        await server.rendezvous.ask(poll, Connection("a"))
        failure, progress = a_failure("a"), Progress(round=1)
        report = ReportRequest(run_id=RUN_ID, agent_id="a", round=1, failure=failure, progress=progress)
        await server.rendezvous.ask(report, Connection("a"))
    assert any(has_message(line, policy_words.script_ended) for line in caplog.messages)
    assert not any(has_message(line, policy_words.script_continues) for line in caplog.messages)


async def test_a_failure_that_a_lost_node_reports_too_late_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Its link may be slow. The report is refused and changes nothing."""
    async with RendezvousServer() as server, asyncio.timeout(PATIENCE_S):
        settings = settings_of("2", lease_s=SHORT_S)
        joins = [
            server.rendezvous.ask(a_join(name, settings=settings, explicit_run_id=True), Connection(name))
            for name in "ab"
        ]
        await asyncio.gather(*joins)
        polling = asyncio.create_task(poll_for_ever(server, "a"))
        (run,) = server.rendezvous.runs()
        while "b" in run.agents:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for failure in (a_failure("b", error="ValueError: boom"), a_failure("a")):
            with pytest.raises(AgentFenced):
                await server.rendezvous.ask(
                    ReportRequest(run_id=RUN_ID, agent_id="b", round=1, failure=failure), Connection("b")
                )
        polling.cancel()
    late = [line for line in caplog.messages if has_message(line, losses.reported_late)]
    sentence = a_failure("b", error="ValueError: boom").sentence
    assert late == [service_words.of_run(RUN_ID, losses.reported_late("b", sentence))]
    assert not run.failures
