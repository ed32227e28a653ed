"""The monkey's own ledger, without a run."""

from collections import Counter
from typing import Any

import pytest

from rdzv_server.words import completion, losses, notices, operations
from tests.chaos.ledger import Ledger

REASONS = {
    "worker_failure": "worker rank 3 on node b failed: exit code 1",
    "node_lost": losses.lost("a", losses.not_heard(5)),
    "node_left": "node a left: SIGTERM",
    "node_arrived": completion.admitting(2, "a, b"),
    "node_drained": operations.drained("a", ""),
    "run_restarted": operations.restarted(""),
}


def restart(cause: str, **changed: Any) -> dict[str, Any]:
    return {"cause": cause, "charged": cause == "worker_failure", "reason": REASONS[cause], **changed}


def told(*causes: str, **changed: Any) -> dict[str, Any]:
    """Return an operator's view of a run with these restarts."""
    view = {
        "history": [restart(cause) for cause in causes],
        "restarts": {"node_left": 0, **Counter(causes)},
        "restart_count": causes.count("worker_failure"),
    }
    return {**view, **changed}


def ledger_of(*rounds: str) -> Ledger:
    """Return a ledger of what happened before each round was complete, as in `node_lost a, worker_failed`."""
    ledger = Ledger()
    for happened in rounds:
        for name, *nodes in map(str.split, filter(None, happened.split(", "))):
            getattr(ledger, name)(*nodes)
        ledger.round_completes()
    return ledger


@pytest.mark.parametrize(
    ("rounds", "causes"),
    [
        ([""], []),
        (["worker_failed, worker_failed"], ["worker_failure"]),
        (["worker_failed, node_lost, worker_failed"], ["node_lost"]),
        (["node_arrived, node_lost, node_arrived"], ["node_lost"]),
        (["node_left", "node_arrived"], ["node_left", "node_arrived"]),
        (["node_drained a, node_lost, worker_failed"], ["node_drained"]),
        (["worker_failed, run_restarted"], ["run_restarted"]),
    ],
)
def test_events_before_all_nodes_work_again_are_one_restart(rounds: list[str], causes: list[str]) -> None:
    ledger = ledger_of(*rounds)
    assert [entry.cause for entry in ledger.entries] == causes
    assert not ledger.differences(told(*causes))


@pytest.mark.parametrize(
    "view",
    [
        told("worker_failure", "node_lost"),
        told("node_lost"),
        told("node_lost", "worker_failure", "worker_failure"),
        told("node_lost", "worker_failure", restart_count=2),
        told("node_lost", "worker_failure", restarts={"node_lost": 2, "worker_failure": 1}),
        told("node_lost", "worker_failure", history=[restart("node_lost"), restart("worker_failure", charged=False)]),
        told(),
    ],
)
def test_the_ledger_check_fails_if_the_view_differs(view: dict[str, Any]) -> None:
    ledger = ledger_of("node_lost", "worker_failed")
    assert not ledger.differences(told("node_lost", "worker_failure"))
    assert ledger.differences(view)


def test_an_unreported_restart_fails_the_check() -> None:
    ledger = ledger_of("node_lost", "worker_failed")
    assert ledger.misses(told("node_lost"))
    assert not ledger.misses(told("node_lost", "worker_failure"))


def test_the_nodes_that_left_or_joined_are_named() -> None:
    ledger = ledger_of("node_lost a, node_lost c", "node_arrived a b")
    assert not ledger.differences(told("node_lost", "node_arrived"))
    others = [restart("node_lost", reason=losses.lost("b", losses.not_heard(5))), restart("node_arrived")]
    assert ledger.differences(told("node_lost", "node_arrived", history=others))


