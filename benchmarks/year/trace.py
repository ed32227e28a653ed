"""Trace: faults of a real cluster, and the faults that another number of nodes would have had, by a seed.

The original has bursts (gaps with a coefficient of variation of 1.76) and lemons (the worst 20 servers have a quarter
of all faults). `poisson` keeps only rate, classes and times to repair; `bursty` keeps everything.
"""

import csv
import os
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from random import Random
from typing import Literal

from benchmarks.year import kinds
from benchmarks.year.kinds import Kind

DAYS, SERVERS = 348.0, 400
DAY_S = 86_400.0
ATTRIBUTION = (
    "Faults: InfiniteHBD trace (stepfun-ai/InfiniteHBD-Trace, StepFun, ACM SIGCOMM 2025, arXiv 2502.03885, Apache-2.0)."
)
LIVES = (Kind.CRASH, Kind.HANG)
"""Kinds of faults that the node and its agent survive."""
Shape = Literal["poisson", "bursty"]
SHAPES: tuple[Shape, ...] = ("bursty", "poisson")
_FILE = os.path.join(os.path.dirname(__file__), "cluster-faults.csv")


@dataclass(frozen=True, slots=True)
class TracedFault:
    """Row of the trace. Times are in days since its beginning."""

    start_day: float
    end_day: float
    server: int
    class_: str
    description: str


@dataclass(frozen=True, slots=True)
class Fault:
    """Fault of a node that begins at `at_s` and takes `repair_s` to repair."""

    at_s: float
    repair_s: float
    node: int
    kind: Kind
    stays_bad: bool
    """Whether the node stays up, but workers that start on it fail again until it is repaired."""
    hidden: float = 1.0
    """Part of all checked faults that is easier to find, from 0 to 1: checks that find more find this one."""

    @property
    def is_of_one_instant(self) -> bool:
        """Whether the node is healthy again once its workers have ended."""
        return self.kind in LIVES and not self.stays_bad


@cache
def load() -> tuple[TracedFault, ...]:
    """Return all faults of the trace, in the order of their beginning."""
    with open(_FILE, encoding="utf-8", newline="") as file:
        rows = [
            TracedFault(
                float(row["start_day"]), float(row["end_day"]), int(row["node"]), row["class"], row["description"]
            )
            for row in csv.DictReader(file)
        ]
    return tuple(sorted(rows, key=lambda row: row.start_day))


def resample(
    nodes: int, seed: int, shape: Shape = "bursty", days: float = DAYS, *, first_day: float = 0.0
) -> list[Fault]:
    """Return the faults of `nodes` nodes in `days` days of a year in order; the same for the same arguments.

    Times are since the first of these days. A fault that began before, and is not repaired by then, has a negative
    time.
    """
    rng = Random(f"{seed} {nodes} {shape}")
    times = _TIMES[shape](nodes, rng)
    pick = _EvenNodes(nodes, rng) if shape == "poisson" else _Lemons(nodes, rng)
    hiding = Random(f"{seed} {nodes} {shape} hidden")
    faults = [_fault(at - first_day, pick(), rng, hiding.random()) for at in times]
    return [fault for fault in faults if fault.at_s < days * DAY_S and fault.at_s + fault.repair_s > 0]


def _fault(at_day: float, node: int, rng: Random, hidden: float) -> Fault:
    """Return a fault with the class and repair of a random row of the trace."""
    row = rng.choice(load())
    kind = kinds.draw(row.class_, row.description, rng)
    lives = kind in LIVES
    repair_s = max(row.end_day - row.start_day, 1e-3) * DAY_S
    stays_bad = lives and row.class_ in kinds.STAYS_BAD
    hidden = hidden if kinds.is_checked(row.description) else 1.0
    return Fault(at_day * DAY_S, repair_s, node, kind, stays_bad, hidden)


def _poisson(nodes: int, rng: Random) -> list[float]:
    """Return the times of a Poisson process with the trace's rate per node."""
    rate = len(load()) / SERVERS * nodes / DAYS
    times, at = [], rng.expovariate(rate)
    while at < DAYS:
        times.append(at)
        at += rng.expovariate(rate)
    return times


def _bursty(nodes: int, rng: Random) -> list[float]:
    """Return the times of as many copies of the cluster as needed, each shifted around the year.

    This keeps the bursts. The last copy keeps each fault with the probability of its share of servers.
    """
    times = []
    for number in range(-(-nodes // SERVERS)):
        share = min(1.0, nodes / SERVERS - number)
        shift = rng.uniform(0.0, DAYS)
        times += [(row.start_day + shift) % DAYS for row in load() if rng.random() < share]
    return sorted(times)


_TIMES = {"poisson": _poisson, "bursty": _bursty}


class _EvenNodes:
    """Random nodes, each with the same probability."""

    def __init__(self, nodes: int, rng: Random) -> None:
        self._nodes, self._rng = nodes, rng

    def __call__(self) -> int:
        return self._rng.randrange(self._nodes)


class _Lemons:
    """Nodes that fail as unevenly as the trace's servers: each has the number of faults of a random server."""

    def __init__(self, nodes: int, rng: Random) -> None:
        counts = Counter(row.server for row in load())
        servers = [counts.get(server, 0) for server in range(SERVERS)]
        self._weights = list(accumulate(rng.choice(servers) for _ in range(nodes)))
        self._nodes, self._rng = range(nodes), rng

    def __call__(self) -> int:
        (node,) = self._rng.choices(self._nodes, cum_weights=self._weights)
        return node
