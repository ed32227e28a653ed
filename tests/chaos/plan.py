"""Plan of actions, their order, and the faults beside them: all of it from the seed."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.chaos.actions import ACTIONS, Action
from tests.chaos.monkey import Act

FAULT_LIKELIHOOD = 0.6


@dataclass(frozen=True)
class Step:
    """One action. `seed` decides what it leaves open, such as which node it befalls."""

    number: int
    action: Action
    fault: Act | None
    seed: str

    def __str__(self) -> str:
        beside = f", beside: {self.fault.__name__.replace('_', ' ')}" if self.fault else ""
        return f"{self.number}. {self.action.name}{beside}"


def plan(seed: int, *, has_disk: bool = True) -> Iterator[Step]:
    """Endless; every action once before any comes again. Without a disk of the server's, nothing that befalls it."""
    return (step for step in _plan(seed) if has_disk or "disk" not in str(step))


def _plan(seed: int) -> Iterator[Step]:
    chance = random.Random(f"plan {seed}")
    number = 0
    while True:
        for action in chance.sample(ACTIONS, len(ACTIONS)):
            number += 1
            fault = chance.choice(action.faults) if chance.random() < FAULT_LIKELIHOOD else None
            yield Step(number, action, fault, f"{seed}/{number}")
