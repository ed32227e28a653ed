"""Several servers over a real etcd, the agents of a run, and a probe that measures how soon another server answers."""

import asyncio
import json
import sys
import time
from base64 import b64decode
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgpack
from rdzv_protocol import paths
from rdzv_protocol.codec import decode
from rdzv_protocol.errors import AgentFenced, StaleRound
from rdzv_protocol.messages import Directive, Drain, JoinRequest, PollRequest, Reply, Start, Wait
from rdzv_protocol.settings import RequestedSettings

from node_agent.kernel.transport.retrying import RetryingClient
from node_agent.servers.failover import Failover
from rdzv_server.cluster.placement import shard_of
from tests.support.cluster import Cluster
from tests.support.etcd import Etcd
from tests.support.programs import PATIENCE_S, Server
from tests.support.scenario import a_join
from tests.support.tcp_proxy import Exchange, TcpProxy
from tests.support.worker_hub import WorkerHub

LEASE_S = 2
TAKEOVER_S = LEASE_S + 5.0
"""Most seconds until another server acts: the lease of the lost leader, and a margin for a busy machine."""
REQUESTS = {paths.JOIN: JoinRequest, paths.POLL: PollRequest}
LED = (*REQUESTS, paths.REPORT, paths.LEAVE)
"""Paths that only a leader answers with 200."""


class Replica(Server):
    """A server with the proxy through which agents reach it."""

    proxy: TcpProxy

    async def leads(self) -> None:
        await self.line("leading: ")

    async def is_leader(self) -> bool:
        return bool((await self.status())["server"]["leads"])


