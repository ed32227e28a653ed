"""An iterable data set of shards, each of which one rank reads at a time."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from node_agent.data import words
from node_agent.data.order import order_of
from node_agent.data.rank import DataRank, at_least

Shard = TypeVar("Shard")
Sample = TypeVar("Sample")
Batch = TypeVar("Batch")

ENDED = -1
"""Position of a shard that has been read to its end."""
_NOTHING = object()


class Placed(NamedTuple):
    """A sample, and the position of its shard after it."""

    sample: Any
    shard: int
    position: int


class ElasticShards(Generic[Shard, Sample]):
    """Iterable data set that deals shards to the ranks and to the processes of a `DataLoader`.

    Derive a class from this one and from torch's `IterableDataset`. Define `read(shard, start)`, which returns the
    samples of a shard without the first `start` ones, always in the same order. Wrap its `DataLoader` in an
    `ElasticLoader`.

    Each epoch reads every shard once. When training continues with another number of ranks, the unfinished shards are
    dealt again. Each is read from its position on. Ranks can have different numbers of batches.

    `shards`: names, paths or other objects, in the same order on every rank. `rank` and `world_size`: by default those
    of the environment (`RANK`, `WORLD_SIZE`), else 0 and 1. `shuffle`: whether each epoch has another random order of
    the shards. `seed`: number that selects the random orders.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        *,
        rank: int | None = None,
        world_size: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        own = DataRank.of(rank, world_size)
        at_least("the number of shards", len(shards), 1)
        self.shards, self.seed, self.shuffle = shards, seed, shuffle
        self.rank, self.world_size = own.rank, own.world_size
        self.weight = 1.0
        self.is_counted = False
        self._epoch, self._is_exhausted = 0, False
        self._positions: dict[int, int] = {}

    def read(self, shard: Shard, start: int) -> Iterable[Sample]:
        """Return the samples of a shard without the first `start` ones, always in the same order."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        number, processes = _loader_process()
        for shard in self._mine()[number::processes]:
            yield from self._read_on(shard)

    def _mine(self) -> list[int]:
        count = len(self.shards)
        order = order_of(count, self.seed, self._epoch, self.shuffle)
        rest = [shard for shard in map(order.__getitem__, range(count)) if self._positions.get(shard) != ENDED]
        return rest[self.rank :: self.world_size]

    def _read_on(self, shard: int) -> Iterator[Any]:
        """Yield the rest of a shard, one sample late: the last one is known only then."""
        position = self._positions.get(shard, 0)
        held: Any = _NOTHING
        for sample in self.read(self.shards[shard], position):
            if held is not _NOTHING:
                position += 1
                yield self._placed(held, shard, position)
            held = sample
        if held is not _NOTHING:
            yield self._placed(held, shard, ENDED)

    def _placed(self, sample: Sample, shard: int, position: int) -> Any:
        return Placed(sample, shard, position) if self.is_counted else sample

    @property
    def position(self) -> tuple[int, dict[int, int]]:
        """Epoch in which the next iteration begins, and the position of each shard that this rank knows."""
        ended = sum(position == ENDED for position in self._positions.values())
        if self._is_exhausted or ended == len(self.shards):
            return self._epoch + 1, {}
        return self._epoch, self._positions

    def follow(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a loader that uses these shards, and advance their positions with each."""
        self._epoch, self._positions = self.position
        self._is_exhausted = False
        for positions, batch in batches:
            self._positions.update(positions)
            yield batch
        self._is_exhausted = True

    def saved(self) -> dict[str, Any]:
        begun = {shard: position for shard, position in self._positions.items() if position != ENDED}
        return {
            "shards": len(self.shards),
            "shuffle": self.shuffle,
            "seed": self.seed,
            "epoch": self._epoch,
            "ended": sorted(self._positions.keys() - begun.keys()),
            "begun": [list(each) for each in sorted(begun.items())],
        }

    def resume(self, state: dict[str, Any]) -> None:
        for name, here in (("shards", len(self.shards)), ("shuffle", self.shuffle)):
            if state[name] != here:
                raise ValueError(words.another_data_set(name, state[name], here))
        self.seed, self._epoch, self._is_exhausted = state["seed"], state["epoch"], False
        self._positions = dict(state["begun"]) | dict.fromkeys(state["ended"], ENDED)


class Counted:
    """Collate function whose batches come with the positions of their shards."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, placed: Any) -> tuple[dict[int, int], Any]:
        if isinstance(placed, Placed):  # batch_size=None
            return {placed.shard: placed.position}, self._collate(placed.sample)
        return {each.shard: each.position for each in placed}, self._collate([each.sample for each in placed])


def _loader_process() -> tuple[int, int]:
    """Return the index of this process among those of a loader, and their number. Such a process has loaded torch."""
    data: Any = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data else None
    return (info.id, info.num_workers) if info else (0, 1)
