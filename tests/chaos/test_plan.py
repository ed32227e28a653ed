"""The plan depends only on the seed, and contains everything."""

from itertools import islice

from tests.chaos.actions import ACTIONS
from tests.chaos.plan import plan


def test_the_same_seed_gives_the_same_plan() -> None:
    assert list(islice(plan(3), 100)) == list(islice(plan(3), 100))
    assert list(islice(plan(3), 100)) != list(islice(plan(4), 100))


def test_every_action_comes_once_before_any_comes_again_each_with_a_seed_of_its_own() -> None:
    for seed in range(5):
        steps = list(islice(plan(seed), 2 * len(ACTIONS)))
        for round_ in (steps[: len(ACTIONS)], steps[len(ACTIONS) :]):
            assert {step.action.name for step in round_} == {action.name for action in ACTIONS}
        assert len({step.seed for step in steps}) == len(steps)


def test_every_fault_comes_with_every_action_that_tolerates_it() -> None:
    wanted = {(action, fault) for action in ACTIONS for fault in action.faults}
    seen = {(step.action, step.fault) for step in islice(plan(1), 12_000) if step.fault}
    assert seen == wanted
