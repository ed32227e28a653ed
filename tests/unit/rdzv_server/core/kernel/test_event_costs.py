"""The cost of one event does not grow with the number of nodes, also while a run waits for a node or for a cause.

10,000 nodes may send the same event at once. Costs are counted as instructions of Python's virtual machine. So they are
the same on every machine, but work inside a function in C, such as `set(agents)`, is not counted: `tests/instructions`
counts it for some of these events.
"""

import gc
import sys
from collections.abc import Callable
from types import FrameType

import pytest
from rdzv_protocol.queries import Notice, Noticed

from rdzv_server.core.events import (
    Event,
    LeaseRenewed,
    LeaveAnnounced,
    NodeJoined,
    NodeLeft,
    QueryAnswered,
    WorkersFailed,
    WorkersSucceeded,
)
from tests.support.scenario import SERVER_ADDR, Scenario, a_failure, a_join, running

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


def _resized(nodes: int) -> tuple[Scenario, Event]:
    first, *others, last = names = _names(nodes)
    run = running(f"1:{nodes}", *names, max_restarts=1, disconnect_grace_s=60)
    run.fails(first)
    run.join(*others, last)
    run.disconnects("n003")
    run.is_resized(f"1:{nodes - 5}")
    return run, LeaseRenewed("n001")


def _all_leave(nodes: int) -> Scenario:
    """A scheduler ends the job: all agents announce at the same time that they leave."""
    names = _names(nodes)
    run = running(str(nodes), *names, notice_timeout_s=20)
    for name in names[:-1]:
        run.announces(name)
    return run


def _last_announcement(nodes: int) -> tuple[Scenario, Event]:
    return _all_leave(nodes), LeaveAnnounced(_names(nodes)[-1], "SIGTERM", 24, 30)


def _answer_while_all_leave(nodes: int) -> tuple[Scenario, Event]:
    run = _all_leave(nodes)
    return run, QueryAnswered("n001", run.asked(Notice)["n001"].number, Noticed(listening=1, acknowledged=1))


def _success_while_all_leave(nodes: int) -> tuple[Scenario, Event]:
    return _all_leave(nodes), WorkersSucceeded("n001", 1)


def _departure_while_all_leave(nodes: int) -> tuple[Scenario, Event]:
    run = _all_leave(nodes)
    run.succeeds("n001")
    return run, NodeLeft("n001", "SIGTERM")


def _rejoin_after_losses(nodes: int, *lost: str, reports: bool) -> tuple[Scenario, Event]:
    """A node rejoins after the loss of nodes that were lost before, in a run that limits restarts without progress."""
    *names, last = _names(nodes)
    others = [name for name in names if name not in lost]
    run = running(str(nodes), *names, last, max_restarts_without_progress=5, lease_s=1e6)
    if reports:
        run.tells(last, highest_step=7)
    for node in lost:
        run.is_lost(node)
    for node in lost:
        run.join(f"{node}.1", node=node)
    run.join(*others, last)
    for node in lost:
        run.is_lost(f"{node}.1")
    run.join(*others)
    assert run.run.losses_without_progress == dict.fromkeys(lost, 1) and run.run.lost_nodes == {*lost}
    return run, NodeJoined(a_join(f"{lost[0]}.2", node=lost[0]), SERVER_ADDR)


def _rejoin_after_a_loss(nodes: int) -> tuple[Scenario, Event]:
    return _rejoin_after_losses(nodes, "n001", reports=True)


def _rejoin_after_a_loss_without_steps(nodes: int) -> tuple[Scenario, Event]:
    return _rejoin_after_losses(nodes, "n001", reports=False)


def _rejoin_after_many_losses(nodes: int) -> tuple[Scenario, Event]:
    return _rejoin_after_losses(nodes, *_names(nodes)[: nodes // 2], reports=True)


def _instructions_of(run: Scenario, event: Event) -> int:
    """Return how many instructions Python's virtual machine runs while the run handles the event."""
    count = 0

    def note(frame: FrameType, kind: str, argument: object) -> object:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += kind == "opcode"
        return note

    before = sys.gettrace()
    gc.disable()  # hypothesis counts collections in Python, in instructions of its own
    sys._getframe().f_trace_opcodes = True  # Python 3.12 only looks at this when the tracing begins
    sys.settrace(note)
    try:
        run.machine.handle(event, run.now)
    finally:
        sys.settrace(before)
        gc.enable()
    return count


@pytest.mark.parametrize(
    "situation",
    [
        _vanished_participant_with_a_spare,
        _vanished_in_the_first_round,
        _failure_before_the_cause,
        _keep_alive_before_the_cause,
        _resized,
        _last_announcement,
        _answer_while_all_leave,
        _success_while_all_leave,
        _departure_while_all_leave,
        _rejoin_after_a_loss,
        _rejoin_after_a_loss_without_steps,
        _rejoin_after_many_losses,
    ],
)
def test_the_cost_of_an_event_does_not_grow_with_the_number_of_nodes(
    situation: Callable[[int], tuple[Scenario, Event]],
) -> None:
    _, few, many = (_instructions_of(*situation(nodes)) for nodes in (FEW, FEW, MANY))  # the first one fills caches
    print(f"{few} instructions with {FEW} nodes, {many} with {MANY}")
    assert few > 0 and many <= few + FEW
