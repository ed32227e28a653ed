"""Election of a shard's leader: the leader's address is the value of the shard's key in etcd, and its lease keeps the
key.

The key's create revision is the number of the leadership. It only grows, and fences what the leader writes
(`storage/etcd.py`). Shortly before its lease can end, by its own clock, a leader stops answering until it has renewed
the lease. So two servers never act at the same time, even if one is stopped, cut off or slow.

When the lease has ended, etcd deletes the key and notifies all servers at once. The shard's owner (`placement.py`)
creates the key again, or another server does if the owner has not done so after a moment.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from rdzv_server.cluster.lease import RESIGN_S, RETRY_S, Lease
from rdzv_server.cluster.membership import Leader, Membership
from rdzv_server.storage.base import StoreBroken, StoreUnavailable
from rdzv_server.storage.etcd_client import EtcdClient, LeaseGone, delete, is_free, is_made_at, put
from rdzv_server.storage.outage import Outage
from rdzv_server.tasks import first_of
from rdzv_server.words import cluster as words

OWNER_FIRST_S = 0.5
"""Seconds that a server leaves a free shard to its owner, which takes it within a few hundredths of a second."""


class Election:
    """Candidacy of this server for one shard, in one leadership after another."""

    def __init__(self, client: EtcdClient, membership: Membership, shard: int) -> None:
        self.membership = membership
        self.shard = shard
        self._client = client
        self._key = membership.leader_key(shard)
        self.outage = Outage(
            lambda: words.CANNOT_TAKE_OVER, lambda: words.CAN_TAKE_OVER, logs_silence=False, shared=membership.refusals
        )
        """Outage in which etcd answers, but does not let this server take the free shard: its database may be full."""
        self.is_candidate = True
        """Whether this server takes the shard when it is free. Otherwise `win` only follows its leaders, forever."""
        self.left_to: set[int] = set()
        """Revisions of the servers to which this server has left the shard, each of them once."""

    async def win(self, follow: Callable[[Leader | None], None]) -> "Leadership":
        """Return when this server leads. Until then `follow` is called with the leader, or None while it is unknown.

        A key that an earlier leadership of this server has left is deleted first, because it keeps others from leading.
        Raises `StoreBroken`.
        """
        free_since: float | None = None
        follow(known := None)
        while True:
            view, lease = self.membership.view, self.membership.lease
            leader = view.leaders.get(self.shard) if view else None
            # Never send agents to this server's own previous lifetime.
            if known != (known := leader if leader and leader.address != self.membership.address else None):
                follow(known)
            is_own = leader is not None and lease is not None and leader.lease_id == lease.id
            if view is None or lease is None or (not is_own and (leader or not self.is_candidate)):
                free_since = None
                if leader:
                    self.outage.end()
                await self.membership.changed()
                continue
            try:
                if leader:  # its leadership is over, but one of its writes may still be on its way
                    await self.take_away(leader.number)
                    continue
                now = asyncio.get_running_loop().time()
                free_since = now if free_since is None else free_since
                wait_s = free_since + OWNER_FIRST_S - now
                if wait_s > 0 and view.owners.get(self.shard) != self.membership.address:
                    await self.membership.changed(wait_s)
                    continue
                take = put(self._key, self.membership.address.encode(), lease.id)
                won, revision = await self._client.transact([is_free(self._key)], [take])
                self.outage.end()
                if won:
                    return Leadership(self, lease, revision)
                await self.membership.changed(RETRY_S)
            except LeaseGone:  # the membership gets another one, and logs why
                await self.membership.changed(RETRY_S)
            except StoreUnavailable as error:
                self.outage.begin(error)
                await asyncio.sleep(RETRY_S)
            except StoreBroken:
                if self.is_candidate:
                    raise
                await asyncio.sleep(RETRY_S)

    async def take_away(self, number: int) -> None:
        """Delete the key of an ended leadership of this server. Raises `StoreUnavailable`."""
        done, revision = await self._client.transact([is_made_at(self._key, number)], [delete(self._key)])
        if not done:
            await self.membership.changed(RETRY_S)  # the view is out of date
        while done and self.membership.view and self.membership.view.revision < revision:
            await self.membership.changed()


class Leadership:
    """Leadership of one shard, kept until `over` returns or `resign` is called."""

    def __init__(self, election: Election, lease: Lease, number: int) -> None:
        self.number = number
        self._election = election
        self._membership = election.membership
        self._lease = lease
        self._has_ended = False

    @property
    def is_certain(self) -> bool:
        """Whether no other server can lead now."""
        return not self._has_ended and self._lease.is_certain

    @property
    def lapsed_s(self) -> float:
        """Seconds for which the leadership has not been certain; 0 while it is."""
        return self._lease.lapsed_s

    async def over(self, regained: Callable[[float], None] = lambda lapsed_s: None) -> str:
        """Return the reason when this server no longer leads: its lease or key is gone, or another server should lead.

        Call `regained` each time the leadership is certain again, with the seconds for which it was not.
        """
        self._lease.regained.add(regained)
        try:
            return await first_of(self._lease.lost(), self._moved())
        finally:
            self._has_ended = True
            self._lease.regained.discard(regained)

    async def resign(self) -> None:
        """End the leadership, so that another server leads at once."""
        self._has_ended = True
        if self._lease is self._membership.lease:  # else the key is gone with its lease
            with suppress(StoreUnavailable, StoreBroken, TimeoutError):  # `win` deletes what remains
                async with asyncio.timeout(RESIGN_S):
                    await self._election.take_away(self.number)

    async def _moved(self) -> str:
        shard, left_to = self._election.shard, self._election.left_to
        while True:
            view = self._membership.view
            if view and view.revision >= self.number:
                leader = view.leaders.get(shard)
                if leader is None or leader.number != self.number:
                    return words.KEY_DELETED if self._lease.is_certain else words.LEASE_EXPIRED
                if (successor := view.successor(shard)) and successor.revision not in left_to:
                    left_to.add(successor.revision)
                    return words.hands_over_to(successor.address)
            await self._membership.changed()
