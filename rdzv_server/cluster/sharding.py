"""The runs of a cluster, shared by its servers: each shard is led by one of them, as all runs are without shards.

Every server stands for every shard. It answers for those that it leads, and names the leader of the others.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from rdzv_protocol.messages import LeaderReply
from rdzv_protocol.timing import LEADER_HOLD_S

from rdzv_server.cluster.balance import Balance
from rdzv_server.cluster.lease import RETRY_S
from rdzv_server.cluster.membership import Presence
from rdzv_server.cluster.placement import shard_of
from rdzv_server.cluster.replica import Failover
from rdzv_server.cluster.shard_candidacy import ShardCandidacy
from rdzv_server.cluster.task_group import together
from rdzv_server.core.run import Run
from rdzv_server.service.interface import Answer, AnyRequest, Connection, ShardView
from rdzv_server.storage import shard_count
from rdzv_server.storage.base import StoreBroken, StoreUnavailable
from rdzv_server.storage.etcd import EtcdStore
from rdzv_server.storage.etcd_client import EtcdClient

log = logging.getLogger("rdzv_server")


@dataclass(frozen=True, slots=True)
class Shard:
    """One of them, as this server sees it."""

    failover: Failover
    candidacy: ShardCandidacy


class Shards:
    """What agents and operators are answered, whoever leads what. `run` makes it work."""

    def __init__(
        self,
        client: EtcdClient,
        prefix: str,
        address: str,
        *,
        lease_s: int,
        shards: int,
        retention_s: float,
        max_runs: int,
    ) -> None:
        """`max_runs`: of the whole cluster; a shard takes its part."""
        self._client = client
        self._prefix = prefix
        self._presence = Presence(client, prefix, address, lease_s, shards)
        self._balance = Balance(self._presence, lease_s, lambda shard: self._shards[shard].candidacy.leadership)
        most = -(-max_runs // shards)
        self._shards = [self._shard(number, retention_s, most) for number in range(shards)]
        self._standing = set(range(shards))
        self._closing = False
        self._closed = asyncio.Event()
        self._started_at = asyncio.get_running_loop().time()
        self.connections = _Connections(self._failovers)

    def _shard(self, number: int, retention_s: float, max_runs: int) -> Shard:
        client, root, key = self._client, f"{self._prefix}/shards/{number}", self._presence.leader_key(number)
        candidacy = ShardCandidacy(client, self._presence, number)
        failover = Failover(
            candidacy, self._presence.address, lambda leadership: EtcdStore(client, root, leadership, key),
            retention_s, max_runs, f"shard {number}",
        )  # fmt: skip
        return Shard(failover, candidacy)

    # Leading and following.

    async def run(self) -> None:
        """Lead what it should, for ever; when cancelled it leaves all at once. Raises what it cannot go on after."""
        await self._settle()
        leading = (self._lead(number) for number in range(len(self._shards)))
        await together(self._presence.run(), self._balance.run(), *leading)

    async def _settle(self) -> None:
        while True:
            try:
                return await shard_count.settle(self._client, self._prefix, len(self._shards))
            except StoreUnavailable as error:
                log.error("%s; trying again", error)
                await asyncio.sleep(RETRY_S)

    async def _lead(self, number: int) -> None:
        """One whose records cannot be used must not bring the others down."""
        try:
            await self._shards[number].failover.run()
        except StoreBroken as error:
            self._standing.discard(number)
            if not self._standing:
                raise
            log.error("shard %d: cannot be led by this server; the others go on: %s", number, error)
            await asyncio.Event().wait()

    # What agents ask.

    async def ask(self, request: AnyRequest, connection: Connection) -> Answer:
        """The answer of the run's shard. Who asks for a leader without saying of which run is told nothing."""
        if request.run_id is not None:
            return await self._of(request.run_id).ask(request, connection)
        try:
            async with asyncio.timeout(LEADER_HOLD_S):
                await self._closed.wait()
        except TimeoutError:
            pass
        return LeaderReply(leadership=0)

    def _of(self, run_id: str) -> Failover:
        return self._shards[shard_of(run_id, len(self._shards))].failover

    # What operators see.

    def runs(self) -> list[Run]:
        """Those of the shards that this server leads."""
        return list(chain.from_iterable(failover.runs() for failover in self._failovers))

    def now(self, run_id: str = "") -> float:
        """Each shard has a clock of its own. Without a run: the server's."""
        return self._of(run_id).now() if run_id else asyncio.get_running_loop().time()

    @property
    def started_at(self) -> float:
        return self._started_at

    @property
    def epoch(self) -> str:
        """Of each shard it is another."""
        return ""

    @property
    def leads(self) -> bool:
        """Whether it leads any shard."""
        return any(failover.leads for failover in self._failovers)

    @property
    def leader(self) -> str | None:
        """Of each shard it may be another."""
        return None

    @property
    def leadership(self) -> int:
        return max(failover.leadership for failover in self._failovers)

    @property
    def shards(self) -> Sequence[ShardView]:
        return [
            ShardView(number, failover.leader, failover.leadership) for number, failover in enumerate(self._failovers)
        ]

    @property
    def trouble(self) -> str | None:
        """What keeps it from deciding for a shard that it leads; or no leader is known of any."""
        if self._closing:
            return "shutting down"
        troubles = [failover.trouble for failover in self._failovers]
        own = [failover.trouble for failover in self._failovers if failover.reigns]
        return next(filter(None, own), None if None in troubles else troubles[0])

    def close(self) -> None:
        """Take no more requests: agents keep their workers and try another server. `run` has been cancelled."""
        self._closing = True
        self._closed.set()
        for failover in self._failovers:
            failover.close()

    @property
    def _failovers(self) -> list[Failover]:
        return [shard.failover for shard in self._shards]


class _Connections:
    """Those of all shards: a connection may carry agents of several."""

    def __init__(self, failovers: Sequence[Failover]) -> None:
        self._all = [failover.connections for failover in failovers]

    def lost(self, connection: Connection) -> None:
        for connections in self._all:
            connections.lost(connection)
