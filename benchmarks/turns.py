"""Samples of several subjects, taken in turns, so that a busy moment of the machine hits all of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.stage import Broken

Sample = Callable[[int], list[float]]
"""One or more samples, of the so many that are still wanted."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured."""

    name: str
    sample: Sample
    repeat: int


@dataclass(slots=True)
class Taken:
    """Samples of one subject, and why there are no more of them."""

    samples: list[float] = field(default_factory=list)
    trouble: str = ""

    def lacks(self, repeat: int) -> int:
        return 0 if self.trouble else max(repeat - len(self.samples), 0)


def once(sample: Callable[[], float]) -> Sample:
    return lambda wanted: [sample()]


def take_turns(subjects: Sequence[Subject], *, warm_up: bool = False) -> dict[str, Taken]:
    """The samples by subject. One that cannot be measured is left out from then on.

    `warm_up`: one more turn before, which does not count.
    """
    taken = {subject.name: Taken() for subject in subjects}
    if warm_up:
        _turn(subjects, {name: Taken() for name in taken})
    while lacking := [subject for subject in subjects if taken[subject.name].lacks(subject.repeat)]:
        _turn(lacking, taken)
    return taken


def _turn(subjects: Sequence[Subject], taken: dict[str, Taken]) -> None:
    for subject in subjects:
        each = taken[subject.name]
        try:
            each.samples += subject.sample(each.lacks(subject.repeat))
        except (Broken, OSError) as error:
            each.trouble = str(error) or repr(error)
