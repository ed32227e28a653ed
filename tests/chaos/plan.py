"""Plan of actions, their order, and the faults that accompany them: determined by the seed."""

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tests.chaos.actions import ACTIONS, Action
from tests.chaos.monkey import Act

FAULT_LIKELIHOOD = 0.6
PARTS = ("disk", "etcd", "proxy", "names")
"""Parts that some fleets have and others lack. An action on such a part names it."""


@dataclass(frozen=True)
class Step:
    """One action. `seed` determines its open choices, such as the node."""

    number: int
    action: Action
    fault: Act | None
    seed: str

    def __str__(self) -> str:
        beside = f", beside: {self.fault.__name__.replace('_', ' ')}" if self.fault else ""
        return f"{self.number}. {self.action.name}{beside}"


def plan(seed: int, parts: Collection[str] = PARTS) -> Iterator[Step]:
    """Yield steps forever. Every action comes once before any repeats, except those on parts that the fleet lacks."""
    lacking = [part for part in PARTS if part not in parts]
    return (step for step in _plan(seed) if not any(part in str(step) for part in lacking))


def _plan(seed: int) -> Iterator[Step]:
    chance = random.Random(f"plan {seed}")
    number = 0
    while True:
        for action in chance.sample(ACTIONS, len(ACTIONS)):
            number += 1
            fault = chance.choice(action.faults) if chance.random() < FAULT_LIKELIHOOD else None
            yield Step(number, action, fault, f"{seed}/{number}")
