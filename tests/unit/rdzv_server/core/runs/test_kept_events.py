"""Stored events: how many are kept, and which are dropped first."""

import pytest
from rdzv_protocol.messages import Finish

from rdzv_server.core.effects import EmitEvent
from rdzv_server.core.events import LeaseRenewed
from rdzv_server.core.runs.kept_events import EVENTS_KEPT, MEAN_BYTES, MOST_OF_ATTEMPT
from rdzv_server.core.runs.registry import Registry
from tests.support.scenario import RETENTION_S, ManyRuns, settings_of

ALONE = settings_of("1")
EVER = settings_of("1", max_restarts=10**6)


@pytest.fixture
def server() -> ManyRuns:
    server = ManyRuns()
    server.registry = Registry(RETENTION_S, max_events=20)
    return server


def kept(server: ManyRuns) -> dict[str, tuple[int, int]]:
    """Return the numbers of the first and the last event of each run."""
    return {run.run_id: (run.first_event, run.event_number) for run in server.registry.runs()}


def restarted(server: ManyRuns) -> Registry:
    again = Registry(RETENTION_S, max_events=20)
    for record in server.records:
        again.replay(record)
    return again


def test_the_run_that_ended_first_loses_its_events_first_and_keeps_its_last_one(server):
    for run_id in ("one", "two", "three"):
        server.join("a", run_id, settings=ALONE)
    for run_id in ("two", "one", "three"):
        server.passes(1.0)
        server.succeeds("a", run_id)
    assert kept(server) == dict.fromkeys(("one", "two", "three"), (1, 4))
    for number in range(3):
        server.join("a", f"later {number}", settings=ALONE)
    assert sum(last - first + 1 for first, last in kept(server).values()) == 20
    assert kept(server)["two"] == (2, 4), "it ended first"
    assert kept(server)["one"] == (1, 4)
    for number in range(3):
        server.join("b", f"last {number}", settings=ALONE)
    assert [kept(server)[run_id] for run_id in ("one", "two")] == [(4, 4), (4, 4)]


def test_a_run_may_be_forgotten_as_its_events_are_dropped_at_the_moment_of_its_own_deadline(server):
    server.registry = Registry(RETENTION_S, max_events=6)
    server.join("a", "two", settings=ALONE)
    server.succeeds("a", "two")
    server.join("b", "one", settings=settings_of("2", join_timeout_s=10.0, lease_s=2 * RETENTION_S))
    late = server.now + RETENTION_S + 1.0
    server.registry.pass_time(late)
    assert [(run.run_id, run.ended_at) for run in server.registry.runs()] == [("one", late)]


def test_an_ended_run_keeps_its_last_event_when_others_are_dropped(server):
    server.join("a", "one", settings=ALONE)
    server.succeeds("a", "one")
    for number in range(10):
        server.join("a", f"later {number}", settings=ALONE)
    assert kept(server)["one"] == (4, 4)
    assert isinstance(server.directive("a", "one"), Finish)


def test_if_no_run_has_ended_the_run_with_the_most_events_drops_some(server):
    server.join("a", "small", settings=ALONE)
    server.join("a", "large", settings=EVER)
    for round in range(1, 12):
        server.fails("a", "large", round)
        server.join("a", "large", settings=EVER, after_round=round)
    assert kept(server)["small"] == (1, 3)
    first, last = kept(server)["large"]
    assert last - first + 1 <= 17
    assert last == server.event_numbers[-1]


def test_a_restarted_server_does_not_reuse_numbers(server):
    server.join("a", "one", settings=EVER)
    for round in range(1, 12):
        server.fails("a", "one", round)
        server.join("a", "one", settings=EVER, after_round=round)
    before = kept(server)
    server.registry = restarted(server)
    assert kept(server) == before, "it knows what is dropped"
    server.fails("a", "one", 12)
    first, last = kept(server)["one"]
    assert (first, last) >= before["one"]
    assert server.event_numbers == list(range(1, last + 1))


