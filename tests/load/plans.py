"""What happens to a run of the soak, drawn from a seed; and what must come of it."""

import random
from dataclasses import dataclass
from enum import StrEnum

MOST_DEEDS = 3


class Deed(StrEnum):
    FAIL = "a worker fails"
    DIE = "a node is lost and comes back"
    LEAVE = "a node leaves and comes back"


@dataclass(frozen=True, slots=True)
class Plan:
    """One attempt of a run. `deeds`: by round, each with the node that it happens to."""

    nodes: int
    deeds: tuple[tuple[Deed, int], ...]
    succeeds: bool
    """Else a worker fails when no restart is left."""

    @property
    def charged(self) -> int:
        """Restarts that count: those after a worker's failure."""
        return sum(deed is Deed.FAIL for deed, _ in self.deeds)


def draw(rng: random.Random) -> Plan:
    nodes = rng.randint(2, 4)
    deeds = [(rng.choice(list(Deed)), rng.randrange(nodes)) for _ in range(rng.randint(0, MOST_DEEDS))]
    return Plan(nodes, tuple(deeds), succeeds=rng.random() < 0.8)
