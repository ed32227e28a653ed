"""Plan of actions, their order, and the faults that accompany them: determined by the seed."""

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tests.chaos.actions import ACTIONS, EVICTIONS, Action
from tests.chaos.fleet import EVICTED, RESTARTS
from tests.chaos.monkey import Act

FAULT_LIKELIHOOD = 0.6
NAMED = ("disk", "etcd", "proxy", "names")
"""Parts that some fleets have and others lack. An action on such a part names it."""
PARTS = (*NAMED, RESTARTS)
"""Parts of a fleet in which each of `ACTIONS` can happen."""


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
    lacking = [part for part in NAMED if part not in parts]
    actions = [*ACTIONS, *(EVICTIONS if EVICTED in parts else [])]
    for step in _plan(seed, actions):
        if not any(part in str(step) for part in lacking) and (RESTARTS in parts or not step.action.charges):
            yield step


def _plan(seed: int, actions: list[Action]) -> Iterator[Step]:
    chance = random.Random(f"plan {seed}")
    number = 0
    while True:
        for action in chance.sample(actions, len(actions)):
            number += 1
            fault = chance.choice(action.faults) if chance.random() < FAULT_LIKELIHOOD else None
            yield Step(number, action, fault, f"{seed}/{number}")
