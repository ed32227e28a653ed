"""Sharing of shards, for any servers and any leaders."""

from collections import Counter
from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st

from rdzv_server.cluster.placement import owners, shard_of

NAMES = [f"server-{number}:29400" for number in range(8)]
SERVERS = st.sets(st.sampled_from(NAMES), min_size=1)
LEADERS = st.dictionaries(st.integers(0, 23), st.sampled_from(NAMES))
SHARDS = st.integers(1, 24)


def within(leaders: dict[int, str], shards: int) -> dict[int, str]:
    return {shard: leader for shard, leader in leaders.items() if shard < shards}


def fewest_moves(shards: int, servers: set[str], leaders: dict[int, str]) -> int:
    """Return the fewest moves to an even distribution: the servers that lead most may keep the extra shards."""
    each, odd = divmod(shards, len(servers))
    loads = sorted((sum(leader == server for leader in leaders.values()) for server in servers), reverse=True)
    return sum(max(0, load - each - (place < odd)) for place, load in enumerate(loads))


@given(shards=SHARDS, servers=SERVERS, leaders=LEADERS)
def test_all_shards_are_shared_evenly_with_the_fewest_moves(shards, servers, leaders):
    leaders = within(leaders, shards)
    wanted = owners(shards, servers, leaders)
    assert sorted(wanted) == list(range(shards))
    loads = Counter(wanted.values())
    assert set(loads) <= servers
    assert max(loads.values()) - min(loads[server] for server in servers) <= 1
    moved = [shard for shard, leader in leaders.items() if leader in servers and wanted[shard] != leader]
    assert len(moved) == fewest_moves(shards, servers, leaders)


@given(shards=SHARDS, servers=SERVERS, leaders=LEADERS)
def test_the_placement_depends_only_on_its_input(shards, servers, leaders):
    leaders = within(leaders, shards)
    turned = dict(reversed(leaders.items()))
    assert owners(shards, sorted(servers), leaders) == owners(shards, sorted(servers, reverse=True), turned)


@given(shards=SHARDS, servers=SERVERS, leaders=LEADERS, order=st.randoms(use_true_random=False))
def test_moves_in_any_order_make_it_even_and_then_there_are_none(shards, servers, leaders, order):
    """All servers look again between two moves: the shard that moves has no leader for a while, and others move."""
    leaders = owners(shards, servers, {}) | {s: at for s, at in within(leaders, shards).items() if at in servers}
    left = fewest_moves(shards, servers, leaders)
    while moves := sorted(s for s, at in owners(shards, servers, leaders).items() if leaders[s] != at):
        assert len(moves) == left
        shard = order.choice(moves)
        del leaders[shard]
        leaders[shard] = owners(shards, servers, leaders)[shard]
        left -= 1
    assert left == 0


@given(shards=SHARDS, servers=SERVERS, gone=st.data())
def test_when_a_server_leaves_only_its_own_shards_move(shards, servers, gone):
    leaders = owners(shards, servers, {})
    lost = gone.draw(st.sampled_from(sorted(servers)))
    if rest := servers - {lost}:
        after = owners(shards, rest, leaders)
        assert all(after[shard] == leader for shard, leader in leaders.items() if leader != lost)


@given(servers=SERVERS, leader=st.sampled_from(NAMES))
def test_the_only_shard_stays_with_its_leader(servers, leader):
    assert owners(1, servers | {leader}, {0: leader}) == {0: leader}


def test_without_servers_no_shard_has_an_owner():
    assert owners(3, [], {0: "a:1"}) == {}


@given(run_id=st.text(st.characters(exclude_categories=["Cs"])), shards=st.integers(1, 256))
def test_a_run_belongs_to_the_shard_that_is_written_down(run_id, shards):
    assert shard_of(run_id, shards) == crc32(run_id.encode("utf-8")) % shards
    assert shard_of(run_id, 1) == 0
