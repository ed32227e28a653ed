"""The only caller of the core: writes first, then wakes and answers."""

import asyncio
import json
from base64 import b64decode
from copy import deepcopy
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace
from rdzv_protocol.errors import AgentFenced, ServerUnavailable, StaleRound
from rdzv_protocol.messages import FinishedWorkers, PollRequest, Progress, Start, Stop, Wait
from rdzv_protocol.timing import hold_s

from rdzv_server.core.events import (
    AgentDisconnected,
    LeaseRenewed,
    NodeJoined,
    NodeLeft,
    RunStopped,
    WorkersFailed,
    WorkersSucceeded,
)
from rdzv_server.core.kernel.run import Stage
from rdzv_server.core.views import health, run_view, status_view, timeline_view, watch_view
from rdzv_server.service import run_log, store_access
from rdzv_server.storage.base import MemoryStore
from rdzv_server.storage.record_codec import unpack
from rdzv_server.token_buckets import Rate
from rdzv_server.words import attempts
from rdzv_server.words import runs as run_words
from rdzv_server.words import service as words
from tests.support.message_search import pattern
from tests.support.scenario import RUN_ID, a_failure, a_join, durable
from tests.unit.rdzv_server.service.driven_server import PATIENCE_S, FullStore, Server

JOURNALS = Path(__file__).parent / "journals"
"""Records of released versions, each with the round and the revision that its server had told each agent."""

# Writing before acting.


async def test_an_answer_waits_until_its_event_is_written(slow):
    slow.store.hold()
    join = asyncio.create_task(slow.join("a"))
    await slow.store.is_writing()
    assert not join.done()
    slow.store.release()
    await join
    assert slow.store.batches == [["RunCreated", "NodeJoined"]]


async def test_a_poll_is_woken_only_after_its_cause_is_written(slow):
    await slow.join("a")
    slow.store.hold()
    poll = asyncio.create_task(slow.long_polls.park((RUN_ID, "a"), PATIENCE_S))
    second = asyncio.create_task(slow.join("b"))
    await slow.store.is_writing()
    await asyncio.sleep(0)
    assert not poll.done() and not second.done()
    slow.store.release()
    await asyncio.gather(poll, second)
    assert slow.runs_on("ab")


@pytest.mark.parametrize("ending", ["succeeded", "failed", "failed before its first round"])
async def test_people_do_not_learn_of_a_runs_end_before_it_is_written(slow, ending):
    """The server may die before the write. Then the run continues, or ends otherwise."""

    def shown() -> tuple[str, bool, bool, set[str]]:
        (run,), now = slow.driver.runs(), slow.driver.now()
        status = status_view.view(run, now)
        watched, timeline = watch_view.view(run, now, float), timeline_view.view(run, now)
        assert watched["phase"] == status.phase and watched["reason"] == run_view.outlook(run, now).reason
        assert ("ended_at" in watched) == (timeline.ended_at is not None)
        nodes = {node.state for node in status.nodes or ()}
        return status.phase, "ended_at" in watched, status.health is not None, nodes & {"failed"}

    is_early = "before" in ending
    await slow.join("a", nodes="2" if is_early else "1", max_restarts=0)
    slow.store.hold()
    end = {
        "succeeded": WorkersSucceeded("a", 1),
        "failed": WorkersFailed("a", 1, a_failure("a")),
        "failed before its first round": RunStopped("a mistake", "an operator", "1"),
    }[ending]
    ends = asyncio.create_task(slow.driver.act(RUN_ID, end) if is_early else slow.driver.submit(RUN_ID, end))
    await slow.store.is_writing()
    (run,) = slow.driver.runs()
    assert run.stage.is_end and run_view.outlook(run, 0.0).reason == run_words.ends(run.end_reason)
    assert shown() == ("forming" if is_early else "running", False, True, set())
    slow.store.release()
    await ends
    is_failure = ending != "succeeded"
    assert shown() == ("failed" if is_failure else "succeeded", True, False, {"failed"} if is_failure else set())
    assert run_view.outlook(run, 0.0).reason == run.end_reason


