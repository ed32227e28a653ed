"""A lease in etcd that a server renews: keys attached to it exist while the server is alive and reaches etcd."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from rdzv_server.storage.base import StoreBroken, StoreUnavailable
from rdzv_server.storage.etcd_client import EtcdClient
from rdzv_server.storage.outage import Outage
from rdzv_server.words import cluster as words

RENEWALS_PER_LEASE = 3
ATTEMPTS_PER_LEASE = 4
"""Number of tries in one lease: a member of etcd that takes longer than this part of it is given up for the next."""
MARGIN = 0.1
"""Part of the lease that is not used, to allow for requests on their way at its end, and for differing clocks."""
RETRY_S = 0.2
RESIGN_S = 1.0
"""Most seconds for which a stopping server waits for etcd. After that, the lease ends by itself."""


class Lease:
    """Lease of this server, renewed until it is `lost` or `end` is called."""

    def __init__(self, client: EtcdClient, lease_id: int, ttl_s: float, sent_at: float) -> None:
        self.id = lease_id
        self.regained: set[Callable[[float], None]] = set()
        """Callbacks for a renewal after a time in which the lease was not certain. They get that time in seconds."""
        self._client = client
        self._ttl_s = ttl_s
        self._certain_until = 0.0
        self._extend(sent_at, ttl_s)
        self._outage = Outage(lambda: words.LEASE_CONSEQUENCE, lambda: words.LEASE_RENEWED)
        self._given_up = asyncio.Event()
        self._renewing = asyncio.create_task(self._renew(), name="lease")

    @classmethod
    async def grant(cls, client: EtcdClient, ttl_s: int) -> "Lease":
        """Return a new lease of `ttl_s` seconds. Raises `StoreUnavailable` or `StoreBroken`."""
        sent_at = _clock()
        lease_id, granted_s = await client.grant(ttl_s)
        return cls(client, lease_id, granted_s, sent_at)

    @property
    def is_certain(self) -> bool:
        """Whether the keys attached to the lease exist in etcd."""
        return _clock() < self._certain_until

    @property
    def lapsed_s(self) -> float:
        """Seconds for which the lease has not been certain; 0 while it is."""
        return max(0.0, _clock() - self._certain_until)

    async def lost(self) -> str:
        """Return the reason when the lease is gone. `end` cancels this. Raises `StoreBroken`."""
        return await asyncio.shield(self._renewing)

    def give_up(self) -> None:
        """Count the lease as lost from now on, though etcd may still have it."""
        self._certain_until = 0.0
        self._given_up.set()

    async def end(self) -> None:
        """End the lease. etcd deletes its keys at once, or at its expiry if etcd cannot be reached."""
        self._certain_until = 0.0
        self._renewing.cancel()
        await asyncio.gather(self._renewing, return_exceptions=True)
        with suppress(StoreUnavailable, StoreBroken, TimeoutError):  # it ends by itself, or has ended
            async with asyncio.timeout(RESIGN_S):
                await self._client.revoke(self.id)

    def _extend(self, sent_at: float, ttl_s: float) -> None:
        """Move the lease's end to `ttl_s` after `sent_at`. etcd counts from the request's arrival, which was later."""
        self._certain_until = sent_at + ttl_s * (1 - MARGIN)

    async def _renew(self) -> str:
        pause_s = self._ttl_s / RENEWALS_PER_LEASE
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._given_up.wait()
            if self._given_up.is_set():
                self._outage.end(words.LEASE_ENDED)
                return words.LOST_CHANGES
            try:
                if not self.is_certain:
                    # etcd may get requests although its answers are lost. Renewals would then keep others from leading.
                    await self._client.time_to_live(self.id)
                sent_at = _clock()
                ttl_s = await self._client.keep_alive(self.id, self._ttl_s / ATTEMPTS_PER_LEASE)
            except StoreUnavailable as error:
                if not self.is_certain:  # before that, no request is affected
                    self._outage.begin(words.lease_not_renewed(str(error)))
                pause_s = RETRY_S
                continue
            if ttl_s <= 0:
                self._certain_until = 0.0
                self._outage.end(words.LEASE_ENDED)
                return words.LEASE_EXPIRED
            if self._given_up.is_set():
                continue
            lapsed_s = _clock() - self._certain_until
            self._extend(sent_at, ttl_s)
            self._outage.end()
            if lapsed_s >= 0:
                for regained in list(self.regained):
                    regained(lapsed_s)
            pause_s = self._ttl_s / RENEWALS_PER_LEASE


def _clock() -> float:
    """Return seconds that continue while this machine sleeps, like etcd's."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
