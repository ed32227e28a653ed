"""The plan depends only on the seed, and contains everything."""

from itertools import islice

from tests.chaos.actions import ACTIONS, EVICTIONS
from tests.chaos.fleet import Setting
from tests.chaos.plan import plan


def test_the_same_seed_gives_the_same_plan() -> None:
    assert list(islice(plan(3), 100)) == list(islice(plan(3), 100))
    assert list(islice(plan(3), 100)) != list(islice(plan(4), 100))


def test_every_action_occurs_once_before_any_repeats_each_with_its_own_seed() -> None:
    for seed in range(5):
        steps = list(islice(plan(seed), 2 * len(ACTIONS)))
        for round_ in (steps[: len(ACTIONS)], steps[len(ACTIONS) :]):
            assert {step.action.name for step in round_} == {action.name for action in ACTIONS}
        assert len({step.seed for step in steps}) == len(steps)


def test_every_fault_comes_with_every_action_that_tolerates_it() -> None:
    wanted = {(action, fault) for action in ACTIONS for fault in action.faults}
    seen = {(step.action, step.fault) for step in islice(plan(1), 12_000) if step.fault}
    assert seen == wanted


def test_fleets_with_evictions_have_further_actions() -> None:
    every = {action.name for action in [*ACTIONS, *EVICTIONS]}
    lacking = {name for name in every if any(part in name for part in ("etcd", "proxy", "names"))}
    seen = {step.action.name for step in islice(plan(1, Setting(notices=True).parts), 1_000)}
    assert seen == every - lacking


def test_no_worker_fails_in_a_run_without_restarts() -> None:
    steps = list(islice(plan(1, Setting(no_restarts=True).parts), 1_000))
    assert {step.action for step in steps} > set(EVICTIONS) - {action for action in EVICTIONS if action.charges}
    assert not any(step.action.charges for step in steps)


def test_a_seed_without_evictions_means_the_same_as_ever() -> None:
    assert [str(step) for step in islice(plan(103), 3)] == [
        "1. agents die at once, beside: agent stopped",
        "2. an agent is stopped for long while strangers call, beside: proxy down",
        "3. etcd is down for long",
    ]
