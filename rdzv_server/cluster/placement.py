"""Placement: the shard of a run, and the server that should lead a shard. Pure: equal inputs give equal answers.

Shards are shared evenly: no server leads two more than another. While that holds, a leader keeps its shards, so nothing
moves without need. The other shards are placed by rendezvous hashing: every server has a random weight for every shard.
Among the servers with room, the one with the highest weight leads the shard.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from functools import lru_cache
from hashlib import blake2b
from zlib import crc32


def shard_of(run_id: str, shards: int) -> int:
    """Return the shard of a run: CRC-32 of its id in UTF-8, modulo the number of shards."""
    return crc32(run_id.encode()) % shards


def owners(shards: int, servers: Collection[str], leaders: Mapping[int, str]) -> dict[int, str]:
    """Return the server that should lead each shard, given the current leaders; empty without servers."""
    each, odd = divmod(shards, max(1, len(servers)))
    owner: dict[int, str] = {}
    load, led = Counter[str](), Counter(leaders.values())

    def give(shard: int, server: str) -> None:
        nonlocal odd
        is_odd = load[server] == each
        if shard not in owner and load[server] <= each and odd >= is_odd:
            owner[shard] = server
            load[server] += 1
            odd -= is_odd

    kept = ((-led[server], server, -_weight(shard, server), shard) for shard, server in leaders.items())
    for _, server, _, shard in sorted(kept):  # the server that leads most may keep an odd one
        if server in servers:
            give(shard, server)
    free = (shard for shard in range(shards) if shard not in owner)
    for _, shard, server in sorted(
        ((_weight(shard, server), shard, server) for shard in free for server in servers), reverse=True
    ):
        give(shard, server)
    return owner


@lru_cache(maxsize=1 << 14)
def _weight(shard: int, server: str) -> int:
    return int.from_bytes(blake2b(f"{shard} {server}".encode(), digest_size=8).digest())
