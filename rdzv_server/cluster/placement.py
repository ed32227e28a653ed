"""Which shard a run belongs to, and which server should lead which shard. Pure: the same facts give the same answer.

Shards are shared evenly: no server leads two more than another. Who leads a shard goes on leading it as long as that
holds, so that no shard moves that need not, and none where all is even. A shard without a leader goes to the server
that leads the fewest.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from zlib import crc32


@dataclass(frozen=True, slots=True)
class Move:
    """A shard that one server should leave to another."""

    shard: int
    giver: str
    receiver: str


def shard_of(run_id: str, shards: int) -> int:
    """Where a run belongs: CRC-32 of its id in UTF-8, modulo the number of shards."""
    return crc32(run_id.encode()) % shards


def preferred(shards: int, servers: Collection[str], leaders: Mapping[int, str]) -> dict[int, str]:
    """Who should lead each shard, given who leads now; nobody without servers."""
    led = _led(servers, leaders)
    room: dict[str, int] = {}
    for server, quota in _quotas(shards, led).items():
        room[server] = quota - len(led[server])
        del led[server][quota:]
    wanted = {shard: server for server, kept in led.items() for shard in kept}
    for shard in range(shards):
        if room and shard not in wanted:
            wanted[shard] = server = min(
                (each for each in room if room[each] > 0), key=lambda each: (len(led[each]), each)
            )
            led[server].append(shard)
            room[server] -= 1
    return wanted


def next_move(shards: int, servers: Collection[str], leaders: Mapping[int, str]) -> Move | None:
    """What makes it more even; None if it is as even as it can be."""
    wanted = preferred(shards, servers, leaders)
    for shard, giver in sorted(leaders.items()):
        if giver in servers and wanted[shard] != giver:
            return Move(shard, giver, preferred(shards, servers, _without(leaders, shard))[shard])
    return None


def _led(servers: Iterable[str], leaders: Mapping[int, str]) -> dict[str, list[int]]:
    """The shards of each server that is there."""
    led: dict[str, list[int]] = {server: [] for server in servers}
    for shard, server in sorted(leaders.items()):
        if server in led:
            led[server].append(shard)
    return led


def _quotas(shards: int, led: Mapping[str, Collection[int]]) -> dict[str, int]:
    """How many shards each server should lead. Where it does not come out even, who leads most has one more."""
    by_load = sorted(led, key=lambda server: (-len(led[server]), server))
    return {server: (shards + len(led) - 1 - place) // len(led) for place, server in enumerate(by_load)}


def _without(leaders: Mapping[int, str], shard: int) -> dict[int, str]:
    return {each: server for each, server in leaders.items() if each != shard}
