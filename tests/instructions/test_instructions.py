"""No hot path takes many more instructions than recorded."""

import pytest

from tests.instructions.count import complaints, expected, measure, why_not


@pytest.mark.timeout(300)  # twenty seconds, unless the machine is busy
@pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
def test_every_hot_path_takes_as_many_instructions_as_are_recorded() -> None:
    said = complaints(expected(), measure())
    assert not said, "\n".join(said)


def test_an_increase_is_reported_with_both_figures() -> None:
    assert complaints({"a join": 100.0, "a poll": 10.0}, {"a join": 121.0, "a poll": 11.9}) == [
        "a join takes +21% instructions: 121, not 100"
    ]


def test_a_decrease_must_be_recorded() -> None:
    (said,) = complaints({"a join": 100.0, "a poll": 10.0}, {"a join": 75.0, "a poll": 8.1})
    assert said == "a join takes -25% instructions; keep it so with python -m tests.instructions --write: 75, not 100"


def test_every_path_has_a_figure_and_every_figure_a_path() -> None:
    assert complaints({"gone": 1.0}, {"new": 1.0}) == [
        "gone is no hot path: python -m tests.instructions --write",
        "new is not recorded: python -m tests.instructions --write",
    ]
