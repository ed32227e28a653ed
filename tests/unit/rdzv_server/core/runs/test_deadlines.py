"""Deadlines of many runs."""

import pytest

from rdzv_server.core.kernel.run import Stage
from rdzv_server.core.runs.deadlines import SPARE, Deadlines
from tests.support.scenario import RETENTION_S, ManyRuns, settings_of


@pytest.fixture
def server():
    return ManyRuns()


def test_every_run_meets_its_own_deadline(server):
    server.join("a", "early", settings=settings_of("2", join_timeout_s=5))
    server.join("a", "late", settings=settings_of("2", join_timeout_s=8))
    server.passes(5)
    assert [stage for _, _, stage in server.attempts()] == [Stage.FAILED, Stage.FORMING]
    server.passes(3)
    assert [stage for _, _, stage in server.attempts()] == [Stage.FAILED, Stage.FAILED]


def test_runs_that_are_forgotten_leave_no_deadlines_behind(server):
    """Some are days ahead: the server would keep them, and wake up without need."""
    for number in range(500):
        server.join("a", f"run-{number}", explicit=False, settings=settings_of("2", join_timeout_s=1e6))
        server.leaves("a", f"run-{number}")
    server.passes(60)
    for number in range(500):
        server.join("b", f"run-{number}", explicit=False)
        server.succeeds("b", f"run-{number}")
    server.passes(RETENTION_S)
    assert server.registry.runs() == []
    wake_ups = 0
    while (at := server.registry.next_deadline()) is not None:
        assert server.registry.pass_time(at) == []
        wake_ups += 1
    assert wake_ups < 100


def test_each_deadline_is_due_once_and_a_sooner_one_counts():
    deadlines = Deadlines()
    deadlines.arm(("b", 1), 5.0)
    deadlines.arm(("a", 2), 5.0)
    deadlines.arm(("a", 2), 7.0)
    deadlines.arm(("a", 1), None)
    deadlines.arm(("b", 1), 3.0)
    assert deadlines.next() == 3.0 and deadlines.take_due(2.9) == []
    assert deadlines.take_due(5.0) == [("a", 2), ("b", 1)] and deadlines.take_due(9.0) == []


def test_disarmed_deadlines_are_not_due_and_take_no_memory():
    deadlines = Deadlines()
    for number in range(10 * SPARE):
        deadlines.arm(("a", number), 1e6 + number)
        deadlines.disarm(("a", number))
    deadlines.arm(("b", 1), 2e6)
    assert len(deadlines._heap) <= SPARE + 3
    assert deadlines.take_due(3e6) == [("b", 1)]
