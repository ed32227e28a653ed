"""Shares of global batches, and their weights. tests/property/test_data.py tries whole stories."""

import subprocess
import sys
from itertools import chain

import pytest

from node_agent.data import ElasticLoader, ElasticSampler, merge_states, words
from tests.unit.node_agent.data.loaders import Ahead


def shares(world_size: int, length: int = 10, **how: bool) -> list[list[list[int]]]:
    """Return what each rank gets of each batch of 4."""
    ranks = range(world_size)
    samplers = [ElasticSampler(length, 4, rank=rank, world_size=world_size, **how) for rank in ranks]
    batches = [list(batch) for batch in zip(*samplers, strict=True)]
    assert {len(sampler) for sampler in samplers} == {len(batches)}
    return batches


def test_each_rank_gets_its_share_of_each_batch() -> None:
    assert shares(2, shuffle=False) == [[[0, 2], [1, 3]], [[4, 6], [5, 7]], [[8], [9]]]


def test_shares_differ_by_one_sample_at_most() -> None:
    assert shares(3, shuffle=False)[:2] == [[[0, 3], [1], [2]], [[4, 7], [5], [6]]]


def test_a_rank_without_a_sample_of_the_last_batch_repeats_one() -> None:
    assert shares(4, shuffle=False)[2] == [[8], [9], [8], [8]]


def test_the_last_batch_can_be_dropped() -> None:
    assert shares(2, shuffle=False, drop_last=True) == [[[0, 2], [1, 3]], [[4, 6], [5, 7]]]


def test_a_global_batch_is_the_same_at_any_world_size() -> None:
    batches = [[sorted(chain(*batch)) for batch in shares(world_size, 12)] for world_size in (1, 2, 3, 4)]
    assert batches[1:] == batches[:-1]


def test_each_iteration_is_the_next_epoch_in_another_order() -> None:
    sampler = ElasticSampler(20, 20, rank=0, world_size=1)
    (first,), (second,) = sampler, sampler
    assert sorted(first) == sorted(second) == list(range(20)) and first != second


def test_seeds_are_different_orders() -> None:
    orders = {tuple(*ElasticSampler(20, 20, rank=0, world_size=1, seed=seed)) for seed in range(5)}
    assert len(orders) == 5


def test_weights_make_the_mean_over_ranks_the_mean_over_samples() -> None:
    for world_size in (1, 2, 3, 4):
        loaders = [
            ElasticLoader(Ahead(ElasticSampler(10, 4, rank=rank, world_size=world_size), 0))
            for rank in range(world_size)
        ]
        for size, batch in zip((4, 4, 2), zip(*loaders, strict=True), strict=True):
            mean = sum(loader.weight * sum(mine) / len(mine) for loader, mine in zip(loaders, batch, strict=True))
            samples = {sample for loader, mine in zip(loaders, batch, strict=True) if loader.weight for sample in mine}
            assert len(samples) == size
            assert mean / world_size == pytest.approx(sum(samples) / size)


def test_rank_and_world_size_match_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (ElasticSampler(8, 4).rank, ElasticSampler(8, 4).world_size) == (0, 1)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert list(ElasticSampler(8, 4, shuffle=False)) == [[1, 3], [5, 7]]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"length": 0}, words.too_small("length", 0, 1)),
        ({"world_size": 0}, words.too_small("world_size", 0, 1)),
        ({"rank": 2}, words.no_such_rank(2, 2)),
        ({"rank": -1}, words.no_such_rank(-1, 2)),
        ({"batch_size": 1}, words.fewer_samples_than_ranks(1, 2)),
        ({"length": 3, "drop_last": True}, words.no_full_batch(3, 4)),
    ],
)
def test_invalid_arguments_are_refused(how: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError) as error:
        ElasticSampler(**{"length": 10, "batch_size": 4, "rank": 0, "world_size": 2, **how})
    assert str(error.value) == message


# The loader.