class Replicas(Cluster):
    """Servers that share an etcd, and agents that know all of them.

    At the end it checks every answer: at most one server has acted for a shard.
    """

    servers: list[Replica]
    has_forgotten = False
    """Whether an operator made the servers forget a run. Its agents are refused and join again."""

    def __init__(self, hub: WorkerHub, etcd: Etcd, name: str, shards: int = 1) -> None:
        super().__init__(hub)
        self.etcd = etcd
        self.name = name
        self._shards = shards
        self._exchanges: list[Exchange] = []

    async def __aexit__(self, *error: object) -> None:
        await super().__aexit__(*error)
        by_shard: dict[int, list[Exchange]] = defaultdict(list)
        for exchange in self._exchanges:
            if exchange.path in LED and not (self.has_forgotten and code_of(exchange) == AgentFenced.code):
                run_id = str(msgpack.unpackb(exchange.request)["run_id"])
                by_shard[shard_of(run_id, self._shards)].append(exchange)
        for exchanges in by_shard.values():
            check_leaders(exchanges, self._shards > 1)

    @property
    def store(self) -> str:
        """Value of `--store`: a separate prefix in the etcd."""
        return f"{self.etcd.store}/{self.name}"

    @property
    def endpoint(self) -> str:
        return ",".join(server.proxy.address for server in self.servers)

    async def replicate(
        self, *flags: str, members: Sequence[str] | None = None, proxy: TcpProxy | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Replica:  # fmt: skip
        """Start another server. `members`: addresses through which it reaches etcd. `proxy`: that of a lost server."""
        if proxy is None:
            proxy = await TcpProxy(exchanges=self._exchanges).__aenter__()
        store = f"etcd://{','.join(members)}/{self.name}" if members else self.store
        flags = ("--store", store, "--leader-lease", str(LEASE_S), "--advertise", proxy.address, *flags)
        server = await Replica.listen(*flags, env=env)
        server.proxy, proxy.target = proxy, server.endpoint
        self.servers.append(server)
        return server

    def running(self) -> list[Replica]:
        return [server for server in self.servers if server.is_running]

    async def leader(self) -> Replica:
        """Return the leader, which must exist."""
        for server in self.running():
            if await server.is_leader():
                return server
        raise AssertionError("no server leads")

    async def lose_server(self) -> None:
        """Kill the leader."""
        await (await self.leader()).kill()

    async def regain_server(self) -> None:
        """Return when another server leads."""
        waiting = [asyncio.create_task(server.leads()) for server in self.running()]
        _, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    def records(self) -> dict[str, int]:
        """Return the keys of all records in etcd, each with the revision at which it was written."""
        found = json.loads(self.etcd.ctl("get", "--prefix", f"/rdzv-server/{self.name}/shards/", "-w", "json"))
        return {b64decode(key["key"]).decode(): int(key["mod_revision"]) for key in found["kvs"]}

    async def end(self) -> None:
        await super().end()
        for server in self.servers:
            await server.proxy.__aexit__()


def decode_reply(exchange: Exchange) -> Reply | None:
    return decode(Reply, exchange.answer) if exchange.status == 200 and exchange.path in REQUESTS else None


def code_of(exchange: Exchange) -> str:
    """Return the code of a refusal that names a better server, empty for other answers."""
    return str(msgpack.unpackb(exchange.answer)["code"]) if exchange.status == 409 else ""


def check_leaders(exchanges: Sequence[Exchange], may_return: bool) -> None:
    """Check one shard: at most one server acts at a time, and all give an agent the same directive.

    `may_return`: whether a leader may pass the shard to another server and get it back.
    """
    told: dict[tuple[str, str, int], Directive] = {}
    leaders: dict[int, str] = {}
    latest = 0
    for number, exchange in enumerate(exchanges):
        is_late = code_of(exchange) == StaleRound.code
        assert is_late or exchange.status in (200, 421, 503), exchange
        if reply := decode_reply(exchange):
            assert leaders.setdefault(reply.leadership, exchange.proxy) == exchange.proxy
            assert reply.leadership >= latest, "a leader of the past has answered"
            latest = reply.leadership
            if not isinstance(reply.directive, Wait | Drain):  # these contain the remaining time
                request = decode(REQUESTS[exchange.path], exchange.request)
                key = (request.run_id, request.agent_id, reply.revision)
                assert told.setdefault(key, reply.directive) == reply.directive
        elif exchange.status == 200 or is_late:  # late: sent again, because the first answer was lost
            led = [leadership for leadership, server in leaders.items() if server == exchange.proxy]
            is_again = may_return and next_leadership(exchanges[number:], exchange.proxy) > latest
            assert not led or max(led) == latest or is_again, "a leader of the past has judged a report"


def next_leadership(exchanges: Sequence[Exchange], proxy: str) -> int:
    """Return the leadership of this server's next reply, 0 if none follows."""
    replies = (decode_reply(each) for each in exchanges if each.proxy == proxy)
    return next((reply.leadership for reply in replies if reply), 0)


class Probe:
    """An agent of a separate run, message by message, which notices at once when a server acts."""

    def __init__(self, endpoints: str, run_id: str = "probe") -> None:
        self._run_id = run_id
        pairs = [endpoint.rpartition(":") for endpoint in endpoints.split(",")]
        self.notes: list[str] = []
        servers = Failover([(host, int(port)) for host, _, port in pairs], None, self.notes.append)
        self._client = RetryingClient(servers.transport(), lambda error: self.notes.append(str(error)))

    async def __aenter__(self) -> "Probe":
        settings = RequestedSettings(lease_s=600.0, disconnect_grace_s=600.0)
        join = a_join("probe", run_id=self._run_id, addr="127.0.0.1", settings=settings)
        async with asyncio.timeout(PATIENCE_S):
            self.reply = await self._client.ask(join)
        assert isinstance(self.reply, Reply) and isinstance(self.reply.directive, Start)
        self.leadership = self.reply.leadership
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.close()

    async def answered(self) -> float:
        """Ask once, and return the monotonic time of the answer."""
        poll = PollRequest(run_id=self._run_id, agent_id="probe", revision=self.reply.revision, hold=False)
        async with asyncio.timeout(PATIENCE_S):
            answer = await self._client.ask(poll)
        assert isinstance(answer, Reply) and answer.directive == self.reply.directive
        self.leadership = answer.leadership
        return time.monotonic()

    async def takeover_s(self, since: float) -> float:
        """Return the seconds after `since` at which another server acts."""
        before = self.leadership
        took_s = await self.answered() - since
        while self.leadership == before:
            took_s = await self.answered() - since
        print(f"took over after {took_s:.2f} s", file=sys.stderr)
        return took_s
