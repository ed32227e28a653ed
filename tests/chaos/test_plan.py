"""The plan is the seed's alone, and leaves nothing out."""

from itertools import islice

from tests.chaos.deeds import DEEDS
from tests.chaos.plan import plan


def test_the_same_seed_gives_the_same_plan() -> None:
    assert list(islice(plan(3), 100)) == list(islice(plan(3), 100))
    assert list(islice(plan(3), 100)) != list(islice(plan(4), 100))


def test_every_deed_comes_once_before_any_comes_again() -> None:
    for seed in range(5):
        steps = list(islice(plan(seed), 2 * len(DEEDS)))
        for round_ in (steps[: len(DEEDS)], steps[len(DEEDS) :]):
            assert {step.deed for step in round_} == set(DEEDS)


def test_every_nuisance_comes_beside_every_deed_that_bears_it() -> None:
    wanted = {(deed, nuisance) for deed in DEEDS for nuisance in deed.nuisances}
    seen = {(step.deed, step.nuisance) for step in islice(plan(1), 3000) if step.nuisance}
    assert seen == wanted


def test_no_step_has_the_seed_of_another() -> None:
    steps = list(islice(plan(1), 500))
    assert len({step.seed for step in steps}) == len(steps)


def test_the_names_of_deeds_are_their_own() -> None:
    names = [deed.name for deed in DEEDS]
    assert len(set(names)) == len(names)