async def test_events_that_arrive_during_a_write_share_the_next_one(slow):
    slow.store.hold()
    first = asyncio.create_task(slow.join("a", nodes="4"))
    await slow.store.is_writing()
    others = [asyncio.create_task(slow.join(name, nodes="4")) for name in "bcd"]
    await asyncio.sleep(0)
    slow.store.release()
    await asyncio.gather(first, *others)
    assert [len(batch) for batch in slow.store.batches] == [2, 4]


async def test_an_answer_has_the_directive_of_its_own_batch(slow):
    """A stop in the next batch does not overtake a start that was never sent."""
    await slow.join("a")
    slow.store.hold()
    seen = []

    async def joins() -> None:
        await slow.join("b")
        seen.append(type(slow.directive("b")))

    join = asyncio.create_task(joins())
    await slow.store.is_writing()
    leave = asyncio.create_task(slow.driver.submit(RUN_ID, NodeLeft("a", "SIGTERM")))
    await asyncio.sleep(0)
    slow.store.release()
    await asyncio.gather(join, leave)
    assert seen == [Start]
    assert isinstance(slow.directive("b"), Stop)


# When it cannot continue.


async def test_a_failed_write_stops_the_driver_and_no_poll_is_answered(started):
    server = await started(FullStore(OSError(28, "No space left on device")))
    poll = asyncio.create_task(server.long_polls.park((RUN_ID, "a"), PATIENCE_S))
    join = asyncio.create_task(server.join("a", nodes="1"))
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(OSError, match="No space left on device"):
            await server.driver.crashed()
    assert not poll.done()
    with pytest.raises(ServerUnavailable, match=pattern(words.cannot_continue, kind="OSError")):
        await join
    poll.cancel()
    await asyncio.gather(poll, return_exceptions=True)


async def test_a_driver_that_works_has_not_crashed(server):
    crashed = asyncio.create_task(server.driver.crashed())
    await server.join("a")
    assert not crashed.done()
    crashed.cancel()
    await asyncio.gather(crashed, return_exceptions=True)
    await server.join("b")
    assert server.runs_on("ab"), "to stop watching it does not stop it"


async def test_requests_that_still_wait_when_it_stops_are_refused(slow):
    slow.store.hold()
    join = asyncio.create_task(slow.join("a"))
    await slow.store.is_writing()
    written = asyncio.create_task(slow.driver.written(slow.registry.machine_of(RUN_ID, "a"), "a"))
    await asyncio.sleep(0)
    assert not written.done(), "the core knows what is not written yet"
    await slow.driver.stop()
    for waiting in (join, written, slow.join("b")):
        with pytest.raises(ServerUnavailable):
            await waiting


async def test_a_written_event_may_be_reported_at_once(server):
    await server.join("a")
    async with asyncio.timeout(PATIENCE_S):
        await server.driver.written(server.registry.machine_of(RUN_ID, "a"), "a")


async def test_a_driver_that_never_started_can_be_stopped():
    await Server(MemoryStore()).driver.stop()


async def test_a_driver_that_stops_logs_how_many_lines_it_left_out(started, monkeypatch, caplog):
    monkeypatch.setattr(run_log, "LINES", Rate(0.001, 2))
    server = await started(MemoryStore())
    for _ in range(5):
        server.driver.warn(RUN_ID, "a warning")
    caplog.clear()
    await server.driver.stop()
    assert caplog.messages == [words.of_run(RUN_ID, words.lines_left_out(3, 0.001))]


# A store that cannot be written for a while.


async def test_the_server_decides_only_after_the_store_works_again(started, monkeypatch):
    monkeypatch.setattr(store_access, "RETRY_S", 0.0)
    server = await started(FullStore())
    await server.join("a", nodes="3")
    server.store.has_room = False
    leave = asyncio.create_task(server.driver.submit(RUN_ID, NodeLeft("a", "SIGTERM")))
    await server.store.refused.wait()
    assert not leave.done()
    assert server.driver.unhealthy_reason == "no room"
    (run,) = server.registry.runs()
    (found,) = health.findings(run, server.driver.now())
    assert found.state == "undecided", "each run says it"
    assert server.driver.started_at <= found.since <= server.driver.now()
    server.store.has_room = True
    await leave
    assert server.driver.unhealthy_reason is None
    assert not server.registry.runs()[0].agents and not health.findings(run, server.driver.now())


