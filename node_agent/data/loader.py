"""A loader whose state is what the training loop has received."""

from collections.abc import Iterator, Sequence
from typing import Any

from node_agent.data import words
from node_agent.data.sampler import ElasticSampler
from node_agent.data.shards import Counted, ElasticShards


class ElasticLoader:
    """Wrapper of a `DataLoader` that counts the batches which the training loop gets.

    Batches that the loader's processes have prefetched do not count. So save the state after a step, in the same
    checkpoint as the model.

    `loader`: a `DataLoader` with an `ElasticSampler` as `batch_sampler`, or with an `ElasticShards` as `dataset`.

    Each iteration is an epoch, or after `load_state_dict` or `break` the rest of one. `len` is the number of batches of
    a whole epoch.

    - `epoch`: epoch of the next batch. After the last batch of an `ElasticSampler`'s epoch it is the next epoch.
    - `weight`: factor for the mean loss of this rank's last batch. With it, DDP's mean over the ranks is the mean over
      the samples of the global batch. It differs from 1 only if the ranks' shares differ. With an `ElasticShards` it is
      always 1.
    - `state_dict()`: position of the training loop, in numbers and lists of numbers. With an `ElasticSampler` it is the
      same on every rank. With an `ElasticShards` each rank knows only its shards, see `merge_states`.
    - `load_state_dict(state)`: continue at this position. Load the same state on every rank, even if the number of
      ranks has changed. The seed is that of the state. Raises `ValueError` if the data set is another one.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._data: ElasticSampler | ElasticShards[Any, Any]
        if isinstance(sampler := getattr(loader, "batch_sampler", None), ElasticSampler):
            self._data = sampler
        elif isinstance(shards := getattr(loader, "dataset", None), ElasticShards):
            if loader.persistent_workers:
                raise ValueError(words.PERSISTENT_WORKERS)
            if not isinstance(loader.collate_fn, Counted):
                loader.collate_fn = Counted(loader.collate_fn)
            shards.is_counted = True
            self._data = shards
        else:
            raise TypeError(words.NOT_ELASTIC)

    def __iter__(self) -> Iterator[Any]:
        return self._data.follow(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def dataset(self) -> Any:
        return self.loader.dataset

    @property
    def epoch(self) -> int:
        return self._data.position[0]

    @property
    def weight(self) -> float:
        return self._data.weight

    def state_dict(self) -> dict[str, Any]:
        return self._data.saved()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._data.resume(state)


def merge_states(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one state made of the states of all ranks, taken after the same step.

    `ElasticShards` needs it: each rank knows only the positions of its shards. Raises `ValueError` if the states are of
    different epochs or data sets.
    """
    if not states:
        raise ValueError(words.NO_STATE)
    merged = dict(states[0])
    for state in states:
        for name in (merged.keys() | state.keys()) - {"ended", "begun"}:
            if name not in state or merged.get(name) != state[name]:
                raise ValueError(words.ranks_disagree(name))
    if "ended" in merged:
        ended = {shard for state in states for shard in state["ended"]}
        begun: dict[int, int] = {}
        for shard, position in (each for state in states for each in state["begun"]):
            if shard not in ended:
                begun[shard] = max(position, begun.get(shard, 0))
        merged |= {"ended": sorted(ended), "begun": [list(each) for each in sorted(begun.items())]}
    return merged