def test_the_state_counts_what_the_loop_has_received_not_what_was_prefetched() -> None:
    loader = ElasticLoader(Ahead(ElasticSampler(12, 2, rank=0, world_size=1, shuffle=False), 5))
    batches = iter(loader)
    assert [next(batches), next(batches)] == [[0, 1], [2, 3]]
    assert loader.state_dict() == {"length": 12, "shuffle": False, "seed": 0, "epoch": 0, "samples": 4}
    assert list(batches) == [[4, 5], [6, 7], [8, 9], [10, 11]]
    assert loader.state_dict()["epoch"] == 1


def test_after_the_last_batch_the_position_is_the_next_epoch() -> None:
    """Otherwise a run that ends here would continue with an epoch without batches, at which HF's Trainer stops."""
    loader = ElasticLoader(Ahead(ElasticSampler(4, 2, rank=0, world_size=1), 2))
    epochs = [(loader.epoch, loader.state_dict()["samples"]) for _ in loader]
    assert epochs == [(0, 2), (1, 0)]


def test_after_a_break_the_next_iteration_continues() -> None:
    loader = ElasticLoader(Ahead(ElasticSampler(6, 2, rank=0, world_size=1, shuffle=False), 2))
    for batch in loader:
        assert batch == [0, 1]
        break
    assert list(loader) == [[2, 3], [4, 5]]


def test_another_batch_size_continues_after_the_same_sample() -> None:
    before = ElasticLoader(Ahead(ElasticSampler(10, 4, rank=0, world_size=1, shuffle=False), 0))
    next(iter(before))
    after = ElasticLoader(Ahead(ElasticSampler(10, 5, rank=0, world_size=1, shuffle=False), 0))
    after.load_state_dict(before.state_dict())
    assert list(after) == [[4, 5, 6, 7, 8], [9]]


def test_the_order_is_that_of_the_state() -> None:
    before = ElasticLoader(Ahead(ElasticSampler(10, 4, rank=0, world_size=1, seed=1), 0))
    after = ElasticLoader(Ahead(ElasticSampler(10, 4, rank=0, world_size=1, seed=2), 0))
    after.load_state_dict(before.state_dict())
    assert list(after) == list(before)


@pytest.mark.parametrize(("length", "shuffle"), [(11, True), (10, False)])
def test_the_state_of_another_data_set_is_refused(length: int, shuffle: bool) -> None:
    state = ElasticLoader(Ahead(ElasticSampler(10, 4, rank=0, world_size=1), 0)).state_dict()
    loader = ElasticLoader(Ahead(ElasticSampler(length, 4, rank=0, world_size=1, shuffle=shuffle), 0))
    with pytest.raises(ValueError, match="another data set"):
        loader.load_state_dict(state)


def test_a_loader_without_an_elastic_part_is_refused() -> None:
    with pytest.raises(TypeError) as error:
        ElasticLoader([1, 2, 3])
    assert str(error.value) == words.NOT_ELASTIC


def test_all_ranks_states_are_one_state() -> None:
    loaders = [ElasticLoader(Ahead(ElasticSampler(10, 4, rank=rank, world_size=2), rank)) for rank in range(2)]
    batches = [iter(loader) for loader in loaders]
    next(batches[0])
    with pytest.raises(ValueError) as error:
        merge_states([loader.state_dict() for loader in loaders])
    assert str(error.value) == words.ranks_disagree("samples")
    next(batches[1])
    assert merge_states([loader.state_dict() for loader in loaders]) == loaders[0].state_dict()
    with pytest.raises(ValueError) as error:
        merge_states([])
    assert str(error.value) == words.NO_STATE


# Imports.

IMPORTED = """
import sys
{statement}
print(*sorted(name for name in sys.modules if name.partition(".")[0] in ("torch", "asyncio", "msgspec", "node_agent")))
"""


@pytest.mark.parametrize(
    ("statement", "is_there"),
    [("import node_agent.data", True), ("import node_agent.agent, node_agent.cli.main", False)],
)
def test_it_imports_only_itself_and_the_packages_root(statement: str, is_there: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED.format(statement=statement)], capture_output=True, text=True, check=True
    )
    data = [name for name in done.stdout.split() if name.startswith("node_agent.data")]
    assert bool(data) is is_there
    if is_there:
        assert done.stdout.split() == ["node_agent", *data]