async def test_a_newcomer_learns_at_once_why_the_store_fails_and_joins_when_it_works(started, monkeypatch):
    monkeypatch.setattr(store_access, "RETRY_S", 0.01)
    server = await started(FullStore())
    await server.join("a")
    server.store.has_room = False
    for _ in range(2):  # one that finds out, one that comes later
        with pytest.raises(ServerUnavailable, match="no room"):
            async with asyncio.timeout(PATIENCE_S):
                await server.join("b")
    assert not server.driver._unanswered, "no caller waits any more"
    measured = server.driver.measurements
    assert (measured.store_failures > 0, measured.store_outages) == (True, 1), "one, however often a write is tried"
    server.store.has_room = True
    async with asyncio.timeout(PATIENCE_S):
        while server.driver.unhealthy_reason:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await server.join("b")
    assert server.runs_on("ab")
    joined = [record.fact.join for record in await server.store.load() if isinstance(record.fact, NodeJoined)]
    assert [join.agent_id for join in joined] == ["a", "b"]


async def test_agents_learn_why_the_store_fails_when_the_hold_of_their_polls_ends(started, monkeypatch):
    monkeypatch.setattr(store_access, "RETRY_S", 0.01)
    server = await started(FullStore())
    await server.join("a", "b", lease_s=1.0, max_restarts=1)
    server.store.has_room = False
    asked_at = asyncio.get_running_loop().time()
    failure = WorkersFailed("a", 1, a_failure("a"))
    for event in (failure, failure, LeaseRenewed("b")):  # one that finds out, and others that come later
        with pytest.raises(ServerUnavailable, match="no room"):
            async with asyncio.timeout(PATIENCE_S):
                await server.driver.submit(RUN_ID, event)
    assert asyncio.get_running_loop().time() - asked_at >= 3 * hold_s(1.0)
    server.store.has_room = True
    async with asyncio.timeout(PATIENCE_S):
        await server.driver.submit(RUN_ID, LeaseRenewed("b"))
    (run,) = server.driver.runs()
    assert run.failures_by_node == {"a": 1}, "the failure counts once"


async def test_a_poll_whose_hold_ends_while_its_directive_cannot_be_written_is_refused(started, monkeypatch):
    monkeypatch.setattr(store_access, "RETRY_S", 0.01)
    server = await started(FullStore())
    await server.join("a", "b", lease_s=600.0)
    server.store.has_room = False
    leave = asyncio.create_task(server.driver.submit(RUN_ID, NodeLeft("b", "SIGTERM")))
    await server.store.refused.wait()
    with pytest.raises(ServerUnavailable, match="no room"):
        async with asyncio.timeout(PATIENCE_S):
            await server.driver.written(server.registry.machine_of(RUN_ID, "a"), "a")
    server.store.has_room = True
    await leave
    async with asyncio.timeout(PATIENCE_S):
        await server.driver.written(server.registry.machine_of(RUN_ID, "a"), "a")


async def test_a_store_that_hangs_without_an_error_is_an_outage_until_it_answers(slow, monkeypatch):
    monkeypatch.setattr(store_access, "STUCK_S", 0.02)
    slow.store.hold()
    with pytest.raises(ServerUnavailable, match=pattern(words.store_hangs(0.02))):
        async with asyncio.timeout(PATIENCE_S):
            await slow.join("a")
    assert slow.driver.unhealthy_reason == words.store_hangs(0.02)
    assert slow.driver.measurements.store_outages == 1
    written = asyncio.Event()
    slow.driver.observers.add(lambda effect: written.set())
    slow.store.release()
    async with asyncio.timeout(PATIENCE_S):
        await written.wait()
        assert slow.driver.unhealthy_reason is None
        await slow.join("b")
    assert slow.runs_on("ab")