def test_an_attempt_begins_behind_the_events_of_the_one_before(server):
    server.join("a", "one", settings=settings_of("1", max_restarts=0))
    server.fails("a", "one")
    server.join("b", "one", settings=ALONE)
    first, second = server.registry.attempts_of("one")
    assert second.first_event == first.event_number + 1
    assert second.events_kept == 3


def test_the_only_attempt_keeps_its_latest_events():
    server = ManyRuns()
    server.join("a", "one", settings=EVER)
    (run,) = server.registry.runs()
    run.event_number += MOST_OF_ATTEMPT
    server.fails("a", "one")
    assert run.events_kept == EVENTS_KEPT
    assert any(isinstance(effect, EmitEvent) for effect in server.effects)


def test_a_run_that_is_set_apart_counts_once(server, monkeypatch):
    server.join("a", "one", settings=ALONE)
    machine = server.registry.machine_of("one", "a")
    server.registry.set_apart(machine, ValueError("boom"))
    server.handle("one", LeaseRenewed("a"))
    ((apart, _),) = server.registry.take_set_apart()
    server.registry.rebuild(apart, server.records, 3, server.now)
    for number in range(20):
        server.join("a", f"later {number}", settings=ALONE)
        runs = server.registry.runs()
        assert server.registry._capacity.events == sum(run.events_kept for run in runs)
    assert kept(server)["one"][1] == 4, "the warning that it is set apart"


# Bytes.

MOST = 100
EVIDENCE = {"traceback": ("x" * 190,) * 40, "stderr_tail": ("y" * 190,) * 32}


def with_evidence(server: ManyRuns, run_id: str, times: int) -> None:
    server.join("a", run_id, settings=EVER)
    for round in range(1, times + 1):
        server.fails("a", run_id, round, **EVIDENCE)
        server.join("a", run_id, settings=EVER, after_round=round)


def bytes_of(server: ManyRuns) -> int:
    """Return the bytes of all events, as the server counts them."""
    total = sum(run.event_sizes.total for run in server.registry.runs())
    assert server.registry._capacity.event_bytes == total
    return total


def test_events_with_evidence_are_bounded_in_bytes_and_ended_runs_lose_theirs_first() -> None:
    server = ManyRuns()
    server.registry = Registry(RETENTION_S, max_events=MOST)
    with_evidence(server, "ended", 3)
    server.succeeds("a", "ended", round=4)
    for number in range(4):
        with_evidence(server, f"later {number}", 6)
        assert bytes_of(server) <= MOST * MEAN_BYTES
        assert sum(last - first + 1 for first, last in kept(server).values()) < MOST, "there are not too many"
    first, last = kept(server)["ended"]
    assert first == last, "it keeps its last event"
    assert kept(server)["later 3"][0] > 1 and server.registry.runs()[-1].event_sizes.total > 0


def test_if_no_run_has_ended_the_run_with_the_largest_events_drops_some() -> None:
    server = ManyRuns()
    server.registry = Registry(RETENTION_S, max_events=MOST)
    server.join("a", "small", settings=ALONE)
    with_evidence(server, "large", 30)
    assert bytes_of(server) <= MOST * MEAN_BYTES
    assert kept(server)["small"] == (1, 3)
    assert kept(server)["large"][0] > 1


def test_a_server_that_starts_again_counts_the_same_bytes() -> None:
    server = ManyRuns()
    server.registry = Registry(RETENTION_S, max_events=MOST)
    with_evidence(server, "one", 30)
    before = bytes_of(server)
    again = Registry(RETENTION_S, max_events=MOST)
    for record in server.records:
        again.replay(record)
    assert again._capacity.event_bytes == before and again.runs()[0].first_event > 1
    snapshot = again.snapshot(("one", 1), server.now)
    third = Registry(RETENTION_S, max_events=MOST)
    for record in snapshot:
        third.replay(record)
    assert third._capacity.event_bytes == again._capacity.event_bytes
