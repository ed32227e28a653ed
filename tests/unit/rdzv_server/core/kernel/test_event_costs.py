"""The cost of one event does not grow with the number of nodes, also while a run waits for a node or for a cause.

10,000 nodes may send the same event at once. Costs are counted as calls of functions, which are the same on every
machine.
"""

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from rdzv_server.core.events import Event, LeaseRenewed, WorkersFailed
from tests.support.scenario import Scenario, a_failure, running

FEW, MANY = 20, 200
CONSEQUENCE = {"consequence": True}


def _names(nodes: int) -> list[str]:
    return [f"n{number:03}" for number in range(nodes)]


def _vanished_participant_with_a_spare(nodes: int) -> tuple[Scenario, Event]:
    first, *others, vanished = names = _names(nodes)
    run = running(str(nodes), *names, max_restarts=1, disconnect_grace_s=60)
    run.join("spare")
    run.fails(first)
    run.join(*others, vanished)
    run.disconnects(vanished)
    run.join(first)
    return run, LeaseRenewed(first)


def _vanished_in_the_first_round(nodes: int) -> tuple[Scenario, Event]:
    *others, vanished = _names(nodes)
    run = Scenario(str(nodes), disconnect_grace_s=60)
    run.join(*others[1:], vanished)
    run.disconnects(vanished)
    run.join(others[0], "spare")
    return run, LeaseRenewed(others[0])


def _waits_for_the_cause(nodes: int) -> Scenario:
    first, *others = names = _names(nodes)
    run = running(str(nodes), *names, max_restarts=0)
    run.fails(first, **CONSEQUENCE)
    run.renews(*others)
    assert run.run.verdict_at is not None
    return run


def _failure_before_the_cause(nodes: int) -> tuple[Scenario, Event]:
    return _waits_for_the_cause(nodes), WorkersFailed("n001", 1, a_failure("n001", rank=1, **CONSEQUENCE))


def _keep_alive_before_the_cause(nodes: int) -> tuple[Scenario, Event]:
    return _waits_for_the_cause(nodes), LeaseRenewed("n001")


def _calls_of(run: Scenario, event: Event) -> int:
    """Return how many functions and generators are called or resumed while the run handles the event."""
    count = 0

    def note(frame: FrameType, kind: str, argument: object) -> None:
        nonlocal count
        count += kind in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run.machine.handle(event, run.now)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize(
    "situation",
    [
        _vanished_participant_with_a_spare,
        _vanished_in_the_first_round,
        _failure_before_the_cause,
        _keep_alive_before_the_cause,
    ],
)
def test_the_cost_of_an_event_does_not_grow_with_the_number_of_nodes(
    situation: Callable[[int], tuple[Scenario, Event]],
) -> None:
    few, many = (_calls_of(*situation(nodes)) for nodes in (FEW, MANY))
    assert many <= few + FEW
