"""With torch's loaders, whose processes prefetch: 4 ranks, then 3, 5 and 2, after crashes between checkpoints."""

import io
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

from node_agent.data import ElasticLoader, ElasticSampler, ElasticShards, merge_states
from tests.support.lazy_modules import LazyModule, need

torch, data, stateful = LazyModule("torch"), LazyModule("torch.utils.data"), LazyModule("torchdata.stateful_dataloader")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")]

SAMPLES, BATCH = 50, 8
EPOCH_STEPS = 7
EPOCHS = 2
WORLDS = ((4, 3, 2), (3, 4, 3), (5, 5, 4), (2, 100, 1))
"""Ranks, steps until the crash, and steps between checkpoints."""


def saved_and_loaded(state: Any) -> Any:
    """Return the state as torch restores it from a checkpoint without code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def plain(sampler: ElasticSampler, processes: int) -> Any:
    return ElasticLoader(data.DataLoader(range(SAMPLES), batch_sampler=sampler, num_workers=processes))


def torchdatas(sampler: ElasticSampler, processes: int) -> Any:
    need("torchdata")
    return stateful.StatefulDataLoader(range(SAMPLES), batch_sampler=sampler, num_workers=processes)


def around_torchdatas(sampler: ElasticSampler, processes: int) -> Any:
    return ElasticLoader(torchdatas(sampler, processes))


@pytest.mark.parametrize(
    ("make", "processes"),
    [(plain, 0), (plain, 2), (torchdatas, 0), (torchdatas, 2), (around_torchdatas, 0)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_every_sample_comes_once_an_epoch(make: Callable[[ElasticSampler, int], Any], processes: int) -> None:
    saved: tuple[Any, list[list[int]]] = None, []
    for world_size, steps, every in WORLDS:
        samplers = [ElasticSampler(SAMPLES, BATCH, rank=rank, world_size=world_size) for rank in range(world_size)]
        loaders = [make(sampler, processes) for sampler in samplers]
        state, trained = saved[0], list(saved[1])
        for loader in loaders if state else ():
            loader.load_state_dict(saved_and_loaded(state))
        for step, shares in enumerate(islice(epochs(loaders, len(trained) // EPOCH_STEPS), steps), 1):
            trained.append(sorted({sample for share in shares for sample in share.tolist()}))
            if step % every == 0:
                saved = loaders[0].state_dict(), list(trained)
        del loaders
    undisturbed = ElasticSampler(SAMPLES, BATCH, rank=0, world_size=1)
    assert trained == [sorted(batch) for _ in range(EPOCHS) for batch in undisturbed]
    assert Counter(sample for batch in trained for sample in batch) == dict.fromkeys(range(SAMPLES), EPOCHS)


def test_processes_that_outlive_an_epoch_begin_the_next_one() -> None:
    sampler = ElasticSampler(SAMPLES, BATCH, rank=0, world_size=1)
    loader = ElasticLoader(
        data.DataLoader(range(SAMPLES), batch_sampler=sampler, num_workers=1, persistent_workers=True)
    )
    undisturbed = ElasticSampler(SAMPLES, BATCH, rank=0, world_size=1)
    assert [batch.tolist() for _ in range(2) for batch in loader] == [*undisturbed, *undisturbed]


def epochs(loaders: list[Any], begin: int) -> Iterator[tuple[Any, ...]]:
    for _ in range(begin, EPOCHS):
        yield from zip(*loaders, strict=True)


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("batches", [EPOCH_STEPS, EPOCH_STEPS + 1])
def test_torchdatas_state_at_an_epochs_end_is_the_next_epoch(processes: int, batches: int) -> None:
    """`batches`: the loop ends in the last batch's step, or after the loader has said that there is no more."""
    before = torchdatas(ElasticSampler(SAMPLES, BATCH, rank=0, world_size=1), processes)
    for _ in zip(range(batches), before, strict=False):
        state = before.state_dict()
    state = before.state_dict()
    after = torchdatas(ElasticSampler(SAMPLES, BATCH, rank=0, world_size=1), processes)
    after.load_state_dict(state)
    rest = [batch.tolist() for _ in range(2) for batch in after]
    sampler = ElasticSampler(SAMPLES, BATCH, rank=0, world_size=1)
    expected = [list(sampler) for _ in range(3)]
    assert rest[:EPOCH_STEPS] == expected[1]
    assert rest[EPOCH_STEPS:] == (expected[2] if batches > EPOCH_STEPS else [])


# Shards.


def shards_of(rank: int, world_size: int) -> Any:
    class Numbers(ElasticShards[int, int], data.IterableDataset):
        """Each shard is some consecutive numbers."""

        def read(self, shard: int, start: int) -> Iterator[int]:
            return iter(range(10 * shard + start, 10 * shard + 3 + shard % 5))

    return Numbers(range(11), rank=rank, world_size=world_size)


@pytest.mark.parametrize(
    ("is_torchdatas", "processes", "batch_size"), [(False, 0, 3), (False, 2, 3), (False, 2, None), (True, 0, 3)]
)
def test_every_sample_of_every_shard_comes_once_an_epoch(
    is_torchdatas: bool, processes: int, batch_size: int | None
) -> None:
    if is_torchdatas:
        need("torchdata")
    make = stateful.StatefulDataLoader if is_torchdatas else data.DataLoader
    saved: tuple[Any, list[int]] = None, []
    for world_size, steps, every in WORLDS:
        sets = [shards_of(rank, world_size) for rank in range(world_size)]
        loaders = [ElasticLoader(make(each, batch_size=batch_size, num_workers=processes)) for each in sets]
        state, trained = saved[0], list(saved[1])
        for loader in loaders if state else ():
            loader.load_state_dict(saved_and_loaded(state))
        for step, batches in enumerate(islice(steps_of(loaders), steps), 1):
            trained += [sample for batch in batches for sample in torch.as_tensor(batch).reshape(-1).tolist()]
            if step % every == 0:
                saved = merge_states([loader.state_dict() for loader in loaders]), list(trained)
    everything = [10 * shard + place for shard in range(11) for place in range(3 + shard % 5)]
    assert Counter(trained) == dict.fromkeys(everything, EPOCHS)


def steps_of(loaders: list[ElasticLoader]) -> Iterator[list[Any]]:
    while loaders[0].epoch < EPOCHS:
        running = [iter(loader) for loader in loaders]
        while batches := [batch for each in running for batch in islice(each, 1)]:
            yield batches
