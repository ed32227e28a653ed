"""What most measurements are: one thing that happens, under each launcher in turn, beside its physical floor."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.floors import Floor
from benchmarks.launchers import TORCHRUN_ETCD, Launcher, NodeAgent, Plan
from benchmarks.results import FLOOR, Row
from benchmarks.turns import Subject, Taken, once, take_turns

OURS_PLAIN = NodeAgent()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """`sample` takes a launcher and how many samples are wanted, and brings one or more. Seconds, if no other `unit`.

    `besides`: further forms of ours, without a bar. `slow`: the forms of torchrun that wait for timers for so long that
    they are left to `timers`.
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
    cap: float | None = None, *, at_least: bool = False,
) -> list[Row]:  # fmt: skip
    """One for each subject, also for what cannot run here. `bars`: by subject."""
    missing = {TORCHRUN_ETCD.name: Taken(trouble=plan.no_etcd)} if plan.torchrun and plan.no_etcd else {}
    return [
        Row(
            measurement=measurement, subject=subject, unit=unit, samples=each.samples, bar=bars.get(subject),
            at_least=at_least, cap=cap, trouble=each.trouble, is_absent=subject in missing,
        )
        for subject, each in {**taken, **missing}.items()
    ]  # fmt: skip
