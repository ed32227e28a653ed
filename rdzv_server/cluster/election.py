"""Which of several servers leads: the one whose address stands at a key of etcd that hangs on its lease.

The key's create revision numbers the leadership; it only grows, and fences what the leader writes (`etcd_store`). A
leader answers nobody from a moment before its lease can end, by its own clock, until it has renewed it. So at no time
do two servers act, whichever of them is stopped, cut off or slow. When the lease has ended, etcd deletes the key, all
are told at once, and the first to make it anew leads.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rdzv_server.cluster.lease import Lease
from rdzv_server.storage.base import StoreUnavailable
from rdzv_server.storage.etcd import leader_key
from rdzv_server.storage.etcd_client import EtcdClient, is_free, put

log = logging.getLogger("rdzv_server")

RETRY_S = 0.2


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads. `number`: of the leadership; a higher one is later."""

    address: str
    number: int


class Held(Protocol):
    """A leadership of this server, kept up until `over` returns or `resign` is called."""

    @property
    def number(self) -> int: ...

    @property
    def is_certain(self) -> bool:
        """Whether no other server can lead now."""

    async def over(self) -> str:
        """Return when this server does not lead any more, with the reason."""

    async def resign(self) -> None:
        """End the leadership, so that another server leads at once."""


class Standing(Protocol):
    """A standing attempt of this server to lead."""

    async def win(self, follow: Callable[[Leader | None], None]) -> Held:
        """Return when this server leads. Meanwhile `follow` is told who does, None while that is not known.

        Raises `StoreBroken`.
        """


class Leadership:
    """A leadership whose key hangs on a lease of its own. See `Held`."""

    def __init__(self, client: EtcdClient, key: bytes, lease: Lease, number: int) -> None:
        self.number = number
        self._client = client
        self._key = key
        self._lease = lease
        self._has_ended = False
        self._keeping = asyncio.create_task(self._keep(), name="leadership")

    @property
    def is_certain(self) -> bool:
        return not self._has_ended and self._lease.is_certain

    async def over(self) -> str:
        return await asyncio.shield(self._keeping)

    async def resign(self) -> None:
        self._has_ended = True
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        await self._lease.end()

    async def _keep(self) -> str:
        """Whichever comes first: the lease is gone, or the key."""
        ways = {asyncio.create_task(self._lease.lost()), asyncio.create_task(self._watch())}
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            self._has_ended = True
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _watch(self) -> str:
        """Only somebody's hand deletes the key while the lease lasts."""
        seen_at, found = self.number, None
        while True:
            await self._client.changed(self._key, seen_at + 1)
            try:
                found, seen_at = await self._client.get(self._key)
            except StoreUnavailable:
                await asyncio.sleep(RETRY_S)
                continue
            if found is None or found.create_revision != self.number:
                return "its key at etcd was deleted"


class Candidacy:
    """This server's standing attempt to lead a cluster. `address`: where agents reach it. See `Standing`."""

    def __init__(self, client: EtcdClient, prefix: str, address: str, ttl_s: int) -> None:
        self._client = client
        self._key = leader_key(prefix)
        self._address = address
        self._ttl_s = ttl_s

    async def win(self, follow: Callable[[Leader | None], None]) -> Leadership:
        trouble = False
        while True:
            try:
                leader, revision = await self._look()
                if trouble:
                    log.info("etcd answers")
                    trouble = False
                if leader is None:
                    if leadership := await self._campaign():
                        return leadership
                    continue
                await self._wait(leader, revision, follow)
            except StoreUnavailable as error:
                follow(None)
                if not trouble:
                    log.error("%s; trying again", error)
                trouble = True
                await asyncio.sleep(RETRY_S)

    async def _wait(self, leader: Leader, revision: int, follow: Callable[[Leader | None], None]) -> None:
        """Until somebody else may lead."""
        gone = asyncio.create_task(self._client.changed(self._key, revision + 1))
        try:
            if leader.address == self._address:
                await self._outlive(gone)
            else:
                follow(leader)
            await gone
        finally:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            follow(None)

    async def _outlive(self, gone: "asyncio.Task[None]") -> None:
        """What this server's life before has left behind is no address to send anybody to; it goes with its lease."""
        done, _ = await asyncio.wait({gone}, timeout=2.0 * self._ttl_s + 1.0)
        if not done:
            log.error("another server leads as %s, too: give each its own address with --advertise", self._address)

    async def _look(self) -> tuple[Leader | None, int]:
        """Who leads, and at which revision that was so."""
        found, revision = await self._client.get(self._key)
        if found is None:
            return None, revision
        return Leader(found.value.decode(errors="replace"), found.create_revision), revision

    async def _campaign(self) -> Leadership | None:
        """Take the key if it is free."""
        lease = await Lease.grant(self._client, self._ttl_s, "the leader's")
        take = put(self._key, self._address.encode(), lease.id)
        won = False
        try:
            won, revision = await self._client.transact([is_free(self._key)], [take])
        finally:
            if not won:
                await lease.end()
        return Leadership(self._client, self._key, lease, revision) if won else None
