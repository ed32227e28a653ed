"""Notices before a round ends: who is told, what ends the wait, and what becomes of the round."""

import pytest
from rdzv_protocol.messages import Drain, Start, Stop
from rdzv_protocol.queries import Notice, Noticed

from rdzv_server.core.events import LeaveAnnounced, NodeDrained, QueryAnswered
from rdzv_server.core.run import Stage
from tests.support.scenario import Scenario, durable, replayed

KNOWS = {"queries": ("notice",)}
OLD = {"queries": ()}


def noticing(nodes: str, *names: str, knows=KNOWS, **settings) -> Scenario:
    run = Scenario(nodes, **settings)
    run.join(*names, **knows)
    run.ends_last_call()
    assert run.stage is Stage.RUNNING
    return run


def announces(run: Scenario, name: str, notice_s: float = 24.0, stop_s: float = 30.0) -> None:
    run.handle(LeaveAnnounced(name, "SIGTERM", notice_s, stop_s))


def notice_of(run: Scenario, name: str) -> Notice | None:
    asked = [query for query in run.run.queries.of(name, run.now) if isinstance(query, Notice)]
    return asked[0] if asked else None


def answers(run: Scenario, name: str, listening: int = 1, acknowledged: int = 1) -> None:
    notice = notice_of(run, name)
    assert notice
    run.handle(QueryAnswered(name, notice.number, Noticed(listening=listening, acknowledged=acknowledged)))


def told(run: Scenario, kind: str) -> list[str]:
    return [event.reason for event in run.events if event.kind == kind]


def test_all_participants_are_told_and_the_round_ends_when_all_have_acknowledged():
    run = noticing("1:2", "a", "b")
    announces(run, "b")
    for name in "ab":
        notice = notice_of(run, name)
        assert (notice.source, notice.node_id, notice.remaining_s) == ("node_left", "b", 24.0)
        assert name in run.woken()
    assert told(run, "notice_given") == ["node b leaves: SIGTERM; the workers are told, and have 24 s to save"]
    run.passes(2.0)
    answers(run, "a")
    assert run.stage is Stage.RUNNING and run.told(Start) == {"a", "b"}
    answers(run, "b")
    assert run.stage is Stage.FORMING and run.told(Stop) == {"a"}
    drain = run.directive("b")
    assert isinstance(drain, Drain) and (drain.reason, drain.remaining_s) == ("node b leaves: SIGTERM", 28.0)
    assert told(run, "notice_ended") == [
        "all 2 workers that listen acknowledged the notice after 2.0 s: the round ends"
    ]
    run.leaves("b")
    run.join("a")
    assert run.participants() == ["a"] and run.ledger() == [("node_left", False)]


def test_the_deadline_ends_the_wait_for_those_that_do_not_acknowledge():
    run = noticing("1:2", "a", "b")
    announces(run, "b")
    answers(run, "a", listening=2, acknowledged=1)
    run.passes(23.9)
    assert run.stage is Stage.RUNNING
    run.passes(0.1)
    assert run.stage is Stage.FORMING and run.directive("b").remaining_s == pytest.approx(6.0)
    assert "the workers of a, b had not all acknowledged the notice after 24.0 s" in told(run, "notice_ended")[0]
    assert notice_of(run, "a") is None and notice_of(run, "b") is None


def test_where_nobody_listens_or_nobody_knows_notices_the_round_ends_at_once():
    run = noticing("1:2", "a", "b")
    announces(run, "b")
    answers(run, "a", 0, 0)
    answers(run, "b", 0, 0)
    assert run.stage is Stage.FORMING and "no worker listens" in told(run, "notice_ended")[0]
    old = noticing("1:2", "a", "b", knows=OLD)
    announces(old, "b")
    assert old.stage is Stage.FORMING and "no worker could be told" in told(old, "notice_ended")[0]


def test_a_node_that_dies_meanwhile_ends_the_round_without_more_ado():
    run = noticing("1:3", "a", "b", "c")
    announces(run, "b")
    run.is_lost("b")
    assert run.stage is Stage.FORMING and run.told(Stop) == {"a", "c"}
    assert not run.run.leaving and notice_of(run, "a") is None
    run.join("a", "c")
    assert run.ledger() == [("node_lost", False)]
    assert "before all workers have acknowledged: node b lost" in told(run, "notice_ended")[0]


def test_a_worker_that_fails_meanwhile_opens_the_round_and_the_leaving_node_goes():
    run = noticing("1:2", "a", "b", max_restarts=1)
    announces(run, "b")
    run.fails("a")
    assert isinstance(run.directive("b"), Drain)
    run.join("a")
    assert run.ledger() == [("node_left", False)], "it would have ended anyway: free"


def test_a_second_node_that_leaves_goes_with_the_first_one_and_may_bring_the_deadline_forward():
    run = noticing("1:3", "a", "b", "c")
    announces(run, "b")
    first = notice_of(run, "a").number
    announces(run, "c", 20.0)
    announces(run, "c", 5.0)
    assert notice_of(run, "a").number > first and notice_of(run, "a").remaining_s == 20.0
    run.passes(20.0)
    assert run.told(Drain) == {"b", "c"} and run.told(Stop) == {"a"}


