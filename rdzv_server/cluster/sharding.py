"""Sharding of a cluster's runs: one of the servers leads each shard. With one shard, one server leads all runs.

Every server is a candidate for every shard. It answers for the shards that it leads, and names the leaders of the
others.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from math import inf

from msgspec import structs
from rdzv_protocol.actions import DrainRequest, UncordonRequest
from rdzv_protocol.errors import ServerUnavailable, UnknownNode
from rdzv_protocol.messages import LeaderReply
from rdzv_protocol.timing import LEADER_HOLD_S

from rdzv_server.cluster.cordon_follower import DECIDES, CordonFollower
from rdzv_server.cluster.election import Election
from rdzv_server.cluster.lease import RETRY_S
from rdzv_server.cluster.membership import Membership
from rdzv_server.cluster.placement import shard_of
from rdzv_server.cluster.replica import Replica, Term
from rdzv_server.config import ServerConfig
from rdzv_server.core.kernel.run import Run
from rdzv_server.core.node_history import Incident
from rdzv_server.core.runs.registry import Registry
from rdzv_server.server import HttpServer
from rdzv_server.service.driver import Driver
from rdzv_server.service.interface import (
    Answer,
    Answered,
    AnyRequest,
    Connection,
    Load,
    OperatorRequest,
    ServerState,
    ShardView,
)
from rdzv_server.service.measurements import Measurements
from rdzv_server.service.observers import Observer
from rdzv_server.storage.base import StoreBroken, StoreUnavailable
from rdzv_server.storage.etcd import EtcdStore, format_key, read_attempts_with, settle_format
from rdzv_server.storage.etcd_client import EtcdClient, EtcdTls
from rdzv_server.storage.outage import Outage, OutageLog
from rdzv_server.storage.store_location import EtcdLocation
from rdzv_server.tasks import first_of
from rdzv_server.words import cluster as words
from rdzv_server.words import nodes, operations
from rdzv_server.words import service as service_words

log = logging.getLogger("rdzv_server")

LEAVE_S = 60.0
"""Seconds for which a server leaves a shard to the others after it could not lead it."""


class Sharding:
    """Answers to agents and operators about all shards, led here or elsewhere. `run` leads and follows."""

    def __init__(self, client: EtcdClient, prefix: str, address: str, config: ServerConfig) -> None:
        """Set up the shards. `prefix`: prefix of the cluster's keys. `address`: this server's HOST:PORT, for agents."""
        self._client = client
        self._prefix = prefix
        self._membership = membership = Membership(client, prefix, address, config)
        self._config = config
        self._outages = OutageLog()
        """Log of the shards whose leader cannot write."""
        self.measurements = Measurements()
        self._replicas = [
            Replica(
                Election(client, membership, shard),
                address,
                partial(self._driver, shard),
                shard if config.shards > 1 else None,
                CordonFollower(client, f"{prefix}/shards/{DECIDES}") if shard != DECIDES else None,
            )
            for shard in range(config.shards)
        ]
        self._closed = asyncio.Event()
        self._started_at = self.now()

    def _driver(self, shard: int, leadership: int) -> Driver:
        """Return the driver of a leadership."""
        config, key = self._config, self._membership.leader_key(shard)
        # Limits of one shard: its part of the server's limits.
        most = [-(-number // config.shards) for number in (config.max_runs, config.max_agents, config.max_events)]
        registry = Registry(config.retention_s, *most, knows_all_runs=config.shards == 1, exclusion=config.exclusion)
        store = EtcdStore(self._client, f"{self._prefix}/shards/{shard}", key, leadership)
        return Driver(registry, store, self.measurements, outages=self._outages)

    async def run(self) -> None:
        """Lead the shards that this server should lead, forever; leave all at once when cancelled.

        Raises errors after which the server cannot continue.
        """
        await Outage().outlast(lambda: settle_format(self._client, self._prefix, len(self._replicas)), RETRY_S)
        await first_of(self._membership.run(), *map(self._lead, range(len(self._replicas))))

    async def _lead(self, shard: int) -> None:
        """Lead a shard whenever possible. If its records cannot be used, the other shards continue."""
        replica = self._replicas[shard]
        while True:
            try:
                await replica.run()
            except StoreBroken as error:
                replica.broken = str(error)
                if all(each.broken for each in self._replicas):
                    raise
                log.error(words.shard_broken(shard, replica.broken, LEAVE_S))
                await replica.follow_others(LEAVE_S)

    async def ask(self, request: AnyRequest, connection: Connection) -> Answer:
        """Answer with the run's shard.

        If there are several, a `LeaderRequest` without a run is held, and gets no leader.
        """
        if isinstance(request, OperatorRequest):
            request = await self._checked(request)
        if isinstance(request, OperatorRequest) or len(self._replicas) == 1 or request.run_id is not None:
            return await self._of(request.run_id).ask(request, connection)
        asked_at = self.now()
        with suppress(TimeoutError):
            async with asyncio.timeout(LEADER_HOLD_S):
                await self._closed.wait()
        connection.held(self.now() - asked_at)
        return LeaderReply(leadership=0)

    async def _checked(self, asked: OperatorRequest) -> OperatorRequest:
        """Return a request about a node with what the shards know of the node, and any other request as it is.

        Raises `UnknownNode` for a drain of a node that no shard knows, or `ServerUnavailable` if etcd fails. An
        uncordon of a node that is cordoned nowhere changes nothing. The leader of shard 0, which decides about nodes,
        knows its own runs. It reads those of other shards in etcd. A request that was carried out before gets its
        earlier answer.
        """
        wanted, decides = asked.message, self._replicas[DECIDES]
        term = decides.term if decides.leads else None
        if len(self._replicas) == 1 or term is None or not isinstance(wanted, DrainRequest | UncordonRequest):
            return asked
        if term.driver.registry.nodes.answer_to(wanted.request_id):
            return asked
        matters = _has_node if isinstance(wanted, DrainRequest) else _keeps_out
        is_cordoned = wanted.node_id in term.driver.registry.nodes.state.cordons
        if is_cordoned or await self._holds_anywhere(matters, wanted.node_id):
            return asked
        if isinstance(wanted, DrainRequest):
            raise UnknownNode(nodes.unknown_node(wanted.node_id))
        return structs.replace(asked, idle=operations.not_cordoned(wanted.node_id))

    async def _holds_anywhere(self, matters: Callable[[Registry, str], bool], node_id: str) -> bool:
        """Return whether the check is True for a node in any shard, or the records of a shard are damaged."""
        if any(matters(term.driver.registry, node_id) for term in self._terms()):
            return True
        for shard, replica in enumerate(self._replicas):
            if replica.leads:
                continue
            try:
                attempts = await read_attempts_with(self._client, f"{self._prefix}/shards/{shard}", node_id)
            except StoreUnavailable as error:
                raise ServerUnavailable(str(error)) from None
            except StoreBroken:
                return True
            registry = Registry(retention_s=inf)
            for record in chain.from_iterable(attempts):
                registry.replay(record)
            if matters(registry, node_id):
                return True
        return False

    async def with_driver(self, run_id: str, work: Callable[[Driver], Awaitable[Answered]]) -> Answered:
        return await self._of(run_id).in_term(lambda term: work(term.driver))

    def observe(self, observer: Observer) -> None:
        for replica in self._replicas:
            replica.observe(observer)

    def lost(self, connection: Connection) -> None:
        """Note that a connection has closed, which may have carried agents of several shards."""
        for term in self._terms():
            term.rendezvous.lost(connection)

    def load(self) -> Load:
        return Load(
            long_polls=sum(term.rendezvous.load().long_polls for term in self._terms()),
            shards=len(self._replicas),
            shards_led=sum(replica.leads for replica in self._replicas),
        )

    def _of(self, run_id: str | None) -> Replica:
        """Return the replica of the run's shard. If `run_id` is None: the replica that decides about nodes."""
        return self._replicas[DECIDES if run_id is None else shard_of(run_id, len(self._replicas))]

    def _terms(self) -> list[Term]:
        """Return the terms of the shards that this server leads as far as it knows, certain or not."""
        return [replica.term for replica in self._replicas if replica.term]

    def runs(self) -> list[Run]:
        """Return the runs of the shards that this server leads."""
        return list(chain.from_iterable(term.driver.runs() for term in self._terms()))

    def incidents_of(self, node_id: str) -> list[Incident]:
        return [each for term in self._terms() for each in term.driver.registry.incidents_of(node_id)]

    def now(self, run_id: str = "") -> float:
        """Return the time by the clock of the run's shard; without a run, by this server's own clock."""
        term = self._of(run_id).term if run_id else None
        return term.driver.now() if term else asyncio.get_running_loop().time()

    def state(self) -> ServerState:
        """Return the state of this server.

        It has a leader and an epoch, which differ between shards, only with one shard.
        """
        replicas, only = self._replicas, self._replicas[0] if len(self._replicas) == 1 else None
        return ServerState(
            epoch=only.term.rendezvous.epoch if only and only.term else "",
            unhealthy_reason=self._unhealthy_reason(),
            leads=any(replica.leads for replica in replicas),
            leader=only.leader if only else None,
            leadership=max(replica.leadership for replica in replicas),
            shards=[ShardView(shard, replica.leader, replica.leadership) for shard, replica in enumerate(replicas)],
            peers=self._membership.peers,
            uptime_s=round(self.now() - self._started_at, 3),
            set_apart=[run_id for term in self._terms() for run_id in term.driver.registry.runs_apart],
            event_errors=[run_id for term in self._terms() for run_id in term.driver.observers.failed_runs],
            cordons=[*{cordon.node_id: cordon for term in self._terms() for cordon in term.driver.cordons()}.values()],
        )

    def _unhealthy_reason(self) -> str | None:
        """Return why this server cannot decide for a shard that it leads, or knows no leader of any shard; else
        None."""
        if self._closed.is_set():
            return service_words.CLOSING
        reasons = [replica.unhealthy_reason for replica in self._replicas]
        own = [replica.unhealthy_reason for replica in self._replicas if replica.term]
        return next(filter(None, own), None if None in reasons else reasons[0])

    def close(self) -> None:
        """Take no more requests: agents keep their workers and try another server. `run` has been cancelled."""
        self._closed.set()
        for replica in self._replicas:
            replica.close()


