"""What the workers learn tells in the end whether a step was lost."""

from pathlib import Path

import pytest

from tests.chaos.training import Folder, learn, undisturbed


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_a_step_left_out_or_taken_twice_shows() -> None:
    assert learn(undisturbed(41), 42) == undisturbed(42)
    assert learn(undisturbed(40), 42) != undisturbed(42)
    assert learn(undisturbed(42), 42) != undisturbed(42)


def test_a_checkpoint_never_takes_the_place_of_a_later_one(folder: Folder) -> None:
    assert folder.checkpoint() == (0, 0)
    folder.save(20, undisturbed(20))
    folder.save(10, undisturbed(10))
    assert folder.checkpoint() == (20, undisturbed(20))


def test_steps_that_are_taken_again_are_counted(folder: Folder) -> None:
    for life, steps in {"first": (0, 1, 2, 3), "second": (0, *range(1, 13)), "third": (10, 11)}.items():
        for step in steps:
            folder.note(life, step)
    assert folder.repeated() == [3, 2]


def test_the_last_step_of_one_who_was_cut_off_does_not_count(folder: Folder) -> None:
    for life, step in [("first", 0), ("first", 1), ("second", 0), ("first", 2), ("second", 1)]:
        folder.note(life, step)
    assert folder.repeated() == [1]
