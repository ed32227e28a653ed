"""Samples of several subjects, taken in turns, so that a busy moment of the machine affects all of them.

Most measurements are a `Scenario`: one kind of event, under each launcher in turn, beside its physical floor.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.launchers import TORCHRUN_ETCD, Launcher, NodeAgent, Plan
from benchmarks.results import FLOOR, Row
from benchmarks.stage import Broken

Sample = Callable[[int], list[float]]
"""Function that takes one or more samples, given how many are still wanted."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Launcher, floor or other thing that is measured."""

    name: str
    sample: Sample
    repeat: int


@dataclass(slots=True)
class Taken:
    """Samples of one subject, and the reason if there are no more."""

    samples: list[float] = field(default_factory=list)
    trouble: str = ""

    def lacks(self, repeat: int) -> int:
        return 0 if self.trouble else max(repeat - len(self.samples), 0)


def once(sample: Callable[[], float]) -> Sample:
    return lambda wanted: [sample()]


def take_turns(subjects: Sequence[Subject], *, warm_up: bool = False) -> dict[str, Taken]:
    """Return the samples by subject. One that cannot be measured is left out of later turns.

    `warm_up`: take one more turn first, which does not count.
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


@dataclass(frozen=True, slots=True)
class Floor:
    """Something that takes the same time under every launcher. `sample`: seconds."""

    name: str
    sample: Callable[[], float]


OURS_PLAIN = NodeAgent()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Measurement of one kind of event, under each launcher in turn.

    `sample` gets a launcher and the number of samples wanted, and returns one or more, in `unit`. `besides`: other
    forms of ours, without a bar. `slow`: forms of torchrun that `timers` measures, because they wait for long timers.
    """

    measurement: str
    sample: Callable[[Launcher, int], list[float]]
    bar: float
    repeat: int
    floor: Floor | None = None
    ours: NodeAgent = OURS_PLAIN
    besides: Sequence[Launcher] = ()
    torchrun_repeat: int = 3
    has_least_timers: bool = False
    slow: Sequence[str] = ()
    cap: float | None = None
    unit: str = "s"

    def measure(self, plan: Plan) -> list[Row]:
        subjects = [
            self._subject(self.ours, min(plan.repeat, self.repeat)),
            *(self._subject(launcher, min(plan.repeat, self.torchrun_repeat)) for launcher in self._others(plan)),
            *self._floors(min(plan.repeat, self.repeat)),
        ]
        return rows(plan, self.measurement, self.unit, take_turns(subjects), {self.ours.name: self.bar}, self.cap)

    def _floors(self, repeat: int) -> list[Subject]:
        return [Subject(FLOOR + self.floor.name, once(self.floor.sample), repeat)] if self.floor else []

    def _others(self, plan: Plan) -> list[Launcher]:
        forms = plan.torchruns(least_timers=self.has_least_timers)
        return [*self.besides, *(form for form in forms if form.name not in self.slow)]

    def _subject(self, launcher: Launcher, repeat: int) -> Subject:
        return Subject(launcher.name, lambda wanted: self.sample(launcher, wanted), repeat)


def rows(
    plan: Plan, measurement: str, unit: str, taken: Mapping[str, Taken], bars: Mapping[str, float],
    cap: float | None = None,
) -> list[Row]:  # fmt: skip
    """Return a row for each subject, also for those that cannot run here. `bars`: by subject."""
    missing = {TORCHRUN_ETCD.name: Taken(trouble=plan.no_etcd)} if plan.torchrun and plan.no_etcd else {}
    return [
        Row(
            measurement=measurement, subject=subject, unit=unit, samples=each.samples, bar=bars.get(subject),
            cap=cap, trouble=each.trouble, is_absent=subject in missing,
        )
        for subject, each in {**taken, **missing}.items()
    ]  # fmt: skip
