"""Data in its place: any number of attempts, each with its number of ranks, which end between checkpoints.

The model is a list of the samples of each epoch, cut into batches. Without what a crash takes back, the ranks train on
that list: each sample once an epoch, in the same order, in the same batches.
"""

import pickle
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.data import ElasticLoader, ElasticSampler, ElasticShards, merge_states
from node_agent.data import shards as shards_module
from node_agent.data.order import order_of
from tests.unit.node_agent.data.loaders import Ahead

EPOCHS = 3
LONG = 1_000
"""More steps than any story has."""


@dataclass(frozen=True)
class Attempt:
    """Attempt to train, until it crashes."""

    world_size: int
    steps: int
    saves_every: int
    prefetched: int
    processes: int
    spare: int
    """Samples by which a global batch is larger than the number of ranks."""


attempts = st.builds(
    Attempt,
    world_size=st.integers(1, 6),
    steps=st.integers(0, 9),
    saves_every=st.integers(1, 4),
    prefetched=st.integers(0, 5),
    processes=st.integers(1, 3),
    spare=st.integers(0, 3),
)
stories = st.lists(attempts, max_size=5)
last_attempts = attempts.map(lambda attempt: replace(attempt, steps=LONG))


# Data sets with a length.


@given(length=st.integers(1, 40), seed=st.integers(0, 99), shuffle=st.booleans(), drops=st.booleans(),
       size=st.none() | st.integers(6, 12), story=stories, last=last_attempts)  # fmt: skip
def test_every_sample_is_trained_on_once_an_epoch_and_in_order(
    length: int, seed: int, shuffle: bool, drops: bool, size: int | None, story: list[Attempt], last: Attempt
) -> None:
    """`size`: size of all global batches, None if each attempt has its own."""
    saved: tuple[Any, list[list[int]], tuple[int, int]] = (None, [], (0, 0))
    for attempt in [*story, last]:
        batch_size = (
            min(size or attempt.world_size + attempt.spare, length)
            if drops
            else size or attempt.world_size + attempt.spare
        )
        world_size = min(attempt.world_size, batch_size)
        loaders = [
            ElasticLoader(
                Ahead(
                    ElasticSampler(length, batch_size, rank=rank, world_size=world_size, seed=seed, shuffle=shuffle,
                                   drop_last=drops),
                    attempt.prefetched,
                )
            )
            for rank in range(world_size)
        ]  # fmt: skip
        state, trained, place = saved
        trained = list(trained)
        for loader in loaders if state else ():
            loader.load_state_dict(pickle.loads(pickle.dumps(state)))
        for step, shares in enumerate(islice(steps_of(loaders), attempt.steps), 1):
            weighted = zip(loaders, shares, strict=True)
            trained.append(sorted(sample for loader, share in weighted if loader.weight for sample in share))
            expected, place = model(length, seed, shuffle, drops, batch_size, place)
            assert trained[-1] == sorted(expected)
            assert sum(loader.weight for loader in loaders) == pytest.approx(world_size)
            if step % attempt.saves_every == 0:
                saved = merge_states([loader.state_dict() for loader in loaders]), list(trained), place
    assert loaders[0].epoch == EPOCHS
    if not drops:
        assert Counter(sample for batch in trained for sample in batch) == dict.fromkeys(range(length), EPOCHS)


def steps_of(loaders: list[ElasticLoader]) -> Iterator[Any]:
    while loaders[0].epoch < EPOCHS:
        yield from zip(*loaders, strict=True)


def model(
    length: int, seed: int, shuffle: bool, drops: bool, size: int, place: tuple[int, int]
) -> tuple[list[int], tuple[int, int]]:
    """Return the samples of the next global batch, and the place after it."""
    epoch, start = place
    if drops and start + size > length:  # the size was another one when this place was reached
        epoch, start = epoch + 1, 0
    order = order_of(length, seed, epoch, shuffle)
    end = min(start + size, length)
    is_last = end == length or (drops and end + size > length)
    return [order[index] for index in range(start, end)], (epoch + 1, 0) if is_last else (epoch, end)


# Shards.


class Numbers(ElasticShards[int, tuple[int, int]]):
    """Each shard is a number of samples, which know their shard and their place."""

    def read(self, shard: int, start: int) -> Iterator[tuple[int, int]]:
        return iter([(shard // 100, place) for place in range(start, shard % 100)])


class ProcessesAhead:
    """A loader with processes, each of which has a copy of the data set and is some batches ahead."""

    persistent_workers = False

    def __init__(self, dataset: Numbers, batch_size: int, processes: int, ahead: int) -> None:
        self.dataset, self.collate_fn = dataset, list
        self._batch_size, self._processes, self._ahead = batch_size, processes, ahead

    def __iter__(self) -> Iterator[Any]:
        drawn = self._drawn([iter(pickle.loads(pickle.dumps(self.dataset))) for _ in range(self._processes)])
        held = deque(islice(drawn, self._ahead))
        while held.extend(islice(drawn, 1)) or held:
            yield held.popleft()

    def _drawn(self, samples: list[Iterator[Any]]) -> Iterator[Any]:
        running = list(enumerate(samples))
        while running:
            for number, each in list(running):
                shards_module._loader_process = lambda number=number: (number, self._processes)
                if batch := list(islice(each, self._batch_size)):
                    yield pickle.loads(pickle.dumps(self.collate_fn))(batch)
                else:
                    running.remove((number, each))


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    shuffle=st.booleans(),
    story=stories,
    last=last_attempts,
)
def test_every_sample_of_every_shard_is_trained_on_once_an_epoch(
    lengths: list[int], shuffle: bool, story: list[Attempt], last: Attempt
) -> None:
    shards = [100 * number + length for number, length in enumerate(lengths)]
    original = shards_module._loader_process
    saved: tuple[Any, list[list[tuple[int, int]]]] = (None, [[] for _ in range(EPOCHS)])
    for attempt in [*story, last]:
        loaders = [
            ElasticLoader(
                ProcessesAhead(
                    Numbers(shards, rank=rank, world_size=attempt.world_size, shuffle=shuffle),
                    attempt.spare + 1, attempt.processes, attempt.prefetched,
                )
            )
            for rank in range(attempt.world_size)
        ]  # fmt: skip
        state, trained = saved[0], [list(epoch) for epoch in saved[1]]
        for loader in loaders if state else ():
            loader.load_state_dict(pickle.loads(pickle.dumps(state)))
        for step, (epoch, batches) in enumerate(islice(rounds_of(loaders), attempt.steps), 1):
            trained[epoch] += [sample for batch in batches for sample in batch]
            if step % attempt.saves_every == 0:
                saved = merge_states([loader.state_dict() for loader in loaders]), [list(each) for each in trained]
    shards_module._loader_process = original
    everything = {(number, place) for number, length in enumerate(lengths) for place in range(length)}
    for epoch in trained:
        assert len(epoch) == len(everything) and set(epoch) == everything
        for number in range(len(lengths)):
            places = [place for shard, place in epoch if shard == number]
            assert places == sorted(places)


def rounds_of(loaders: list[ElasticLoader]) -> Iterator[tuple[int, list[Any]]]:
    """Yield the batches of each step. A rank whose shards have ended waits for the others."""
    while (epoch := loaders[0].epoch) < EPOCHS:
        running = [iter(loader) for loader in loaders]
        while batches := [batch for each in running for batch in islice(each, 1)]:
            yield epoch, batches
