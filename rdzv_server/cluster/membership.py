"""This server among those that share the shards of a cluster: its lease, its key, and what stands at the keys of all.

    PREFIX/schema                    "shards N": how many there are, for as long as the cluster lasts
    PREFIX/live/servers/ADDRESS      a server that is there; hangs on its lease
    PREFIX/live/leaders/SHARD        the address of a shard's leader; hangs on that server's lease, too. Its create
                                     revision is the number of the leadership
    PREFIX/shards/SHARD/...          the shard's records, as those of a cluster without shards (`etcd_store`)

One lease for all: a server that is gone is gone from every shard in the same moment, and everybody sees that at once.
One watch for all: it covers `live/`, which is read as a whole whenever something changes in it.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rdzv_server.cluster.lease import RETRY_S, Lease
from rdzv_server.cluster.placement import preferred
from rdzv_server.cluster.task_group import together
from rdzv_server.storage.base import StoreUnavailable
from rdzv_server.storage.etcd_client import EtcdClient, is_free, put

log = logging.getLogger("rdzv_server")


REGISTER_S = 1.0
"""How often a server that is not seen yet tries to be."""


@dataclass(frozen=True, slots=True)
class Stand:
    """A shard's leader. `number`: of the leadership; `lease_id`: of the server's life that leads."""

    address: str
    number: int
    lease_id: int


@dataclass(frozen=True, slots=True)
class View:
    """Who is there and who leads what, as etcd had it at `revision`."""

    revision: int
    servers: Mapping[str, int]
    """Each with its lease."""
    leaders: Mapping[int, Stand]
    preferred: Mapping[int, str]
    """Who should lead each shard, see `placement`."""

    @property
    def addresses(self) -> dict[int, str]:
        """Who leads each shard that has a leader."""
        return _addresses(self.leaders)


class Presence:
    """What this server knows of the others, and they of it, while `run` runs. `address`: where agents reach it."""

    def __init__(self, client: EtcdClient, prefix: str, address: str, ttl_s: int, shards: int) -> None:
        self.shards = shards
        self.address = address
        self.view: View | None = None
        """None: etcd does not answer."""
        self.lease: Lease | None = None
        """Of this life of the server; None while the others do not see it."""
        self._client = client
        self._folder = f"{prefix}/live/"
        self._ttl_s = ttl_s
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Be one of the servers, for ever; its lease ends when this is cancelled. Raises `StoreBroken`."""
        await together(self._watch(), self._stay())

    async def news(self, within_s: float | None = None) -> None:
        """Return when the view or the lease has changed, or after so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._news.wait()

    async def reach(self, revision: int) -> None:
        """Return once the view is no older than that, or not known."""
        while self.view and self.view.revision < revision:
            await self.news()

    def leader_key(self, shard: int) -> bytes:
        return f"{self._folder}leaders/{shard}".encode()

    def _publish(self, view: View | None, lease: Lease | None) -> None:
        self.view, self.lease = view, lease
        self._news.set()
        self._news = asyncio.Event()

    async def _watch(self) -> None:
        begin, end = self._folder.encode(), f"{self._folder[:-1]}0".encode()  # 0 follows / in ASCII
        trouble = False
        while True:
            try:
                keys, revision = await self._client.all(begin, end)
            except StoreUnavailable as error:
                if not trouble:
                    log.error("%s; trying again", error)
                trouble = True
                self._publish(None, self.lease)
                await asyncio.sleep(RETRY_S)
                continue
            if trouble:
                log.info("etcd answers")
            trouble = False
            self._publish(_view(keys, len(begin), revision, self.shards), self.lease)
            await self._client.changed(begin, revision + 1, end)

    async def _stay(self) -> None:
        """One lease after another; each is kept for as long as it lasts."""
        while True:
            try:
                lease = await Lease.grant(self._client, self._ttl_s, "this server's")
            except StoreUnavailable:
                await asyncio.sleep(RETRY_S)
                continue
            try:
                log.warning("leads no shard any more: %s", await self._live(lease))
            finally:
                self._publish(self.view, None)
                await asyncio.shield(lease.end())

    async def _live(self, lease: Lease) -> str:
        """Be seen, until the lease is lost; the reason. What a hand has deleted is written again."""
        lost = asyncio.create_task(lease.lost())
        doubtful_at = asyncio.get_running_loop().time() + 2.0 * self._ttl_s + 1.0
        try:
            while not lost.done():
                holder = self.view.servers.get(self.address) if self.view else None
                if holder == lease.id:
                    self._be_seen(lease)
                elif self.view and holder is None:
                    await self._register(lease)
                elif holder and asyncio.get_running_loop().time() > doubtful_at:
                    log.error(
                        "another server runs as %s, too: give each its own address with --advertise", self.address
                    )
                    doubtful_at = float("inf")
                news = asyncio.create_task(self.news(None if self.lease else REGISTER_S))
                await asyncio.wait({lost, news}, return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
            return lost.result()
        finally:
            lost.cancel()

    def _be_seen(self, lease: Lease) -> None:
        if self.lease is None:
            self._publish(self.view, lease)

    async def _register(self, lease: Lease) -> None:
        """Unless this server's life before is still seen, which ends with its lease."""
        key = f"{self._folder}servers/{self.address}".encode()
        with suppress(StoreUnavailable):
            await self._client.transact([is_free(key)], [put(key, b"", lease.id)])


def _view(keys: Iterable[Any], skip: int, revision: int, shards: int) -> View:
    servers: dict[str, int] = {}
    leaders: dict[int, Stand] = {}
    for key in keys:
        kind, _, name = key.key[skip:].decode(errors="replace").partition("/")
        if kind == "servers":
            servers[name] = key.lease
        elif kind == "leaders" and name.isdecimal() and int(name) < shards:
            leaders[int(name)] = Stand(key.value.decode(errors="replace"), key.create_revision, key.lease)
    return View(revision, servers, leaders, preferred(shards, servers, _addresses(leaders)))


def _addresses(leaders: Mapping[int, Stand]) -> dict[int, str]:
    return {shard: leader.address for shard, leader in leaders.items()}
