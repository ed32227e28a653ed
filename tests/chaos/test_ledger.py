"""The monkey's own ledger, without a run."""

from collections import Counter
from typing import Any

import pytest

from tests.chaos.ledger import Entry, Ledger


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


REASONS = {
    "worker_failure": "worker rank 3 on node b failed: exit code 1",
    "node_lost": "node a lost: not heard for 5 s",
    "node_left": "node a left: SIGTERM",
    "node_arrived": "admitting 2 more: a, b",
}


def restart(cause: str, **changed: Any) -> dict[str, Any]:
    return {"cause": cause, "charged": cause == "worker_failure", "reason": REASONS[cause], **changed}


def told(*causes: str, **changed: Any) -> dict[str, Any]:
    """What operators see of a run that tells these restarts."""
    view = {
        "history": [restart(cause) for cause in causes],
        "restarts": {"node_left": 0, **Counter(causes)},
        "restart_count": causes.count("worker_failure"),
    }
    return {**view, **changed}


def test_nothing_happens_when_nothing_is_done(ledger: Ledger) -> None:
    ledger.round_completes()
    assert ledger.entries == [] and not ledger.differences(told())


def test_what_happens_before_all_work_again_is_one_restart(ledger: Ledger) -> None:
    ledger.worker_failed()
    ledger.worker_failed()
    ledger.round_completes()
    assert ledger.entries == [Entry("worker_failure")] and ledger.entries[0].is_charged


@pytest.mark.parametrize("other", ["worker_failed", "node_arrived"])
def test_a_node_that_goes_explains_what_else_happens(ledger: Ledger, other: str) -> None:
    getattr(ledger, other)()
    ledger.node_lost()
    getattr(ledger, other)()
    ledger.round_completes()
    assert ledger.entries == [Entry("node_lost")] and not ledger.entries[0].is_charged


def test_a_node_that_comes_back_later_is_a_restart_of_its_own(ledger: Ledger) -> None:
    for action in (ledger.node_left, ledger.round_completes, ledger.node_arrived, ledger.round_completes):
        action()
    assert ledger.entries == [Entry("node_left"), Entry("node_arrived")]


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
def test_another_story_is_noticed(ledger: Ledger, view: dict[str, Any]) -> None:
    for action in (ledger.node_lost, ledger.round_completes, ledger.worker_failed, ledger.round_completes):
        action()
    assert not ledger.differences(told("node_lost", "worker_failure"))
    assert ledger.differences(view)


def test_the_nodes_that_went_or_came_are_named(ledger: Ledger) -> None:
    ledger.node_lost("a")
    ledger.node_lost("c")
    ledger.round_completes()
    ledger.node_arrived("a", "b")
    ledger.round_completes()
    assert not ledger.differences(told("node_lost", "node_arrived"))
    others = [restart("node_lost", reason="node b lost: not heard for 5 s"), restart("node_arrived")]
    assert ledger.differences(told("node_lost", "node_arrived", history=others))


def test_of_a_long_story_the_run_may_tell_the_end_alone(ledger: Ledger) -> None:
    for _ in range(3):
        ledger.node_lost()
        ledger.round_completes()
        ledger.node_arrived()
        ledger.round_completes()
    whole = told(*["node_lost", "node_arrived"] * 3)
    assert not ledger.differences({**whole, "history": whole["history"][-3:]})
    assert ledger.differences({**whole, "history": whole["history"][:3]})
