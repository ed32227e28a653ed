"""Which of several servers leads: the one whose address stands at a key of etcd that hangs on its lease.

The key's create revision numbers the leadership; it only grows, and fences what the leader writes (`etcd_store`). A
leader answers nobody from a moment before its lease can end, by its own clock, until it has renewed it. So at no time
do two servers act, whichever of them is stopped, cut off or slow. When the lease has ended, etcd deletes the key, all
are told at once, and the first to make it anew leads.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from aetcd import rpc

from rdzv_server.etcd_client import EtcdClient
from rdzv_server.etcd_store import leader_key
from rdzv_server.store import StoreBroken, StoreUnavailable

log = logging.getLogger("rdzv_server")

RENEWALS_PER_LEASE = 3
ATTEMPTS_PER_LEASE = 4
"""One etcd member may take this part of the lease for a renewal; then another one is asked."""
MARGIN = 0.1
"""This part of the lease is given away, for what is under way when it ends and for clocks that run differently."""
RETRY_S = 0.2
RESIGN_S = 1.0
"""A server that stops does not wait for etcd for longer: then its lease ends by itself."""


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads. `number`: of the leadership; a higher one is later."""

    address: str
    number: int


class Leadership:
    """A leadership of this server, kept up until `over` returns or `resign` is called."""

    def __init__(
        self, client: EtcdClient, key: bytes, lease_id: int, ttl_s: float, sent_at: float, number: int
    ) -> None:
        self.number = number
        self._client = client
        self._key = key
        self._lease_id = lease_id
        self._ttl_s = ttl_s
        self._certain_until = 0.0
        self._extend(sent_at, ttl_s)
        self._trouble = False
        self._keeping = asyncio.create_task(self._keep(), name="leadership")

    @property
    def is_certain(self) -> bool:
        """Whether no other server can lead now."""
        return _clock() < self._certain_until

    async def over(self) -> str:
        """Return when this server does not lead any more, with the reason."""
        return await asyncio.shield(self._keeping)

    async def resign(self) -> None:
        """End the leadership, so that another server leads at once."""
        self._certain_until = 0.0
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        with suppress(StoreUnavailable, StoreBroken, TimeoutError):  # its lease ends by itself, or has ended
            async with asyncio.timeout(RESIGN_S):
                await self._client.revoke(self._lease_id)

    def _extend(self, sent_at: float, ttl_s: float) -> None:
        """etcd counts the lease from when the request arrived, which was after it was sent."""
        self._certain_until = sent_at + ttl_s * (1 - MARGIN)

    async def _keep(self) -> str:
        """Whichever comes first: the lease is gone, or the key."""
        ways = {asyncio.create_task(self._renew()), asyncio.create_task(self._watch())}
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            self._certain_until = 0.0
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _renew(self) -> str:
        pause_s = self._ttl_s / RENEWALS_PER_LEASE
        while True:
            await asyncio.sleep(pause_s)
            sent_at = _clock()
            try:
                ttl_s = await self._client.keep_alive(self._lease_id, self._ttl_s / ATTEMPTS_PER_LEASE)
            except StoreUnavailable as error:
                self._say_trouble(error)
                pause_s = RETRY_S
                continue
            if ttl_s <= 0:
                return "its lease at etcd ran out"
            self._extend(sent_at, ttl_s)
            self._say_trouble(None)
            pause_s = self._ttl_s / RENEWALS_PER_LEASE

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

    def _say_trouble(self, error: Exception | None) -> None:
        """Once, when it begins to matter; and when it is over."""
        if error and not self.is_certain and not self._trouble:
            log.error("cannot renew the leader's lease: %s; answering nobody until it can, workers keep running", error)
            self._trouble = True
        elif error is None and self._trouble:
            log.info("the leader's lease is renewed: still leading")
            self._trouble = False


class Candidacy:
    """This server's standing attempt to lead. `address`: where agents reach it."""

    def __init__(self, client: EtcdClient, prefix: str, address: str, ttl_s: int) -> None:
        self._client = client
        self._key = leader_key(prefix)
        self._address = address
        self._ttl_s = ttl_s

    async def win(self, follow: Callable[[Leader | None], None]) -> Leadership:
        """Return when this server leads. Meanwhile `follow` is told who does, None while that is not known.

        Raises `StoreBroken`.
        """
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
        sent_at = _clock()
        lease_id, ttl_s = await self._client.grant(self._ttl_s)
        is_free = rpc.Compare(key=self._key, target=rpc.Compare.CREATE, result=rpc.Compare.EQUAL, create_revision=0)
        take = rpc.PutRequest(key=self._key, value=self._address.encode(), lease=lease_id)
        won = False
        try:
            won, revision = await self._client.transact([is_free], [rpc.RequestOp(request_put=take)])
        finally:
            if not won:
                with suppress(StoreUnavailable, StoreBroken):
                    await self._client.revoke(lease_id)
        return Leadership(self._client, self._key, lease_id, ttl_s, sent_at, revision) if won else None


def _clock() -> float:
    """Seconds that go on while this machine sleeps, as etcd's do."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
