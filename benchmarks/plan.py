"""How often, and of whom, samples are taken."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.launchers import Launcher, NodeAgent, Torchrun


@dataclass(frozen=True, slots=True)
class Plan:
    """What the command line asks for."""

    repeat: int
    torchrun: bool
    """Whether torchrun is measured too."""
    slow_torchrun: bool
    """Whether it is also where that takes minutes."""

    def launchers(self) -> list[Launcher]:
        return [NodeAgent(), Torchrun()] if self.torchrun else [NodeAgent()]


def interleaved(
    subjects: Mapping[str, Callable[[], float]], repeat: int, *, warm_up: bool = False
) -> dict[str, list[float]]:
    """The samples of each subject, taken in turns. `warm_up`: one more turn before, which does not count."""
    samples: dict[str, list[float]] = {name: [] for name in subjects}
    for turn in range(-warm_up, repeat):
        for name, sample in subjects.items():
            value = sample()
            if turn >= 0:
                samples[name].append(value)
    return samples