async def test_a_store_that_rejects_writes_is_noticed_while_there_is_nothing_to_write(started, monkeypatch):
    monkeypatch.setattr(store_access, "CHECK_S", 0.01)
    monkeypatch.setattr(store_access, "RETRY_S", 0.01)
    server = await started(FullStore())
    await server.join("a", "b")
    server.store.has_room = False
    async with asyncio.timeout(PATIENCE_S):
        await server.store.refused.wait()
    assert server.driver.unhealthy_reason == "no room"
    machine = server.registry.machine_of(RUN_ID, "a")
    assert server.driver.renew(LeaseRenewed("a"), machine), "agents keep their leases"
    server.store.has_room = True
    async with asyncio.timeout(PATIENCE_S):
        while server.driver.unhealthy_reason:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await server.driver.submit(RUN_ID, NodeLeft("a", "SIGTERM"))
    assert server.driver.measurements.store_outages == 1


async def test_a_store_that_has_just_accepted_a_write_or_a_check_is_not_checked(started, monkeypatch):
    calls: list[tuple[str, float]] = []

    class TimedStore(FullStore):
        async def append(self, changes, events=()):
            calls.append(("write", server.driver.now()))
            await super().append(changes, events)

        async def check(self):
            calls.append(("check", server.driver.now()))
            await super().check()

    monkeypatch.setattr(store_access, "CHECK_S", 0.05)
    server = await started(TimedStore())
    await server.join("a", "b")
    async with asyncio.timeout(PATIENCE_S):
        while [name for name, _ in calls[-2:]] != ["check", "check"]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    for (_, before), (name, at) in pairwise(calls):
        assert name == "write" or at >= before + store_access.CHECK_S


async def test_agents_that_ask_often_while_the_store_fails_have_one_pending_sign_each(slow):
    await slow.join("a", "b", nodes="3")
    slow.store.hold()
    join = asyncio.create_task(slow.join("c", nodes=""))
    await slow.store.is_writing()
    for _ in range(1_000):
        polls = [asyncio.create_task(slow.driver.submit(RUN_ID, LeaseRenewed(name))) for name in "ab"]
        await asyncio.sleep(0)
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)
        slow.driver.notify(RUN_ID, AgentDisconnected("a"))
    assert len(slow.driver._inbox) == 2
    slow.store.release()
    await join
    await slow.driver.submit(RUN_ID, LeaseRenewed("b"))
    (run,) = slow.driver.runs()
    assert list(run.leases.absent_since) == ["a"], "the last sign counts"


# A restarted server.


async def test_a_restarted_server_has_all_its_state_and_agents(started):
    store = MemoryStore()
    first = await started(store)
    await first.join("a", "b", lease_s=5.0, max_restarts=2)
    await first.driver.submit(RUN_ID, WorkersFailed("a", 1, a_failure("a")))
    before, last_at = durable(first.registry.runs()[0]), max(record.at for record in await store.load())
    await first.driver.stop()
    second = await started(store)
    (run,) = second.driver.runs()
    assert durable(run) == before and isinstance(second.directive("b"), Stop)
    assert second.driver.now() == pytest.approx(last_at, abs=1.0), "its time has gone on"
    assert run.leases.renewed_at == dict.fromkeys("ab", second.driver.started_at), "everybody has a fresh lease"
    for name in "ab":
        await second.driver.submit(RUN_ID, NodeJoined(a_join(name, after_round=1), "10.0.0.9"))
    for name in "ab":
        await second.driver.submit(RUN_ID, WorkersSucceeded(name, 2))
    assert run.stage is Stage.SUCCEEDED


async def test_an_agent_that_knows_more_than_a_restored_copy_is_sent_to_join_again(started):
    store = MemoryStore()
    first = await started(store)
    await first.join("a", "b", "c", nodes="2", max_restarts=2)
    older = deepcopy(store)
    first_round = first.polls("abc")
    await first.driver.submit(RUN_ID, WorkersFailed("a", 1, a_failure("a")))
    await first.driver.submit(RUN_ID, NodeJoined(a_join("a", after_round=1), "10.0.0.9"))
    later = first.polls("abc")
    await first.driver.stop()
    second = await started(store)
    for _ in range(2):
        for poll in later.values():
            await second.driver.check_revision(poll)
    await second.driver.stop()
    third = await started(older)
    await third.driver.check_revision(later["c"])  # it stands by, as before
    for _ in range(2):  # the answer to the first poll may be lost
        with pytest.raises(AgentFenced, match=pattern(attempts.records_are_older)):
            await third.driver.check_revision(later["a"])
    await third.driver.check_revision(first_round["b"])  # it was away, too
    third.driver.told((RUN_ID, "b"))
    await third.driver.check_revision(later["b"])  # this server has told it more


