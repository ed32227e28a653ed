"""Events of a run: their contents and their numbers."""

import pytest
from rdzv_protocol.events import RunEvent

from rdzv_server.core.effects import EmitEvent, Record
from rdzv_server.core.events import NodeJoined, NodeLeft
from rdzv_server.core.runs.registry import Registry
from rdzv_server.words import completion, losses
from tests.support.scenario import RETENTION_S, RUN_ID, SERVER_ADDR, WALL_AT, Scenario, a_failure, a_join, running


def kinds(events: list[RunEvent]) -> list[str]:
    return [event.kind for event in events]


def test_events_cover_a_run_from_its_creation_to_its_end():
    run = Scenario("2", max_restarts=1)
    run.join("a", "b")
    run.fails("a")
    run.join("a", "b")
    run.succeeds("a", "b")
    assert kinds(run.events) == [
        "run_created", "node_joined", "node_joined", "round_started", "workers_failed", "round_opened", "round_started",
        "run_succeeded",
    ]  # fmt: skip
    assert [event.number for event in run.events] == list(range(1, 9))
    assert {(event.run_id, event.attempt) for event in run.events} == {(RUN_ID, 1)}
    opened, again = run.events[5:7]
    assert (opened.round, opened.cause) == (2, "worker_failure") and "failed: exit code 1" in opened.reason
    assert (again.cause, again.charged, again.nodes, again.world_size) == ("worker_failure", True, 2, 2)


def test_times_are_the_wall_clocks_and_a_round_says_how_long_it_took_to_form():
    run = Scenario("2")
    run.join("a")
    run.passes(7.5)
    run.join("b")
    started = run.events[-1]
    assert (started.kind, started.at, started.duration_s) == ("round_started", WALL_AT + 7.5, 7.5)


def test_the_wall_clock_may_be_set_while_a_run_continues():
    """Earlier events keep their time. Later ones have the new clock's, also after a restart of the server."""
    run = running("2", "a", "b", max_restarts=2)
    run.passes(5.0)
    run.fails("a")
    run.passes(5.0)
    run.sets_wall_clock(WALL_AT - 3_600.0)
    run.restarts()
    run.join("a", "b")
    run.passes(5.0)
    run.restarts_from_a_snapshot()
    run.fails("b")
    first, second = (event.at for event in run.events if event.kind == "workers_failed")
    assert (first, second) == (WALL_AT + 5.0, WALL_AT - 3_600.0 + 5.0)
    run.join("a", "b")
    run.fails("a")
    assert [entry.at for entry in run.directive("a").restarts] == [WALL_AT - 3_600.0, WALL_AT - 3_600.0 + 5.0]


def test_a_lost_node_is_reported_with_its_rank_and_the_reason():
    run = running("1:2", "a", "b")
    run.leaves("b", "SIGTERM")
    left = next(event for event in run.events if event.kind == "node_left")
    assert (left.node_id, left.group_rank, left.reason, left.round) == ("b", 1, losses.left("b", "SIGTERM"), 1)
    run.join("a", "c")
    run.is_lost("a")
    assert "node_lost" in kinds(run.events)


def test_eight_failures_of_a_round_have_evidence_and_further_ones_only_a_name():
    names = [f"node{index}" for index in range(10)]
    run = running("10", *names, max_restarts=1)
    for name in names:
        run.fails(name, traceback=("Traceback", "ValueError: boom"), error="ValueError: boom")
    failed = [event.failure for event in run.events if event.kind == "workers_failed"]
    assert [bool(failure.traceback) for failure in failed] == [True] * 8 + [False] * 2
    assert {failure.error for failure in failed} == {"ValueError: boom"}


def test_a_failure_names_its_own_round_while_the_next_one_forms():
    run = running("2", "a", "b", max_restarts=1)
    run.fails("a")
    run.fails("b", round=1)
    assert [event.round for event in run.events if event.kind == "workers_failed"] == [1, 1]


def test_a_rejoin_or_a_sign_of_life_is_not_an_event():
    run = running("2", "a", "b", max_restarts=1)
    run.fails("a")
    told = len(run.events)
    run.join("a")
    run.renews("a", "b")
    assert len(run.events) == told


@pytest.mark.parametrize("compacted", [False, True], ids=["the records", "a snapshot"])
def test_a_restarted_server_counts_on(compacted):
    run = running("2", "a", "b", max_restarts=1)
    told = run.events[-1].number
    (run.restarts_from_a_snapshot if compacted else run.restarts)()
    run.fails("a")
    assert [event.number for event in run.events[told:]] == [told + 1, told + 2]


def test_replaying_the_records_emits_the_same_events_again():
    run = running("2", "a", "b", max_restarts=1)
    run.fails("a")
    registry = Registry(RETENTION_S)
    records = [Record(RUN_ID, 1, 0.0, run.created), *run.records]
    assert [event for record in records for event in registry.replay(record)] == run.events


def test_event_numbers_continue_over_the_attempts_of_a_run_id():
    registry = Registry(RETENTION_S)
    events: list[RunEvent] = []

    def happens(event: object) -> None:
        _, effects = registry.handle(RUN_ID, event, 0.0)
        events.extend(effect.event for effect in effects if isinstance(effect, EmitEvent))

    for agent in ("a", "b"):
        happens(NodeJoined(a_join(agent), SERVER_ADDR))
        happens(NodeLeft(agent, "SIGTERM"))
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    assert [event.attempt for event in events if event.kind == "run_created"] == [1, 2]
    assert "run_failed" in kinds(events), "the deserted attempt ends before the next begins"


def test_the_sentence_is_that_of_the_log():
    run = running("2", "a", "b", max_restarts=1)
    assert run.events[-1].sentence == f"runs on 2 nodes: {completion.all_joined(2)}"
    run.fails("a")
    assert run.events[-1].sentence == f"opened: {a_failure('a').sentence}"
