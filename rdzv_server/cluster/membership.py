"""Membership of this server in its cluster: its lease, its entry in etcd, and the view of all entries and leaders.

    PREFIX/live/servers/ADDRESS    a server that is there, "ready" once it has stayed for a while; attached to its lease
    PREFIX/live/leaders/SHARD      the address of a shard's leader; attached to that server's lease, too. Its create
                                   revision is the number of the leadership

One lease for all: a server that is gone is gone from every shard at the same moment, and all servers see that at once.
One watch for all: it covers `live/`, which is read as a whole after each change in it.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rdzv_server.cluster.lease import RETRY_S, Lease
from rdzv_server.cluster.placement import owners
from rdzv_server.config import ServerConfig
from rdzv_server.storage.base import StoreUnavailable
from rdzv_server.storage.etcd_client import EtcdClient, end_of, is_made_at, put
from rdzv_server.storage.outage import Outage, OutageLog
from rdzv_server.tasks import first_of
from rdzv_server.words import cluster as words

log = logging.getLogger("rdzv_server")

REGISTER_S = 1.0
"""Seconds between two tries of a server to write its missing entry."""
READY = b"ready"


@dataclass(frozen=True, slots=True)
class Member:
    """Server that is there. `revision`: create revision of its entry, which differs in each of its lifetimes."""

    address: str
    revision: int
    lease_id: int
    is_ready: bool


@dataclass(frozen=True, slots=True)
class Leader:
    """Leader of a shard. `number`: number of its leadership; a higher one is later."""

    address: str
    number: int
    lease_id: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """The servers that are there and the leaders, as etcd had them at `revision`."""

    revision: int
    members: Mapping[str, Member]
    leaders: Mapping[int, Leader]
    owners: Mapping[int, str]
    """Address of the server that should lead each shard. Ready or leading servers share the shards, else all."""

    def successor(self, shard: int) -> Member | None:
        """Return the ready server to which the shard's leader should leave it; None if there is none."""
        owner = self.owners[shard]
        member = self.members.get(owner)
        return member if member and member.is_ready and owner != self.leaders[shard].address else None


class Membership:
    """Membership of this server, while `run` runs. `address`: address at which agents reach the server."""

    def __init__(self, client: EtcdClient, prefix: str, address: str, config: ServerConfig) -> None:
        self.address = address
        self.view: View | None = None
        """Latest view; None if etcd does not answer."""
        self.peers: list[str] = []
        """Addresses of the other servers that were there when etcd last answered."""
        self.lease: Lease | None = None
        """Lease of this lifetime of the server; None while the others do not see it."""
        self._held: Lease | None = None
        """Latest lease, also while the others do not see it."""
        self.losses = 0
        """How often etcd has lost changes, as far as this server has noticed. Then numbers of leaderships begin again:
        they are revisions."""
        self._client = client
        self._folder = f"{prefix}/live/"
        self._config = config
        self._outage = Outage()
        self.refusals = OutageLog()
        """Log of the shards that this server cannot take over because etcd refuses something."""
        self._change = asyncio.Event()
        self._revision = 0
        """Revision of etcd at the last look."""

    async def run(self) -> None:
        """Keep this server a member, forever. Its lease ends when this is cancelled. Raises `StoreBroken`."""
        await first_of(self._watch(), self._stay())

    async def changed(self, within_s: float | None = None) -> None:
        """Return when the view or the lease has changed, or after `within_s` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._change.wait()

    @property
    def is_current(self) -> bool:
        """Whether the leaders in the view may still lead: etcd has answered within the time of a lease."""
        return self.view is not None and self._held is not None and self._held.is_certain

    @property
    def outage_reason(self) -> str | None:
        """Reason why this server cannot use etcd; None while it can."""
        return self._outage.reason

    def leader_key(self, shard: int) -> bytes:
        return f"{self._folder}leaders/{shard}".encode()

    def _publish(self, view: View | None, lease: Lease | None) -> None:
        self.view, self.lease = view, lease
        self._change.set()
        self._change = asyncio.Event()

    async def _watch(self) -> None:
        begin = self._folder.encode()
        while True:
            revision = await self._outage.outlast(self._look, RETRY_S)
            await self._client.changed(begin, revision + 1, end_of(begin))

    async def _look(self) -> int:
        """Read all entries. Return their revision."""
        begin, known = self._folder.encode(), max(self._revision, self._client.revision)
        try:
            keys, _, revision = await self._client.range(begin, end_of(begin))
        except StoreUnavailable:
            self._publish(None, self.lease)
            raise
        if revision < known:
            log.error(words.lost_changes(self._client.name, revision, known))
            self._client.revision = revision
            self.losses += 1
            if self._held:
                self._held.give_up()  # what this server leads, it leads again with what etcd holds
        self._revision = revision
        view = _view(keys, len(begin), revision, self._config.shards)
        self.peers = sorted(view.members.keys() - {self.address})
        self._publish(view, self.lease)
        return revision

    async def _stay(self) -> None:
        """Hold one lease after another, each as long as it lasts."""
        while True:
            lease = await self._outage.outlast(lambda: Lease.grant(self._client, self._config.leader_lease_s), RETRY_S)
            self._held = lease
            try:
                await first_of(lease.lost(), self._be_seen(lease))
            finally:
                self._publish(self.view, None)
                await asyncio.shield(lease.end())

    async def _be_seen(self, lease: Lease) -> str:
        """Keep this server's entry up to date, forever; write it again if another program deletes it."""
        clock = asyncio.get_running_loop().time
        doubtful_at, ready_at = clock() + 2.0 * self._config.leader_lease_s + 1.0, float("inf")
        while True:
            entry = self.view.members.get(self.address) if self.view else None
            if entry and entry.lease_id == lease.id:
                if self.lease is None:
                    ready_at = clock() + self._config.rebalance_after_s
                    self._publish(self.view, lease)
                if not entry.is_ready and clock() >= ready_at:
                    await self._write_entry(lease, entry.revision, READY)
                left_s = max(REGISTER_S / 10, ready_at - clock())
                await self.changed(None if entry.is_ready else left_s)
                continue
            if self.view and entry is None:
                await self._write_entry(lease, 0, b"")
            elif entry and clock() > doubtful_at:  # until then it may be from this server's previous lifetime
                log.error(words.same_address(self.address))
                doubtful_at = float("inf")
            await self.changed(REGISTER_S)

    async def _write_entry(self, lease: Lease, revision: int, value: bytes) -> None:
        """Write this server's entry, if its revision is `revision` now; 0: if there is no entry."""
        key = f"{self._folder}servers/{self.address}".encode()
        with suppress(StoreUnavailable):
            await self._client.transact([is_made_at(key, revision)], [put(key, value, lease.id)])


def _view(keys: Iterable[Any], skip: int, revision: int, shards: int) -> View:
    members: dict[str, Member] = {}
    leaders: dict[int, Leader] = {}
    for key in keys:
        kind, _, name = key.key[skip:].decode(errors="replace").partition("/")
        if kind == "servers":
            members[name] = Member(name, key.create_revision, key.lease, key.value == READY)
        elif kind == "leaders" and name.isdecimal() and int(name) < shards:
            leaders[int(name)] = Leader(key.value.decode(errors="replace"), key.create_revision, key.lease)
    addresses = {shard: leader.address for shard, leader in leaders.items()}
    sharing = {address for address, member in members.items() if member.is_ready} | set(addresses.values())
    return View(revision, members, leaders, owners(shards, sharing or members, addresses))
