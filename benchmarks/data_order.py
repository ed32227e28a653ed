"""The order of an epoch's samples: how long it takes to begin an epoch, and to give each sample of it."""

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice

from benchmarks.launchers import OURS, Plan, torch_is_installed
from benchmarks.results import Row
from benchmarks.scenario import Subject, once, take_turns
from node_agent.data import ElasticSampler

REPEAT = 5
LENGTHS = (10**6, 10**7)
RANKS, GIVEN = 8, 100_000
"""Number of ranks that share an epoch, and samples that are given to one of them after the first."""
TORCHS = "DistributedSampler"
Order = Callable[[int], Iterable[int]]


def measure(plan: Plan) -> list[Row]:
    """Measure the shuffled order of a rank, beside torch's own sampler."""
    orders: dict[str, Order] = {OURS: _ours}
    if torch_is_installed():
        orders[TORCHS] = _torchs
    return [row for length in LENGTHS for row in _of_length(plan, length, orders)]


def _of_length(plan: Plan, length: int, orders: dict[str, Order]) -> Iterator[Row]:
    for what, sample in {"first sample": _first_s, "each further sample": _each_s}.items():
        subjects = [
            Subject(name, once(partial(sample, order, length)), min(plan.repeat, REPEAT))
            for name, order in orders.items()
        ]
        for name, taken in take_turns(subjects, warm_up=True).items():
            title = f"shuffled epoch of {length:.0e} samples, {what}".replace("e+0", "e")
            yield Row(measurement=title, subject=name, unit="s", samples=taken.samples, trouble=taken.trouble)


def _first_s(order: Order, length: int) -> float:
    began_s = time.process_time()
    next(iter(order(length)))
    return time.process_time() - began_s


def _each_s(order: Order, length: int) -> float:
    given = iter(order(length))
    next(given)
    began_s = time.process_time()
    count = sum(1 for _ in islice(given, GIVEN))
    return (time.process_time() - began_s) / count


def _ours(length: int) -> Iterator[int]:
    for batch in ElasticSampler(length, 32 * RANKS, rank=0, world_size=RANKS):
        yield from batch


def _torchs(length: int) -> Iterable[int]:
    from torch.utils.data import DistributedSampler

    return DistributedSampler(range(length), num_replicas=RANKS, rank=0)