def test_a_node_without_workers_goes_at_once():
    run = noticing("1", "a")
    run.join("spare", **KNOWS)
    announces(run, "spare")
    assert run.told(Drain) == {"spare"} and run.stage is Stage.RUNNING and not told(run, "notice_given")


@pytest.mark.parametrize("way", ["restarts", "restarts_from_a_snapshot"])
def test_a_restarted_server_asks_again_and_keeps_the_deadline(way: str):
    run = noticing("1:2", "a", "b")
    announces(run, "b")
    run.passes(10.0)
    getattr(run, way)()
    run.renews("a", "b")
    assert notice_of(run, "a").remaining_s == pytest.approx(14.0)
    answers(run, "a")
    answers(run, "b")
    assert run.stage is Stage.FORMING and isinstance(run.directive("b"), Drain)


def test_the_records_bring_a_notice_back():
    run = noticing("1:2", "a", "b")
    announces(run, "b")
    assert durable(replayed(run.created, run.records)) == durable(run.run)


def drained(deadline_s: float) -> NodeDrained:
    return NodeDrained(node_id="b", deadline_s=deadline_s, request_id=f"drain {deadline_s}")


def test_a_drain_gives_notice_if_the_run_wants_any():
    run = noticing("1:2", "a", "b", notice_timeout_s=20.0)
    run.handle(drained(300.0))
    assert (notice_of(run, "a").source, notice_of(run, "a").remaining_s) == ("node_drained", 20.0)
    run.handle(drained(10.0))
    assert notice_of(run, "a").remaining_s == 8.0, "a shorter drain leaves a part of its time for the workers' end"
    answers(run, "a")
    answers(run, "b")
    assert run.directive("b").remaining_s == 10.0 and run.told(Stop) == {"a"}
    run.leaves("b", "drained")
    run.join("a")
    assert run.ledger() == [("node_drained", False)]


def test_a_drain_of_a_run_without_notices_is_as_before():
    run = noticing("1:2", "a", "b")
    run.handle(drained(300.0))
    assert run.told(Drain) == {"b"} and run.told(Stop) == {"a"}


def test_an_arrival_waits_until_the_workers_have_acknowledged():
    run = noticing("1:3", "a", "b", scale_up="on-notice", notice_timeout_s=20.0)
    run.join("c", **KNOWS)
    assert (notice_of(run, "a").source, notice_of(run, "a").node_id) == ("node_arrived", "c")
    assert run.reason("c") == "round 1 ends to admit this node; in 20.0 s"
    answers(run, "a")
    answers(run, "b")
    assert run.told(Stop) == {"a", "b"}
    run.join("a", "b")
    assert run.participants() == ["a", "b", "c"] and run.ledger() == [("node_arrived", False)]


def test_an_arrival_is_admitted_at_the_deadline_and_without_a_timeout_after_a_minute():
    run = noticing("1:2", "a", scale_up="on-notice")
    run.join("c", **KNOWS)
    run.passes(59.9)
    assert run.stage is Stage.RUNNING
    run.passes(0.1)
    assert run.told(Stop) == {"a"}


def test_a_notice_is_not_taken_back_when_who_arrived_is_gone():
    """Workers of the others may have ended already, since they were told that the round ends."""
    run = noticing("1:2", "a", scale_up="on-notice")
    run.join("c", **KNOWS)
    run.leaves("c")
    answers(run, "a")
    assert run.told(Stop) == {"a"}


@pytest.mark.parametrize("way", ["node_left", "node_lost", "node_drained"])
def test_a_notice_is_not_taken_back_when_who_leaves_has_finished_and_is_gone(way: str):
    """The workers of c have acknowledged it, and ended: only the next round starts them again."""
    run = noticing("1:3", "a", "b", "c", notice_timeout_s=20.0)
    run.handle(drained(300.0))
    answers(run, "c")
    run.succeeds("b")
    if way == "node_left":
        run.leaves("b")
    elif way == "node_lost":
        run.is_lost("b")
    else:
        run.handle(drained(10.0))
    assert run.stage is Stage.FORMING and run.told(Stop) == {"a", "c"}
    run.join("a", "c")
    assert run.participants() == ["a", "c"] and run.ledger() == [(way, False)]


def test_who_leaves_and_is_gone_meanwhile_does_not_hide_why_a_worker_has_failed():
    run = noticing("1:3", "a", "b", "c", notice_timeout_s=20.0, max_restarts=0)
    run.handle(drained(300.0))
    run.succeeds("b")
    run.fails("a", consequence=True)
    run.leaves("b")
    assert run.stage is Stage.RUNNING, "the cause may come yet"
    run.fails("c")
    assert run.stage is Stage.FAILED and run.run.end_failure and run.run.end_failure.node_id == "c"


def test_a_leave_that_is_announced_again_or_after_the_end_changes_nothing():
    run = noticing("1:2", "a", "b")
    announces(run, "b")
    before = durable(run.run)
    announces(run, "b", 1.0)
    assert durable(run.run) == before
    run.succeeds("a", "b")
    assert run.stage is Stage.SUCCEEDED and not run.run.leaving
    announces(run, "b")
    assert run.stage is Stage.SUCCEEDED
