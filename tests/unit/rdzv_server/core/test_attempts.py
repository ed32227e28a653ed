"""Attempts that follow each other: the wait before the next one, and the end of a run that they bring no further."""

from collections.abc import Callable

import pytest
from rdzv_protocol.messages import Finish, Progress, Wait
from rdzv_protocol.queries import Refused

from rdzv_server.core.completion import wait
from rdzv_server.core.events import HangSuspected, LeaseRenewed, QueryAnswered, RunRestarted
from rdzv_server.core.hangs import SETTLE_S
from rdzv_server.core.status_view import view
from tests.support.scenario import Scenario, running

WAITS = {"restart_backoff_s": 10.0, "restart_backoff_max_s": 35.0, "max_restarts": 99}
STEADY_S = 70.0


def tells(run: Scenario, name: str, step: int | None = None, saved: int | None = None) -> None:
    told = Progress(round=run.run.round, highest_step=step, checkpoint_step=saved)
    run.handle(LeaseRenewed(name, told))


def attempt(run: Scenario, step: int | None = None, *, saved: int | None = None, lasts_s: float = 1.0) -> float:
    """A round that fails after this time; how long the next one waited."""
    if step is not None or saved is not None:
        tells(run, "a", step, saved)
    run.passes(lasts_s)
    run.fails("a")
    failed_at = run.now
    if not run.stage.is_end:
        run.join(*list(run.run.stopping))
        while not run.run.running:
            at = run.machine.next_deadline()
            assert at is not None
            run.passes(at - run.now)
    return run.now - failed_at


def test_the_wait_doubles_up_to_its_limit_and_the_first_restart_comes_at_once():
    run = running("2", "a", "b", **WAITS)
    assert [attempt(run) for _ in range(6)] == [0.0, 10.0, 20.0, 35.0, 35.0, 35.0]


def test_without_the_flag_nobody_waits():
    run = running("2", "a", "b", max_restarts=99)
    assert [attempt(run) for _ in range(4)] == [0.0] * 4


@pytest.mark.parametrize(
    "gets_on",
    [
        lambda run: attempt(run, 6),
        lambda run: attempt(run, saved=3),
        lambda run: attempt(run, lasts_s=STEADY_S),
    ],
    ids=["a higher step", "a later checkpoint", "a round that lasts"],
)
def test_a_row_ends_once_the_run_has_got_on(gets_on: Callable[[Scenario], float]):
    run = running("2", "a", "b", **WAITS)
    assert [attempt(run, 5), attempt(run, 5), attempt(run, 4)] == [0.0, 10.0, 20.0]
    assert gets_on(run) == 0.0
    assert attempt(run, 5) == 10.0


def test_a_restart_of_the_server_shortens_no_wait():
    run = running("2", "a", "b", **WAITS)
    attempt(run)
    attempt(run)
    run.fails("a")
    run.join("a", "b")
    run.restarts_from_a_snapshot()
    run.renews("a", "b")
    assert not run.run.running
    run.passes(19.9)
    assert not run.run.running
    run.passes(0.1)
    assert run.told(Wait) == set() and len(run.run.running) == 2


def test_everybody_is_told_why_the_run_waits_and_for_how_long():
    run = running("2", "a", "b", **WAITS)
    attempt(run)
    attempt(run)
    run.fails("a")
    run.passes(2.0)
    run.join("a", "b")
    why = (
        "2 (a, b) joined of 2 to 2; waiting before the next restart: 2 restarts in a row did not help "
        "(--restart-backoff)"
    )
    assert wait(run.run, run.now).sentence == f"{why}; starts in 18 s"
    status = view(run.run, run.now)
    assert (status.reason, status.deadline_s) == (f"{why}; starts in 18 s", 18.0)


def test_a_loss_turns_the_restart_into_a_membership_change_which_waits_for_nothing():
    run = running("1:2", "a", "b", **WAITS)
    attempt(run)
    run.fails("a")
    run.join("a")
    run.is_lost("b")
    assert run.participants() == ["a"] and run.ledger()[-1] == ("node_lost", False)


def test_an_operator_ends_the_wait():
    run = running("2", "a", "b", **WAITS)
    attempt(run)
    run.fails("a")
    run.join("a", "b")
    assert not run.run.running
    run.handle(RunRestarted("the store is back", "me", "1"))
    assert len(run.run.running) == 2


def test_too_few_nodes_are_waited_for_as_ever():
    run = running("2", "a", "b", join_timeout_s=5.0, **WAITS)
    attempt(run)
    run.fails("a")
    run.join("a")
    run.leaves("b")
    run.passes(5.0)
    assert run.told(Finish) == {"a"} and "join timeout" in run.run.end_reason


# Runs that get nowhere.


def test_a_run_ends_when_restarts_have_got_it_no_further():
    run = running("2", "a", "b", max_restarts=99, max_restarts_without_progress=2)
    attempt(run, 100, saved=80)
    attempt(run, 100)
    assert not run.stage.is_end
    attempt(run, 90)
    assert run.run.end_reason == (
        "worker rank 0 on node a failed: exit code 1; no progress: 3 attempts in a row got no further beyond step 100, "
        "the last checkpoint is of step 80"
    )
    finish = run.directive("b")
    assert isinstance(finish, Finish) and finish.no_progress and finish.failure


@pytest.mark.parametrize("on", [{"step": 101}, {"step": 90, "saved": 81}], ids=["a step", "a checkpoint"])
def test_one_step_or_one_checkpoint_begins_the_count_anew(on: dict[str, int]):
    run = running("2", "a", "b", max_restarts=99, max_restarts_without_progress=2)
    for told in ({"step": 100, "saved": 80}, {"step": 100}, on, {"step": 95}):
        attempt(run, **told)
    assert not run.stage.is_end
    attempt(run, 95)
    assert run.run.no_progress


def test_attempts_that_last_are_none_the_better_without_progress():
    run = running("1", "a", max_restarts=99, max_restarts_without_progress=1)
    attempt(run, 7, lasts_s=10_000.0)
    attempt(run, 7, lasts_s=10_000.0)
    assert run.run.no_progress


def test_workers_that_tell_nothing_are_measured_by_time():
    run = running("1", "a", max_restarts=99, max_restarts_without_progress=2)
    for lasts_s in (1.0, 1.0, 600.0, 1.0, 599.0):
        attempt(run, lasts_s=lasts_s)
    assert run.run.end_reason.endswith(
        "no progress: 3 attempts in a row failed within 600 s each, and workers tell no steps"
    )


def test_free_restarts_are_no_attempts():
    run = running("1:2", "a", "b", max_restarts=99, max_restarts_without_progress=1)
    run.is_lost("b")
    run.join("a")
    run.join("c")
    run.join("a")
    assert [cause for cause, _ in run.ledger()] == ["node_lost", "node_arrived"]
    attempt(run)
    assert not run.stage.is_end
    attempt(run)
    assert run.run.no_progress


def test_a_hang_counts_too():
    run = running("1", "a", max_restarts=99, max_restarts_without_progress=1)
    attempt(run)
    run.handle(HangSuspected("a", run.run.round, "progress", "stuck", (0,)))
    for number in list(run.run.queries.by_agent.get("a", ())):
        run.handle(QueryAnswered("a", number, Refused(reason="no")))
    run.passes(SETTLE_S)
    assert run.run.no_progress and "hang: " in run.run.end_reason


def test_the_budget_ends_the_run_when_it_is_spent_first():
    run = running("1", "a", max_restarts=1, max_restarts_without_progress=3)
    attempt(run)
    attempt(run)
    assert run.stage.is_end and not run.run.no_progress
