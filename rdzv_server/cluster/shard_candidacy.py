"""Which server leads a shard: as `leadership` for a cluster without shards, but on the lease that a server has anyway.

Whoever should lead it (`placement`) takes its key as soon as that is free; another one waits a moment. The fences are
the same: the key's create revision, and the lease's certainty.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from rdzv_server.cluster.election import Leader
from rdzv_server.cluster.lease import RESIGN_S, RETRY_S, Lease
from rdzv_server.cluster.membership import Presence, Stand, View
from rdzv_server.storage.base import StoreBroken, StoreUnavailable
from rdzv_server.storage.etcd_client import EtcdClient, delete, is_free, is_made_at, put

log = logging.getLogger("rdzv_server")

MOMENT_S = 0.5
"""How long a server leaves a free shard to another one that should lead it; that takes a few hundredths of a second."""


class ShardLeadership:
    """A leadership of one shard. See `leadership.Held`."""

    def __init__(self, client: EtcdClient, presence: Presence, lease: Lease, shard: int, number: int) -> None:
        self.number = number
        self._client = client
        self._presence = presence
        self._lease = lease
        self._shard = shard
        self._has_ended = False
        self._asked: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._keeping = asyncio.create_task(self._keep(), name="leadership")

    @property
    def is_certain(self) -> bool:
        return not self._has_ended and self._lease.is_certain

    def leave_to(self, address: str) -> None:
        """Have it end in favour of another server."""
        if not self._asked.done():
            self._asked.set_result(f"leaving it to {address}, which leads fewer")

    async def over(self) -> str:
        return await asyncio.shield(self._keeping)

    async def resign(self) -> None:
        self._has_ended = True
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        if self._lease is self._presence.lease:
            with suppress(StoreUnavailable, StoreBroken, TimeoutError):  # what remains is taken away by the candidacy
                async with asyncio.timeout(RESIGN_S):
                    await take_away(self._client, self._presence, self._shard, self.number)

    async def _keep(self) -> str:
        """Whichever comes first: the lease is gone, or the key, or it is left to another server."""
        ways = {asyncio.create_task(self._lease.lost()), asyncio.create_task(self._missed())}
        try:
            done, _ = await asyncio.wait({*ways, self._asked}, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            self._has_ended = True
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _missed(self) -> str:
        """Return when its key is not there."""
        while not self._is_missed(self._presence.view):
            await self._presence.news()
        return "its key at etcd was deleted"

    def _is_missed(self, view: View | None) -> bool:
        if view is None or view.revision < self.number:
            return False
        leader = view.leaders.get(self._shard)
        return leader is None or leader.number != self.number


class ShardCandidacy:
    """This server's standing attempt to lead one of the shards. See `leadership.Standing`."""

    def __init__(self, client: EtcdClient, presence: Presence, shard: int) -> None:
        self.leadership: ShardLeadership | None = None
        """The latest one."""
        self._client = client
        self._presence = presence
        self._shard = shard
        self._key = presence.leader_key(shard)
        self._free_since: float | None = None

    async def win(self, follow: Callable[[Leader | None], None]) -> ShardLeadership:
        self.leadership = self._free_since = None
        follow(known := None)
        while self.leadership is None:
            view, lease = self._presence.view, self._presence.lease
            leader = view.leaders.get(self._shard) if view else None
            if known != (known := self._known(leader)):
                follow(known)
            try:
                self.leadership = await self._try(view, lease, leader)
            except StoreUnavailable:
                await asyncio.sleep(RETRY_S)
        return self.leadership

    async def _try(self, view: View | None, lease: Lease | None, leader: Stand | None) -> ShardLeadership | None:
        """Lead if that is possible, else wait until more may be."""
        if view and lease and leader is None:
            return await self._stand(view, lease)
        self._free_since = None
        if leader and lease and leader.lease_id == lease.id:
            await take_away(self._client, self._presence, self._shard, leader.number)
        else:
            await self._presence.news()
        return None

    def _known(self, leader: Stand | None) -> Leader | None:
        """What this server's life before has left behind is no address to send anybody to."""
        if leader is None or leader.address == self._presence.address:
            return None
        return Leader(leader.address, leader.number)

    async def _stand(self, view: View, lease: Lease) -> ShardLeadership | None:
        """Take the key, which is free, if it is this server's turn."""
        now = asyncio.get_running_loop().time()
        self._free_since = now if self._free_since is None else self._free_since
        wait_s = self._free_since + MOMENT_S - now
        if wait_s > 0 and view.preferred.get(self._shard) != self._presence.address:
            await self._presence.news(wait_s)
            return None
        take = put(self._key, self._presence.address.encode(), lease.id)
        won, revision = await self._client.transact([is_free(self._key)], [take])
        if won:
            return ShardLeadership(self._client, self._presence, lease, self._shard, revision)
        await self._presence.news(RETRY_S)
        return None


async def take_away(client: EtcdClient, presence: Presence, shard: int, number: int) -> None:
    """Delete the leader's key of a leadership that nobody exercises any more, so that there can be a next one."""
    key = presence.leader_key(shard)
    done, revision = await client.transact([is_made_at(key, number)], [delete(key)])
    if done:
        await presence.reach(revision)
    else:  # the view is of the past
        await presence.news(RETRY_S)
