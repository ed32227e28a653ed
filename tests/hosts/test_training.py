"""The final values show whether a step was lost."""

from pathlib import Path

import pytest

from tests.hosts.training import Folder, learn, undisturbed


def test_a_step_left_out_or_taken_twice_shows() -> None:
    assert [learn(undisturbed(before), 42) == undisturbed(42) for before in (40, 41, 42)] == [False, True, False]


def test_a_checkpoint_never_takes_the_place_of_a_later_one(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert folder.checkpoint() == (0, 0)
    folder.save(20, undisturbed(20))
    folder.save(10, undisturbed(10))
    assert folder.checkpoint() == (20, undisturbed(20))


@pytest.mark.parametrize(
    ("steps", "repeated"),
    [
        ([*(("first", step) for step in range(4)), ("second", 0), ("second", 12), ("third", 10)], [3, 2]),
        ([("first", 0), ("first", 1), ("second", 0), ("first", 2), ("second", 1)], [1]),  # it was cut off
        ([("first", 9), ("second", 10), ("second", 11), ("third", 13)], [-1, -2]),  # saved, and not noted; left out
    ],
)
def test_steps_that_are_taken_again_are_counted(
    tmp_path: Path, steps: list[tuple[str, int]], repeated: list[int]
) -> None:
    folder = Folder(tmp_path)
    for attempt, step in steps:
        folder.note(attempt, step)
    assert folder.repeated() == repeated
