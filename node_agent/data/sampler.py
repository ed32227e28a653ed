"""A sampler whose global batches are the same with any number of ranks."""

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from node_agent.data import words
from node_agent.data.order import Shuffled, order_of
from node_agent.data.rank import DataRank, at_least

Batch = TypeVar("Batch")


class ElasticSampler:
    """Sampler of this rank's share of each global batch, for `DataLoader(..., batch_sampler=ElasticSampler(...))`.

    The order of an epoch depends on `length`, `seed` and the epoch's number only. Each iteration is an epoch, or after
    loading a state the rest of its epoch. Every rank gets the same number of batches.

    `length`: number of samples of the data set. `batch_size`: number of samples of a global batch, shared by all ranks.
    With `batch_size=32 * world_size` each rank has 32, at any world size.

    `rank` and `world_size`: by default those of the environment (`RANK`, `WORLD_SIZE`), else 0 and 1.

    `shuffle`: whether each epoch has another random order. `seed`: number that selects the random orders.

    `drop_last`: leave out the last global batch if it is smaller than the others. By default it is dealt as well. If it
    has fewer samples than there are ranks, the other ranks repeat one, with the weight 0 (see `ElasticLoader.weight`).

    The loader keeps the state: `ElasticLoader`, or torchdata's `StatefulDataLoader`. A sampler cannot know which of its
    batches the training loop has received.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        own = DataRank.of(rank, world_size)
        at_least("length", length, 1)
        if batch_size < own.world_size:
            raise ValueError(words.fewer_samples_than_ranks(batch_size, own.world_size))
        if drop_last and length < batch_size:
            raise ValueError(words.no_full_batch(length, batch_size))
        self.length, self.batch_size = length, batch_size
        self.rank, self.world_size = own.rank, own.world_size
        self.seed, self.shuffle, self.drop_last = seed, shuffle, drop_last
        self.weight = 1.0
        self._epoch = self._samples = 0

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch."""
        return self.length // self.batch_size if self.drop_last else -(-self.length // self.batch_size)

    def __iter__(self) -> "Batches":
        return Batches(self)

    @property
    def position(self) -> tuple[int, int]:
        """Epoch in which the next iteration begins, and the number of its samples that all ranks together have had."""
        return (self._epoch, self._samples) if self.end(self._samples) > self._samples else (self._epoch + 1, 0)

    def move_to(self, epoch: int, samples: int) -> None:
        """Let the next iteration begin here."""
        self._epoch, self._samples = epoch, samples

    def end(self, start: int) -> int:
        """Return the place after the global batch that begins at `start`, or `start` if there is no further batch."""
        end = min(start + self.batch_size, self.length)
        return start if self.drop_last and end < start + self.batch_size else end

    def share(self, start: int) -> range:
        """Return the places of this rank's samples in the global batch that begins at `start`. It may be empty."""
        return range(start + self.rank, self.end(start), self.world_size)

    def order(self, epoch: int) -> Shuffled | range:
        return order_of(self.length, self.seed, epoch, self.shuffle)

    def follow(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches of a loader that uses this sampler, and advance its position with each."""
        epoch, samples = self.position
        for batch in batches:
            start, samples = samples, self.end(samples)
            self.weight = len(self.share(start)) * self.world_size / (samples - start)
            self.move_to(epoch, samples)  # also back: a loader that prefetches ends its iteration early
            yield batch

    def state_at(self, epoch: int, samples: int) -> dict[str, Any]:
        position = {"epoch": epoch, "samples": samples}
        return {"length": self.length, "shuffle": self.shuffle, "seed": self.seed, **position}

    def saved(self) -> dict[str, Any]:
        return self.state_at(*self.position)

    def resume(self, state: dict[str, Any]) -> None:
        for name in ("length", "shuffle"):
            if state[name] != getattr(self, name):
                raise ValueError(words.another_data_set(name, state[name], getattr(self, name)))
        self.seed = state["seed"]
        self.move_to(state["epoch"], state["samples"])


class Batches:
    """Iterator of an epoch's shares. Its state counts the batches drawn, as `StatefulDataLoader` wants it."""

    def __init__(self, sampler: ElasticSampler) -> None:
        self._sampler = sampler
        self._begin(*sampler.position)

    def _begin(self, epoch: int, samples: int) -> None:
        self._epoch, self._samples, self._order = epoch, samples, self._sampler.order(epoch)

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> list[int]:
        start, end = self._samples, self._sampler.end(self._samples)
        if end == start:
            self._sampler.move_to(self._epoch, start)
            raise StopIteration
        self._samples = end
        return [self._order[place] for place in self._sampler.share(start) or (start,)]

    def state_dict(self) -> dict[str, Any]:
        return self._sampler.state_at(self._epoch, self._samples)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sampler.resume(state)
        self._begin(state["epoch"], state["samples"])