@pytest.mark.parametrize("cause", ["node_left", "node_lost"])
def test_an_unanswered_leave_can_have_been_accepted(cause: str) -> None:
    ledger = ledger_of("node_lost c", "node_unheard a", "node_arrived a")
    lost = restart("node_lost", reason=losses.lost("c", losses.not_heard(5)))
    story = [lost, restart(cause), restart("node_arrived", reason=completion.admitting(1, "a"))]
    view = told("node_lost", cause, "node_arrived", history=story)
    assert not ledger.differences(view)
    other = {"node_left": "node_lost", "node_lost": "node_left"}[cause]
    again = told("node_lost", other, "node_arrived", history=[lost, restart(other), story[2]])
    assert ledger.differences(again), "it has told once and for all"
    assert ledger_of("node_lost c", "node_lost a", "node_arrived a").differences(told("node_lost", "node_left"))


@pytest.mark.parametrize("cause", ["worker_failure", "run_restarted"])
def test_a_failure_and_an_operators_restart_at_once_are_one_restart_with_either_cause(cause: str) -> None:
    assert not ledger_of("worker_failed_or_run_restarted").differences(told(cause))
    assert ledger_of("worker_failed_or_run_restarted").differences(told("node_lost"))


@pytest.mark.parametrize(
    "rounds", ["node_left a, node_lost b", "left_or_lost a b", "node_left a, left_or_lost a b", "node_unheard a"]
)
def test_a_leave_after_a_notice_is_a_leave(rounds: str) -> None:
    leaves = restart("node_left", reason=notices.leaves("a", "SIGTERM"))
    assert not ledger_of(rounds).differences(told("node_left", history=[leaves]))


@pytest.mark.parametrize(("rounds", "lost"), [("left_or_lost a b", "b"), ("node_unheard a, left_or_lost a b", "a")])
def test_a_leave_and_a_loss_at_once_are_one_restart_with_either_cause(rounds: str, lost: str) -> None:
    for cause, node, is_right in [("node_left", "a", True), ("node_lost", lost, True), ("node_left", "b", False)]:
        reason = losses.lost(node, "x") if cause == "node_lost" else notices.leaves(node, "x")
        view = told(cause, history=[restart(cause, reason=reason)])
        assert bool(ledger_of(rounds).differences(view)) is not is_right


@pytest.mark.parametrize(
    ("cause", "reason", "is_right"),
    [
        ("node_drained", REASONS["node_drained"], True),
        ("node_left", notices.leaves("b", "SIGTERM"), True),
        ("node_lost", losses.lost("b", losses.not_heard(6)), True),
        ("node_lost", losses.lost("a", losses.not_heard(6)), False),
        ("node_arrived", completion.admitting(1, "b"), False),
    ],
)
def test_a_restart_may_have_one_of_several_causes(cause: str, reason: str, is_right: bool) -> None:
    ledger = ledger_of("node_drained a, or_instead node_left b, or_instead node_lost b")
    view = told(cause, history=[restart(cause, reason=reason)])
    assert bool(ledger.differences(view)) is not is_right


def test_a_failure_that_ends_the_run_is_not_a_restart() -> None:
    ledger = ledger_of("node_left")
    ledger.worker_failed()
    ledger.no_round_follows()
    assert not ledger.differences(told("node_left"))


def test_a_leave_that_was_not_answered_may_have_come_before_those_that_were() -> None:
    ledger = ledger_of("node_left a b, node_unheard c")
    for node in "abc":
        assert not ledger.differences(told("node_left", history=[restart("node_left", reason=f"node {node} left: x")]))
    assert ledger.differences(told("node_left", history=[restart("node_left", reason="node d left: x")]))


def test_the_server_may_notice_an_unanswered_leave_before_the_others_leaves_arrive() -> None:
    for node, is_right in [("c", True), ("a", False)]:
        lost = restart("node_lost", reason=losses.lost(node, losses.not_heard(6)))
        ledger = ledger_of("node_left a b, node_unheard c")
        assert bool(ledger.differences(told("node_lost", history=[lost]))) is not is_right


def test_a_long_run_may_report_only_its_latest_restarts() -> None:
    ledger = ledger_of(*["node_lost", "node_arrived"] * 3)
    whole = told(*["node_lost", "node_arrived"] * 3)
    assert not ledger.differences({**whole, "history": whole["history"][-3:]})
    assert ledger.differences({**whole, "history": whole["history"][:3]})
