"""Consecutive failed rounds: the wait before the next one, and the end of a run without progress."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from rdzv_protocol.messages import Finish, Wait
from rdzv_protocol.words.run import worker_failed

from rdzv_server.core.kernel import failed_rounds
from rdzv_server.core.kernel.completion import wait
from rdzv_server.core.kernel.operations import RunRestarted
from rdzv_server.core.kernel.run import Cause, Stage
from rdzv_server.core.policies import words as policy_words
from rdzv_server.core.policies.hangs import words as hang_words
from rdzv_server.core.views.status_view import view
from rdzv_server.words import completion, operations, runs
from rdzv_server.words import failures as words
from tests.support.message_search import has_message
from tests.support.scenario import Scenario, running
from tests.support.stories import until

WAITS = {"restart_backoff_s": 10.0, "restart_backoff_max_s": 35.0, "max_restarts": 99}
STEADY_S = 70.0


def fails_again(
    run: Scenario, step: int | None = None, *, saved: int | None = None, lasts_s: float = 1.0, **failure: object
) -> float:
    """Play a round that fails after this time. Return how long the next one waited."""
    if step is not None or saved is not None:
        run.tells("a", highest_step=step, checkpoint_step=saved)
    run.passes(lasts_s)
    run.fails("a", **failure)
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
    assert [fails_again(run) for _ in range(6)] == [0.0, 10.0, 20.0, 35.0, 35.0, 35.0]


def test_without_the_flag_the_run_does_not_wait():
    run = running("2", "a", "b", max_restarts=99)
    assert [fails_again(run) for _ in range(4)] == [0.0] * 4


@pytest.mark.parametrize(
    "gets_on",
    [
        lambda run: fails_again(run, 6),
        lambda run: fails_again(run, saved=3),
        lambda run: fails_again(run, lasts_s=STEADY_S),
    ],
    ids=["a higher step", "a later checkpoint", "a round that lasts"],
)
def test_a_row_ends_once_the_run_has_got_on(gets_on: Callable[[Scenario], float]):
    run = running("2", "a", "b", **WAITS)
    assert [fails_again(run, 5), fails_again(run, 5), fails_again(run, 4)] == [0.0, 10.0, 20.0]
    assert gets_on(run) == 0.0
    assert fails_again(run, 5) == 10.0


def test_a_restart_of_the_server_does_not_shorten_a_wait():
    run = running("2", "a", "b", **WAITS)
    fails_again(run)
    fails_again(run)
    run.fails("a")
    run.join("a", "b")
    run.restarts_from_a_snapshot()
    run.renews("a", "b")
    assert not run.run.running
    run.passes(19.9)
    assert not run.run.running
    run.passes(0.1)
    assert run.told(Wait) == set() and len(run.run.running) == 2


def test_every_agent_gets_the_reason_and_the_length_of_a_wait():
    run = running("2", "a", "b", **WAITS)
    fails_again(run)
    fails_again(run)
    run.fails("a")
    run.passes(2.0)
    run.join("a", "b")
    joined = completion.joined(2, "a, b")
    why = until(completion.last_call(joined, 2, 2, "", completion.awaits_backoff(2)), "starts", 18)
    assert wait(run.run, run.now).sentence == why
    status = view(run.run, run.now)
    assert (status.reason, status.deadline_s) == (why, 18.0)


def test_a_loss_turns_the_restart_into_a_membership_change_without_a_wait():
    run = running("1:2", "a", "b", **WAITS)
    fails_again(run)
    run.fails("a")
    run.join("a")
    run.is_lost("b")
    assert run.participants() == ["a"] and run.ledger()[-1] == ("node_lost", False)


def test_an_operator_ends_the_wait():
    run = running("2", "a", "b", **WAITS)
    fails_again(run)
    run.fails("a")
    run.join("a", "b")
    assert not run.run.running
    run.handle(RunRestarted("the store is back", "me", "1"))
    assert len(run.run.running) == 2
    (event,) = (event for event in run.events if event.kind == "run_restarted")
    assert event.reason == operations.backoff_ended("the store is back")


def test_with_too_few_nodes_the_join_timeout_still_applies():
    run = running("2", "a", "b", join_timeout_s=5.0, **WAITS)
    fails_again(run)
    run.fails("a")
    run.join("a")
    run.leaves("b")
    run.passes(5.0)
    assert run.told(Finish) == {"a"} and has_message(run.run.end_reason, runs.join_timeout)


# Runs without progress.


def test_a_run_ends_when_its_restarts_bring_no_progress():
    run = running("2", "a", "b", max_restarts=99, max_restarts_without_progress=2)
    fails_again(run, 100, saved=80)
    fails_again(run, 100)
    assert not run.stage.is_end
    fails_again(run, 90)
    failed = worker_failed("a", 0, "exit code 1", "")
    assert run.run.end_reason == words.ends_run(failed, words.no_progress(3, highest_step=100, checkpoint_step=80))
    finish = run.directive("b")
    assert isinstance(finish, Finish) and finish.no_progress and finish.failure


@pytest.mark.parametrize("on", [{"step": 101}, {"step": 90, "saved": 81}], ids=["a step", "a checkpoint"])
def test_one_step_or_one_checkpoint_resets_the_count(on: dict[str, int]):
    run = running("2", "a", "b", max_restarts=99, max_restarts_without_progress=2)
    for told in ({"step": 100, "saved": 80}, {"step": 100}, on, {"step": 95}):
        fails_again(run, **told)
    assert not run.stage.is_end
    fails_again(run, 95)
    assert run.run.no_progress


def test_long_rounds_do_not_count_as_progress():
    run = running("1", "a", max_restarts=99, max_restarts_without_progress=1)
    fails_again(run, 7, lasts_s=10_000.0)
    fails_again(run, 7, lasts_s=10_000.0)
    assert run.run.no_progress


def test_workers_without_progress_reports_are_measured_by_time():
    run = running("1", "a", max_restarts=99, max_restarts_without_progress=2)
    for lasts_s in (1.0, 1.0, 600.0, 1.0, 599.0):
        fails_again(run, lasts_s=lasts_s)
    assert run.run.end_reason.endswith(words.no_steps(3, within_s=600))


def test_steps_that_fall_within_a_round_do_not_measure_progress():
    run = running("1", "a", max_restarts=99, max_restarts_without_progress=1)
    run.tells("a", highest_step=100)
    fails_again(run, 5)
    for _ in range(3):
        fails_again(run, 50, lasts_s=600.0)
    run.restarts_from_a_snapshot()
    fails_again(run, 50, lasts_s=600.0)
    assert not run.stage.is_end
    assert [event.reason for event in run.events if event.kind == "warning"] == [policy_words.STEPS_FALL], "once"
    fails_again(run, 101)
    assert not run.stage.is_end, "a higher step than ever is progress"
    fails_again(run, 50)
    assert run.run.end_reason.endswith(words.no_steps(2, within_s=600, fall=True))


def test_the_same_step_of_another_epoch_is_not_the_same_step():
    run = running("1", "a", max_restarts=99, fail_when_hopeless=True)
    run.tells("a", highest_step=150)
    fails_again(run, 120, recurs="at_step")
    fails_again(run, 120, recurs="at_step")
    assert not run.stage.is_end


def test_free_restarts_do_not_count():
    run = running("1:2", "a", "b", max_restarts=99, max_restarts_without_progress=1)
    run.is_lost("b")
    run.join("a")
    run.join("c")
    run.join("a")
    assert [cause for cause, _ in run.ledger()] == ["node_lost", "node_arrived"]
    fails_again(run)
    assert not run.stage.is_end
    fails_again(run)
    assert run.run.no_progress


def test_a_hang_counts_as_a_failed_round():
    run = running("1", "a", max_restarts=99, max_restarts_without_progress=1)
    fails_again(run)
    run.suspects("a", 0)
    run.judges()
    assert run.run.no_progress and hang_words.hang("") in run.run.end_reason


def test_the_budget_ends_the_run_when_it_is_spent_first():
    run = running("1", "a", max_restarts=1, max_restarts_without_progress=3)
    fails_again(run)
    fails_again(run)
    assert run.stage.is_end and not run.run.no_progress


def test_a_restart_that_a_rule_makes_free_waits_like_others_but_counts_nowhere_else():
    run = running("1", "a", **WAITS, max_restarts_without_progress=1)
    waits = [fails_again(run, verdict="retry", rule="store is away") for _ in range(4)]
    assert waits == [0.0, 10.0, 20.0, 35.0]
    assert run.run.restarts_without_progress == run.run.restart_count == 0
    assert run.machine.blamed == [], "the user has said that the node cannot help it"


# Nodes that are lost again and again.


def dies_again(run: Scenario, node: str, step: int | None = None, *, lasts_s: float = 1.0, away_s: float = 0.0) -> None:
    """Play a round that ends because all processes of a node die at once. Then its next agent joins."""
    name = next(name for name, agent in run.run.agents.items() if agent.node_id == node)
    if step is not None:
        run.tells(name, highest_step=step)
    run.passes(lasts_s)
    run.disconnects(name)
    for _ in range(int(away_s / 5.0)):
        run.passes(5.0)
        run.renews(*[other for other in run.run.agents if other != name])
    run.passes(away_s % 5.0)
    if not run.stage.is_end:
        run.join(f"{node}.{run.run.round + 1}", node=node)
        run.join(*list(run.run.stopping))


@pytest.mark.parametrize(
    ("names", "away_s"), [("a", 0.0), ("a", 400.0), ("ab", 0.5), ("ab", 30.0)],
    ids=["only node", "only node, long away", "one of two, back at once", "one of two, long away"],
)  # fmt: skip
def test_a_node_that_is_lost_again_and_again_without_progress_ends_the_run(names: str, away_s: float):
    run = running(str(len(names)), *names, max_restarts_without_progress=2, lease_s=10.0)
    for _ in range(2):
        dies_again(run, "a", 7, away_s=away_s)
        assert run.stage is Stage.RUNNING
    run.restarts_from_a_snapshot()
    run.renews(*run.run.agents)
    dies_again(run, "a", 7, away_s=away_s)
    assert run.run.end_reason == words.lost_without_progress("a", 3, highest_step=7, checkpoint_step=None)
    assert run.run.no_progress and run.run.restart_count == 0
    assert all(isinstance(finish := run.directive(name), Finish) and finish.no_progress for name in run.run.agents)


def test_without_a_limit_lost_nodes_do_not_end_the_run():
    run = running("1", "a", max_restarts=1)
    for _ in range(20):
        dies_again(run, "a", 7)
    assert run.stage is Stage.RUNNING


def test_losses_of_other_nodes_count_for_themselves_and_progress_resets_all():
    run = running("3", *"abc", max_restarts_without_progress=2)
    for node in "abcab":
        dies_again(run, node, 7)
    dies_again(run, "c", 8)
    for node in "abcab":
        dies_again(run, node, 8)
    assert run.stage is Stage.RUNNING
    dies_again(run, "c", 8)
    assert run.run.end_reason == words.lost_without_progress("c", 3, highest_step=8, checkpoint_step=None)


def test_without_reports_a_long_round_or_a_round_of_the_others_counts_as_progress():
    run = running("1:2", "a", "b", max_restarts_without_progress=2)
    for _ in range(2):
        for lasts_s in (1.0, 600.0):
            dies_again(run, "a", lasts_s=lasts_s)
    for _ in range(3):
        run.is_lost(next(name for name, agent in run.run.agents.items() if agent.node_id == "a"))
        run.join("b")
        assert run.participants() == ["b"]
        run.join(f"a.{run.run.round + 1}", node="a")
        run.join("b")
    assert run.stage is Stage.RUNNING
    for _ in range(3):
        dies_again(run, "a")
    assert run.run.end_reason == words.lost_without_steps("a", 3, within_s=600)


def test_restarts_of_other_kinds_are_no_losses():
    run = running("2", "a", "b", max_restarts=99, max_restarts_without_progress=2)
    run.tells("a", highest_step=7)
    for number in range(9):
        name = next(name for name, agent in run.run.agents.items() if agent.node_id == "a")
        if number % 3 == 0:
            run.leaves(name)
        elif number % 3 == 1:
            run.is_restarted()
            run.is_lost(name)  # it was the operator who ended the round
        else:
            run.drains("a")
            run.is_lost(name)
            run.uncordons("a")
        run.join(f"a.{number}", node="a")
        run.join(*list(run.run.stopping))
        assert run.stage is Stage.RUNNING
    assert run.run.losses_without_progress == {}


@pytest.mark.parametrize("is_replaced", [False, True], ids=["out of reach", "with new agents"])
def test_nodes_that_vanish_together_count_only_if_their_agents_have_ended(is_replaced: bool):
    run = running("2:3", *"abc", max_restarts_without_progress=3, lease_s=10.0)
    run.tells("a", highest_step=7)
    for number in range(3):
        names = [name for name, agent in run.run.agents.items() if agent.node_id != "a"]
        for name in names:
            run.disconnects(name)
        for _ in range(0 if is_replaced else 3):
            run.passes(4.0)
            run.renews("a")
        assert (names[0] in run.run.agents) is is_replaced
        for name in names:
            run.join(f"{name[0]}.{number}", node=name[0])
        run.join(*list(run.run.stopping))
        run.ends_last_call()
        assert len(run.run.running) == 3
    assert run.run.losses_without_progress == ({"b": 3, "c": 3} if is_replaced else {})


@pytest.mark.parametrize("away_s", [0.5, 300.0])
def test_nodes_that_all_run_out_of_memory_together_end_the_run(away_s: float):
    run = running("2", "a", "b", max_restarts_without_progress=2, lease_s=10.0)
    for number in range(3):
        assert run.stage is Stage.RUNNING
        for name in list(run.run.agents):
            run.disconnects(name)
        run.passes(away_s)
        run.join(f"a.{number}", node="a")
        if not run.stage.is_end:
            run.join(f"b.{number}", node="b")
    assert run.run.end_reason == words.lost_without_steps("a", 3, within_s=600)


@pytest.mark.parametrize("away_s", [1.0, 8.0], ids=["probed", "replaced at once"])
def test_losses_during_an_outage_of_the_server_do_not_count(away_s: float):
    run = running("2", "a", "b", max_restarts_without_progress=2, lease_s=10.0)
    for number in range(4):
        run.passes(5.0)
        run.renews(*run.run.agents)
        run.restarts()
        run.passes(away_s)
        run.join(f"a.{number}", node="a")
        run.join(f"b.{number}", node="b")
        for _ in range(4):
            run.passes(4.0)
            run.renews(f"a.{number}", f"b.{number}")
        assert run.stage is Stage.RUNNING and sorted(run.run.running) == [f"a.{number}", f"b.{number}"]
    run.restarts()
    assert run.run.restarts == {Cause.NODE_LOST: 4} and run.run.losses_without_progress == {}


def test_nodes_with_a_new_name_after_each_loss_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(failed_rounds, "MOST_NODES", 2)
    run = running("1", "a", max_restarts_without_progress=2)
    run.tells("a", highest_step=7)
    for _ in range(4):
        name = next(iter(run.run.agents))
        run.is_lost(name)
        run.join(f"{name}x")
    assert run.run.losses_without_progress == {"axx": 1, "axxx": 1}


def test_a_node_that_is_kept_out_does_not_end_the_run():
    run = running("1:2", "a", "b", max_restarts_without_progress=1)
    dies_again(run, "b", 7)
    run.cordons("b")
    run.is_lost("b.2")
    run.join("a")
    assert run.participants() == ["a"]


def test_records_of_a_server_without_this_rule_are_replayed_as_they_were():
    run = running("1", "a")
    for _ in range(5):
        dies_again(run, "a", 7)
    limited = replace(run.settings, max_restarts_without_progress=2)
    run.created = replace(run.created, settings=limited)
    run.restarts()
    run.passes(10.0)
    assert run.stage is Stage.RUNNING
    dies_again(run, "a", 7)
    assert run.run.no_progress


# Failures that a restart cannot fix.


def outlook(run: Scenario) -> str:
    """Return the message about the latest failure, empty if there was none."""
    assert run.run.first_failure
    told = [event.reason for event in run.events if event.kind == "warning"]
    hint = run.run.failures[-1].failure.hint
    assert not told or hint.endswith(told[-1])
    return hint.removeprefix("less").removeprefix("; ")


def test_memory_that_runs_out_at_the_same_step_again_is_recognized():
    run = running("2", "a", "b", max_restarts=99)
    fails_again(run, 120, recurs="at_step", hint="less")
    assert outlook(run) == ""
    fails_again(run, 120, recurs="at_step", hint="less")
    assert outlook(run) == words.restart_useless(words.failed_at_step(120))
    assert not run.stage.is_end


def test_the_longest_hint_leaves_room_for_it_and_for_a_snapshot():
    run = running("1", "a", max_restarts=99)
    attempt_of_a = fails_again(run, recurs="at_start", hint="x" * 1_024)
    assert attempt_of_a == 0.0 and outlook(run).endswith(words.restart_useless(words.FAILED_AT_START))
    run.restarts_from_a_snapshot()
    assert outlook(run).endswith(words.restart_useless(words.FAILED_AT_START))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((120, "at_step"), (121, "at_step")),
        ((None, "at_step"), (None, "at_step")),
        ((120, "unknown"), (120, "at_step")),
    ],
    ids=["another step", "no steps told", "another kind of failure before"],
)
def test_a_failure_at_another_or_unknown_step_does_not_count_as_recurring(first, second):
    run = running("2", "a", "b", max_restarts=99)
    for step, recurs in (first, second):
        fails_again(run, step, recurs=recurs)
    assert outlook(run) == ""


def test_the_steps_are_remembered_over_a_restart_of_the_server():
    run = running("1", "a", max_restarts=99, fail_when_hopeless=True)
    fails_again(run, 120, recurs="at_step")
    run.restarts_from_a_snapshot()
    run.renews("a")
    fails_again(run, 120, recurs="at_step")
    assert (
        run.stage.is_end and has_message(run.run.end_reason, words.failed_at_step, step=120) and not run.run.no_progress
    )


@pytest.mark.parametrize(
    ("step", "lasts_s", "is_told"), [(None, 5.0, True), (3, 5.0, False), (None, 600.0, False)],
    ids=["at once", "after steps", "after a while"],
)  # fmt: skip
def test_a_program_that_cannot_start_is_reported_only_at_its_start(step, lasts_s, is_told):
    run = running("1", "a", max_restarts=99)
    fails_again(run, step, lasts_s=lasts_s, recurs="at_start")
    assert (words.FAILED_AT_START in outlook(run)) == is_told
    run.events.clear()
    fails_again(run, recurs="at_start")
    assert outlook(run) == "", "it has started before: then its surroundings have changed"


def test_each_round_is_reported_once_for_any_number_of_failed_nodes():
    run = running("3", "a", "b", "c", max_restarts=99)
    for name in "abc":
        run.fails(name, recurs="at_start")
    assert [event.kind for event in run.events].count("warning") == 1