def _has_node(registry: Registry, node_id: str) -> bool:
    return any(node_id in run.node_ids for run in _lasting(registry))


def _keeps_out(registry: Registry, node_id: str) -> bool:
    """Return whether the node is cordoned in the whole shard, or in one of its runs."""
    return node_id in registry.nodes.state.cordons or any(node_id in run.cordons for run in _lasting(registry))


def _lasting(registry: Registry) -> Iterator[Run]:
    return (run for run in registry.runs() if not run.stage.is_end)


class ClusterServer(HttpServer):
    """One of several servers: `--store etcd://HOST,HOST,HOST/CLUSTER`."""

    def __init__(self, place: EtcdLocation, address: str, config: ServerConfig) -> None:
        self._client = EtcdClient(place.members, EtcdTls(config.etcd_ca, config.etcd_cert, config.etcd_key))
        self._sharding = Sharding(self._client, place.prefix, address, config)
        self._prefix = place.prefix
        super().__init__(self._sharding)

    async def start(self) -> None:
        self._running = asyncio.create_task(self._sharding.run(), name="cluster")

    async def stop(self) -> None:
        self._running.cancel()  # it resigns, so that rejected agents find another leader
        await asyncio.gather(self._running, return_exceptions=True)
        self._sharding.close()
        await self.close_http()
        await self._client.close()

    async def renew_for_store(self) -> None:
        await self._client.renew(format_key(self._prefix))

    async def crashed(self) -> None:
        await asyncio.shield(self._running)
