"""Shards that are dealt to ranks. tests/property/test_data.py tries whole stories."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from node_agent.data import ElasticLoader, ElasticShards, merge_states, words


class Letters(ElasticShards[str, str]):
    """Each shard is a word."""

    def read(self, shard: str, start: int) -> Iterator[str]:
        return iter(shard[start:])


class OneByOne:
    """A loader without processes."""

    collate_fn = "".join
    persistent_workers = False

    def __init__(self, dataset: Letters) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return (self.collate_fn([each]) for each in self.dataset)


def loader_of(shards: Sequence[str], rank: int = 0, world_size: int = 1, **how: bool) -> ElasticLoader:
    return ElasticLoader(OneByOne(Letters(shards, rank=rank, world_size=world_size, **how)))


def test_shards_are_dealt_to_the_ranks() -> None:
    assert ["".join(loader_of(["ab", "cd", "ef"], rank, 2, shuffle=False)) for rank in range(2)] == ["abef", "cd"]


def test_each_epoch_has_another_order_of_shards() -> None:
    loader = loader_of("abcdefgh")
    first, second = "".join(loader), "".join(loader)
    assert sorted(first) == sorted(second) == list("abcdefgh") and first != second
    assert loader.epoch == 2


def test_without_a_loader_around_it_yields_the_samples() -> None:
    assert "".join(Letters(["ab", "", "c"], rank=0, world_size=1, shuffle=False)) == "abc"


def test_the_state_has_the_position_of_each_shard_that_was_begun() -> None:
    loader = loader_of(["ab", "", "cde", "f"], shuffle=False)
    letters = iter(loader)
    assert [next(letters) for _ in range(3)] == ["a", "b", "c"]
    position = {"shards": 4, "shuffle": False, "seed": 0, "epoch": 0, "ended": [0], "begun": [[2, 1]]}
    assert loader.state_dict() == position
    again = loader_of(["ab", "", "cde", "f"], shuffle=False)
    again.load_state_dict(position)
    assert ["".join(again), again.epoch] == ["def", 1]


def test_three_ranks_continue_what_two_ranks_have_begun() -> None:
    before = [loader_of(["abc", "def", "ghi"], rank, 2, shuffle=False) for rank in range(2)]
    had = [next(letters) for letters in map(iter, before) for _ in range(2)]
    state = merge_states([loader.state_dict() for loader in before])
    after = [loader_of(["abc", "def", "ghi"], rank, 3, shuffle=False) for rank in range(3)]
    for loader in after:
        loader.load_state_dict(state)
    assert (had, list(map("".join, after))) == (["a", "b", "d", "e"], ["c", "f", "ghi"])


def test_a_shard_that_another_rank_has_ended_since_the_last_checkpoint_is_ended() -> None:
    """The rank that did not get it still has its position of that checkpoint."""
    first = loader_of(["abc", "def"], shuffle=False)
    next(iter(first))
    ranks = [loader_of(["abc", "def"], rank, 2, shuffle=False) for rank in range(2)]
    for loader in ranks:
        loader.load_state_dict(first.state_dict())
    assert ("".join(ranks[0]), next(iter(ranks[1]))) == ("bc", "d")
    merged = merge_states([loader.state_dict() for loader in ranks])
    assert (merged["ended"], merged["begun"]) == ([0], [[1, 1]])


def test_a_rank_without_shards_ends_the_epoch_with_the_others() -> None:
    loader = loader_of(["ab"], 1, 2)
    assert (loader.epoch, list(loader), loader.epoch) == (0, [], 1)


def test_states_of_different_epochs_are_refused() -> None:
    loaders = [loader_of("abcd", rank, 2) for rank in range(2)]
    for _ in range(2):
        list(loaders[0])
    with pytest.raises(ValueError) as error:
        merge_states([loader.state_dict() for loader in loaders])
    assert str(error.value) == words.ranks_disagree("epoch")


@pytest.mark.parametrize(("shards", "shuffle"), [("abc", True), ("ab", False)])
def test_the_state_of_other_shards_is_refused(shards: str, shuffle: bool) -> None:
    with pytest.raises(ValueError, match="another data set"):
        loader_of(shards, shuffle=shuffle).load_state_dict(loader_of("ab").state_dict())


def test_processes_that_outlive_an_epoch_are_refused() -> None:
    shards = Letters("ab", rank=0, world_size=1)
    with pytest.raises(ValueError) as error:
        ElasticLoader(SimpleNamespace(dataset=shards, collate_fn=list, persistent_workers=True))
    assert str(error.value) == words.PERSISTENT_WORKERS


def test_an_empty_list_of_shards_is_refused() -> None:
    with pytest.raises(ValueError) as error:
        Letters([])
    assert str(error.value) == words.too_small("the number of shards", 0, 1)