@pytest.mark.parametrize("evidence", ["round", ""])
async def test_a_waiting_agent_with_a_later_revision_than_a_restored_copy_joins_again(started, evidence):
    """It would ignore the start of a round that it has already had."""
    store = MemoryStore()
    first = await started(store)
    await first.join("a", "b", max_restarts=2)
    await first.driver.submit(RUN_ID, WorkersFailed("a", 1, a_failure("a")))
    await first.driver.submit(RUN_ID, NodeJoined(a_join("a", after_round=1), "10.0.0.9"))
    older = deepcopy(store)
    await first.driver.submit(RUN_ID, NodeJoined(a_join("b", after_round=1), "10.0.0.9"))
    await first.driver.submit(RUN_ID, WorkersFailed("a", 2, a_failure("a")))
    await first.driver.submit(RUN_ID, NodeJoined(a_join("a", after_round=2), "10.0.0.9"))
    poll = with_evidence(first.polls("a")["a"], evidence)
    await first.driver.stop()
    second = await started(older)
    assert second.registry.machine_of(RUN_ID, "a").agent("a").has_joined
    for _ in range(2):  # the answer to the first poll may be lost
        with pytest.raises(AgentFenced, match=pattern(attempts.records_are_older)):
            await second.driver.check_revision(poll)


@pytest.mark.parametrize("evidence", ["round", "progress", "finished", ""])
async def test_an_agent_of_the_recorded_round_knows_later_numbers_only_and_hears_of_the_next_change(started, evidence):
    """Another version of the server has numbered the directives otherwise."""
    server = await started(MemoryStore())
    await server.join("a", "b", max_restarts=2)
    await server.driver.stop()
    second = await started(server.store)
    polls = {name: with_evidence(poll, evidence) for name, poll in server.polls("ab", ahead=9).items()}
    for _ in range(2):  # the answer to the first poll may be lost
        for poll in polls.values():
            await second.driver.check_revision(poll)
    assert second.runs_on("ab") and second.revision("a") != second.revision("b")
    assert all(second.revision(name) > poll.revision for name, poll in polls.items())
    answered = {name: second.revision(name) for name in "ab"}
    await second.driver.submit(RUN_ID, WorkersFailed("a", 1, a_failure("a")))
    assert isinstance(second.directive("b"), Stop) and second.revision("b") > max(answered.values())


@pytest.mark.parametrize("evidence", ["round", "progress", "finished"])
async def test_an_agent_of_another_round_than_the_recorded_one_is_sent_to_join_again(started, evidence):
    server = await started(MemoryStore())
    await server.join("a", "b", max_restarts=2)
    await server.driver.stop()
    second = await started(server.store)
    poll = replace(server.polls("a", ahead=9)["a"], round=2)
    with pytest.raises(AgentFenced, match=pattern(attempts.records_are_older)):
        await second.driver.check_revision(with_evidence(poll, evidence))


async def test_a_server_continues_with_the_agents_of_an_earlier_version_whose_rules_told_them_more(started):
    """There, a worker's failure before its node's notice was over changed more directives than today."""
    journal = json.loads((JOURNALS / "1.0.0rc1.json").read_text())
    store = MemoryStore()
    await store.append([unpack(*where, b64decode(body)) for *where, body in journal["records"]])
    server = await started(store)
    before = server.driver.runs()[0].revision
    for agent_id, known in journal["agents"].items():
        poll = PollRequest(run_id="run", agent_id=agent_id, revision=known["revision"])
        for each in (poll, replace(poll, round=known["round"])):
            await server.driver.check_revision(each)
    (run,) = server.driver.runs()
    assert run.revision > before, "the recorded agents knew more than the records show today"
    assert run.stage is Stage.RUNNING and len(run.agents) == len(journal["agents"]) and not run.departures


