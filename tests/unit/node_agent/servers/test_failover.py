"""Failover transport to several servers: it finds the leader, and leaves it for the next one."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from rdzv_protocol import paths
from rdzv_protocol.codec import decode
from rdzv_protocol.errors import AgentFenced
from rdzv_protocol.messages import Ack, ErrorReply, LeaderReply, LeaderRequest, Reply, Wait

from node_agent import words
from node_agent.kernel.core import backoff
from node_agent.kernel.core.backoff import Unreachable
from node_agent.kernel.transport.retrying import RetryingClient
from node_agent.servers import failover
from node_agent.servers.failover import Failover
from rdzv_server.words import auth
from tests.support.message_search import pattern
from tests.support.process_info import until
from tests.unit.node_agent.kernel.transport.http_server import LEAVE, POLL, HttpServer, http

PATIENCE_S = 10.0


class FakeServer(HttpServer):
    """One of several servers. The test makes it lead, follow, or hang."""

    def __init__(self) -> None:
        super().__init__()
        self.leadership = 0
        self.leader: FakeServer | None = None
        self.hangs = False
        self.refusal: ErrorReply | None = None
        self.asked: list[str] = []
        self._changed = asyncio.Condition()

    @property
    def polls(self) -> int:
        return self.asked.count(paths.POLL)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def follow(self, leader: "FakeServer | None", leadership: int) -> None:
        async with self._changed:
            self.leader, self.leadership = leader, leadership
            self._changed.notify_all()

    async def asked_for(self, path: str) -> None:
        """Return once a client has asked."""
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(lambda: path in self.asked)

    async def answer(self, head: str, body: bytes) -> tuple[bytes, bool]:
        path = head.split()[1]
        async with self._changed:
            self.asked.append(path)
            self._changed.notify_all()
        return await self._answer(path, body), True

    async def _answer(self, path: str, body: bytes) -> bytes:
        if self.hangs:
            await asyncio.Event().wait()
        if path == paths.LEADER:
            return http(await self._tell_leader(decode(LeaderRequest, body)))
        if self.refusal:
            return http(self.refusal, "409 Conflict")
        if self.leader is self:
            wait = Wait(reason="waiting")
            reply = Reply(epoch="e", revision=8, lease_s=10.0, directive=wait, leadership=self.leadership)
            return http(reply if path == paths.POLL else Ack(epoch="e"))
        leader = self.leader.address if self.leader else None
        refusal = ErrorReply(code="not_leader", message="ask there", leader=leader, leadership=self.leadership)
        return http(refusal, "421 Misdirected Request")

    async def _tell_leader(self, request: LeaderRequest) -> LeaderReply:
        if request.run_id != POLL.run_id:  # servers that share the runs do not know a leader of an unknown run
            await asyncio.Event().wait()
        async with self._changed:
            await self._changed.wait_for(lambda: self.leader is not None and self.leadership > request.after)
        assert self.leader
        return LeaderReply(leadership=self.leadership, leader=self.leader.address, leads=self.leader is self)


class Cluster:
    """Servers, and the clients of one agent."""

    def __init__(self, servers: list[FakeServer]) -> None:
        self.all = servers
        self.logged: list[str] = []
        self.has_logged = asyncio.Event()
        self._clients: list[RetryingClient] = []

    async def lead(self, leader: FakeServer, leadership: int, known_to: list[FakeServer] | None = None) -> None:
        for server in known_to or self.all:
            await server.follow(leader, leadership)

    def agent(self, *endpoints: tuple[str, int]) -> Failover:
        self.servers = Failover(endpoints or [server.endpoint for server in self.all], None, self._log)
        return self.servers

    async def polled(self, leader: FakeServer, leadership: int = 5) -> RetryingClient:
        """Return a client of all servers that this leader has answered, while another server is watched for the next
        leader.
        """
        await self.lead(leader, leadership)
        self.agent()
        await polled(client := self.client())
        return client

    def client(self, *, side: bool = False) -> RetryingClient:
        failed = (lambda error: None) if side else (lambda error: self._log(f"failed: {error}"))
        self._clients.append(RetryingClient(self.servers.transport(), failed))
        return self._clients[-1]

    def _log(self, text: str) -> None:
        self.logged.append(text)
        self.has_logged.set()

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        for server in self.all:
            await server.close()


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    servers = [FakeServer() for _ in range(3)]
    for server in servers:
        await server.serve()
    cluster = Cluster(servers)
    yield cluster
    await cluster.close()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        assert "_watch_leaders" not in repr(task), "the agent stops asking who leads when its clients are closed"


async def polled(client: RetryingClient) -> Reply:
    async with asyncio.timeout(PATIENCE_S):
        return await client.ask(POLL)


# Finding the leader.


@pytest.mark.parametrize("leader", [0, 1, 2])
async def test_a_redirect_to_the_leader_is_not_logged(cluster, leader):
    a, b, c = cluster.all
    await cluster.lead(cluster.all[leader], 5)
    cluster.agent()
    client = cluster.client()
    assert (await polled(client)).leadership == 5
    assert [server.polls for server in (a, b, c)] == [1, int(leader == 1), int(leader == 2)]
    await polled(client)
    assert cluster.all[leader].polls == 2, "and there it stays"
    assert cluster.logged == []


async def test_the_second_client_goes_where_the_first_one_found_it(cluster):
    a, _b, c = cluster.all
    await cluster.lead(c, 5)
    cluster.agent()
    await polled(cluster.client())
    async with asyncio.timeout(PATIENCE_S):
        await cluster.client(side=True).ask(LEAVE)
    assert paths.LEAVE in c.asked and paths.LEAVE not in a.asked


async def test_one_address_is_enough_to_find_a_leader_elsewhere(cluster):
    a, b, _ = cluster.all
    await cluster.lead(b, 5)
    cluster.agent(a.endpoint)
    assert (await polled(cluster.client())).leadership == 5


async def test_servers_that_are_not_there_are_passed_over(cluster):
    a, b, c = cluster.all
    await cluster.lead(c, 5)
    await a.close()
    cluster.agent(a.endpoint, ("nowhere.invalid", 1), b.endpoint, c.endpoint)
    assert (await polled(cluster.client())).leadership == 5


async def test_a_leader_with_an_unresolvable_name_is_found_by_the_agents_endpoint_list(cluster):
    a, b, c = cluster.all
    away = FakeServer()
    await away.serve()
    await away.close()
    await b.follow(away, 5)
    await a.follow(away, 5)
    await c.follow(c, 5)
    cluster.agent()
    assert (await polled(cluster.client())).leadership == 5


async def test_a_refusal_of_the_leader_is_an_answer(cluster):
    a, *_ = cluster.all
    a.refusal = ErrorReply(code="agent_fenced", message="gone")
    cluster.agent()
    with pytest.raises(AgentFenced):
        await polled(cluster.client())


# Leaving the leader.


async def test_an_agent_rejected_by_one_server_tries_another_next(cluster):
    """The first server has not read its tokens again yet."""
    a, b, _c = cluster.all
    await cluster.lead(b, 5)
    a.refusal = ErrorReply(code="unauthorized", message=auth.WRONG_TOKEN)
    client = RetryingClient(cluster.agent().transport(), has_joined=True)
    assert (await polled(client)).leadership == 5
    await client.close()


async def test_a_move_to_the_next_leader_is_logged_once(cluster):
    a, b, _ = cluster.all
    client = await cluster.polled(a)
    await a.close()
    await cluster.lead(b, 6)
    await polled(client)
    await polled(client)
    assert cluster.logged == [words.connection.leads_now(b.address)]


async def test_without_a_leader_the_agent_waits_for_the_next_change(cluster, monkeypatch):
    monkeypatch.setattr(backoff, "delay", lambda attempt, jitter, longest_s=1.0: 3600.0)
    monkeypatch.setattr(backoff, "HANDOVER_S", 0.0)
    a, b, c = cluster.all
    client = await cluster.polled(a)
    await b.asked_for(paths.LEADER)
    await a.close()
    poll = asyncio.create_task(polled(client))
    async with asyncio.timeout(PATIENCE_S):
        await cluster.has_logged.wait()
    await cluster.lead(c, 6, [b, c])
    assert (await poll).leadership == 6
    assert cluster.logged[0].startswith("failed: ")
    assert f"{a.address}: 127.0.0.1: Connection refused; 127.0.0.1:" in cluster.logged[0]
    assert cluster.logged[1:2] == [words.connection.leads_now(c.address)]


@pytest.mark.parametrize("teller", [1, 2], ids=["the next leader tells", "another follower tells"])
async def test_a_leader_that_hangs_is_left_as_soon_as_another_one_leads(cluster, teller):
    a, b, c = cluster.all
    await cluster.lead(a, 5)
    cluster.agent(a.endpoint, *(server.endpoint for server in ((b, c) if teller == 1 else (c, b))))
    main, side = cluster.client(), cluster.client(side=True)
    await polled(main)
    a.hangs = True
    poll = asyncio.create_task(polled(main))
    report = asyncio.create_task(side.ask(LEAVE))
    await cluster.all[teller].asked_for(paths.LEADER)
    await a.asked_for(paths.LEAVE)
    await cluster.lead(b, 6, [b, c])
    assert (await poll).leadership == 6
    async with asyncio.timeout(PATIENCE_S):
        await report
    assert cluster.logged == [words.connection.leads_now(b.address)]


async def test_another_leader_behind_the_same_address_gets_a_report_that_hangs_at_the_one_before(cluster):
    a, *_ = cluster.all
    await cluster.lead(a, 5)
    cluster.agent(a.endpoint)
    main, side = cluster.client(), cluster.client(side=True)
    await polled(main)
    a.hangs = True
    report = asyncio.create_task(side.ask(LEAVE))
    await a.asked_for(paths.LEAVE)
    a.hangs = False
    await cluster.lead(a, 6)
    await polled(main)
    async with asyncio.timeout(PATIENCE_S):
        assert await report == Ack(epoch="e")


class SilentHost:
    """A transport that never connects. A new leader becomes known in the turn in which the wait for it ends."""

    is_silent = False

    def __init__(self, failover: Failover) -> None:
        self._failover = failover

    async def connect(self) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            self._failover.named(("leader", 1), 6)
        return ""

    async def close(self) -> None:
        pass


async def test_a_leader_named_as_a_wait_ends_is_harmless(monkeypatch):
    monkeypatch.setattr(failover, "CONNECT_TIMEOUT_S", 0.01)
    servers = Failover([("a", 1), ("b", 1)], None, lambda text: None)
    monkeypatch.setattr(servers, "http", lambda endpoint: SilentHost(servers))
    transport = servers.transport()
    with pytest.raises(Unreachable, match=pattern(words.connection.server_silent)):
        async with asyncio.timeout(PATIENCE_S):
            await transport.connect()
    await transport.close()


async def test_the_watched_server_may_die_too(cluster, monkeypatch):
    monkeypatch.setattr(backoff, "delay", lambda attempt, jitter, longest_s=1.0: 0.0)
    a, b, c = cluster.all
    client = await cluster.polled(a)
    await b.asked_for(paths.LEADER)
    await b.close()
    await c.asked_for(paths.LEADER)
    a.hangs = True
    poll = asyncio.create_task(polled(client))
    await cluster.lead(c, 6, [c])
    assert (await poll).leadership == 6


@pytest.mark.parametrize("number", [1, 3])
async def test_an_agent_keeps_the_connection_to_a_silent_server_until_it_is_answered(cluster, number):
    """If that connection ended, the server would treat the agent as lost."""
    leader = cluster.all[0]
    await cluster.lead(leader, 5)
    servers = cluster.agent(*(server.endpoint for server in cluster.all[:number]))
    await polled(client := cluster.client())
    leader.hangs, servers.answer_timeout_s = True, 0.05
    asked = asyncio.create_task(client.ask(POLL))
    await until(lambda: leader.polls >= 3)
    assert leader.open >= 2, "it has asked again, and the connection before is open"
    leader.hangs, servers.answer_timeout_s = False, PATIENCE_S
    await asyncio.wait_for(asked, PATIENCE_S)
    await until(lambda: leader.open <= 2)  # the client's, and that of the watch for another leader


async def test_a_servers_outdated_leader_is_ignored(cluster):
    a, b, c = cluster.all
    await cluster.lead(a, 5)
    await b.follow(c, 4)
    cluster.agent()
    client = cluster.client()
    await polled(client)
    await b.asked_for(paths.LEADER)
    await b.follow(c, 5)
    for _ in range(3):
        assert (await polled(client)).leadership == 5
    assert c.polls == 0


async def test_event_numbers_that_restart_are_followed(cluster):
    a, b, c = cluster.all
    client = await cluster.polled(a, 1_000)
    await a.close()
    await cluster.lead(c, 3, [b, c])  # another etcd
    assert (await polled(client)).leadership == 3
    assert cluster.servers.leadership == 3


async def test_a_planned_handover_is_not_logged(cluster, monkeypatch):
    """The next leader may learn of it a moment later than the agent."""
    monkeypatch.setattr(backoff, "HANDOVER_S", PATIENCE_S)
    a, b, c = cluster.all
    client = await cluster.polled(a)
    await b.asked_for(paths.LEADER)
    await a.close()
    poll = asyncio.create_task(polled(client))
    await c.asked_for(paths.POLL)
    await cluster.lead(c, 6, [b, c])
    assert (await poll).leadership == 6
    assert cluster.logged == [words.connection.leads_now(c.address)]


# No server.


@pytest.mark.parametrize("number", [1, 3], ids=["one server alone as ever", "several with every address"])
async def test_a_missing_server_is_reported(cluster, number):
    for server in cluster.all:
        await server.close()
    transport = cluster.agent(*(server.endpoint for server in cluster.all[:number])).transport()
    with pytest.raises(Unreachable) as caught:
        await transport.connect()
    refused = "127.0.0.1: Connection refused"
    told = "; ".join(f"{server.address}: {refused}" for server in cluster.all) if number > 1 else refused
    assert str(caught.value) == f"connect: {told}"
    await transport.close()


async def test_servers_without_failover_are_tried_in_order(cluster):
    a, b, _ = cluster.all
    await a.follow(a, 0)
    await b.follow(b, 0)
    cluster.agent()
    client = cluster.client()
    await polled(client)
    await a.close()
    assert (await polled(client)).leadership == 0
    assert b.polls == 1
    assert paths.LEADER not in b.asked
