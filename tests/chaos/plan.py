"""Which deeds, in which order, beside which nuisances: all of it from the seed."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.chaos.deeds import DEEDS, Act, Deed

NUISANCE_LIKELIHOOD = 0.6


@dataclass(frozen=True)
class Step:
    """One deed. `seed` decides what it leaves open, such as which node it befalls."""

    number: int
    deed: Deed
    nuisance: Act | None
    seed: str

    def __str__(self) -> str:
        beside = f", beside: {self.nuisance.__name__.replace('_', ' ')}" if self.nuisance else ""
        return f"{self.number}. {self.deed.name}{beside}"


def plan(seed: int, *, has_disk: bool = True) -> Iterator[Step]:
    """Endless; every deed once before any comes again. Without a disk of the server's, nothing that befalls it."""
    return (step for step in _plan(seed) if has_disk or "disk" not in str(step))


def _plan(seed: int) -> Iterator[Step]:
    chance = random.Random(f"plan {seed}")
    number = 0
    while True:
        for deed in chance.sample(DEEDS, len(DEEDS)):
            number += 1
            nuisance = chance.choice(deed.nuisances) if chance.random() < NUISANCE_LIKELIHOOD else None
            yield Step(number, deed, nuisance, f"{seed}/{number}")