def with_evidence(poll: PollRequest, evidence: str) -> PollRequest:
    """Return the poll of an agent that shows the round of its workers only by this field; by none if ""."""
    older, round_ = replace(poll, round=None), poll.round
    match evidence:
        case "round":
            return poll
        case "progress":
            return replace(older, progress=Progress(round=round_))
        case "finished":
            return replace(older, finished=FinishedWorkers(round=round_, ranks=(0,), ago_s=1.0))
    return older


async def test_the_next_server_emits_events_whose_writing_a_crash_prevented(started):
    """Etcd takes a large batch in several transactions, the events last."""

    class EventlessStore(MemoryStore):
        async def append(self, records, events=()):
            await super().append(records)

    lost, kept = EventlessStore(), MemoryStore()
    for store in (lost, kept):
        await (await started(store)).join("a", "b")
    kept_events = await kept.read_events(RUN_ID, 1, 0, 10)
    made_up = MemoryStore()
    await made_up.append(await lost.load())
    second = await started(made_up)
    await second.join("c", nodes="")
    events = await made_up.read_events(RUN_ID, 1, 0, 10)
    assert [event.kind for event in kept_events] == [event.kind for event in events[: len(kept_events)]]
    assert [event.number for event in events] == list(range(1, len(events) + 1)) and len(kept_events) > 3


async def test_a_restarted_server_keeps_the_deadlines_that_it_had(started):
    store = MemoryStore()
    before = await started(store)
    await before.join("a", join_timeout_s=0.05)
    await before.driver.stop()
    after = await started(store)
    await after.driver.submit(RUN_ID, LeaseRenewed("a"))
    async with asyncio.timeout(PATIENCE_S):
        while after.driver.runs()[0].stage is not Stage.FAILED:
            await after.long_polls.park((RUN_ID, "a"), PATIENCE_S)


# Refusals.


@pytest.mark.parametrize(
    ("event", "refusal"),
    [
        (NodeLeft("unknown", "SIGTERM"), AgentFenced),
        (WorkersFailed("a", 7, a_failure("a")), StaleRound),
        (WorkersSucceeded("unknown", 1), AgentFenced),
    ],
    ids=["leave of an unknown agent", "stale report", "report of an unknown agent"],
)
async def test_a_refusal_reaches_its_caller_and_changes_nothing(server, event, refusal):
    await server.join("a", "b")
    (before,) = [durable(run) for run in server.driver.runs()]
    with pytest.raises(refusal):
        await server.driver.submit(RUN_ID, event)
    assert [durable(run) for run in server.driver.runs()] == [before]


async def test_a_refusal_reaches_only_its_caller(server):
    results = await asyncio.gather(
        server.join("a"),
        server.driver.submit(RUN_ID, NodeLeft("unknown", "SIGTERM")),
        server.join("b"),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [type(None), AgentFenced, type(None)]
    assert server.runs_on("ab")


async def test_an_event_of_an_unknown_run_has_no_effect(server):
    server.driver.notify("no such run", AgentDisconnected("a"))
    await server.join("a")
    assert isinstance(server.directive("a"), Wait)


async def test_a_caller_that_has_gone_does_not_hold_its_turn(server):
    gone = asyncio.create_task(server.join("a"))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await server.join("b")
    assert server.runs_on("ab"), "what it asked for has happened all the same"


# Time.


async def test_a_deadline_fires_without_a_request(server):
    await server.join("a", nodes="1:2", last_call_timeout_s=0.02)
    assert isinstance(server.directive("a"), Wait)
    await server.told("a", Start)


async def test_a_deadline_that_moves_closer_fires_in_time(server):
    await server.join("a", "b", nodes="1:2", disconnect_grace_s=0.02)
    assert server.runs_on("ab")
    server.driver.notify(RUN_ID, AgentDisconnected("b"))
    await server.told("a", Stop)


async def test_an_ended_run_is_forgotten_in_time(started):
    server = await started(MemoryStore(), retention_s=0.02)
    await server.join("a", nodes="1", lease_s=0.1)
    await server.driver.submit(RUN_ID, WorkersSucceeded("a", 1))
    async with asyncio.timeout(PATIENCE_S):
        while any(record.run_id == RUN_ID for record in await server.store.load()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert server.driver.runs() == []
