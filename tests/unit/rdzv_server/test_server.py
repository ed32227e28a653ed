"""A whole server on a real socket: what it learns from connections, and how it closes."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator

import pytest
from rdzv_protocol import paths
from rdzv_protocol.codec import encode
from rdzv_protocol.errors import AgentFenced, ServerUnavailable
from rdzv_protocol.messages import Ack, LeaveRequest, PollRequest, ReportRequest, Start, Stop, Wait

from node_agent.kernel.transport.http import HttpTransport
from rdzv_server.http.metrics import MetricsView
from rdzv_server.server import RendezvousServer, bind
from rdzv_server.storage.sqlite import SqliteStore
from rdzv_server.words import http as http_words
from rdzv_server.words import service as words
from tests.support.agent_side import PATIENCE_S, AgentSide
from tests.support.scenario import RUN_ID, Connection, a_failure, a_join, settings_of

SETTINGS = {"max_restarts": 3, "disconnect_grace_s": 0.05}


class Site:
    """A server, and its agents' transports."""

    def __init__(self) -> None:
        self.server = RendezvousServer()
        self._transports: list[HttpTransport] = []

    async def open(self) -> None:
        listener = bind("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        await self.server.start()
        await self.server.listen(listener)

    def agent(self, name: str) -> "Agent":
        return Agent(name, self.transport())

    def transport(self) -> HttpTransport:
        self._transports.append(HttpTransport("127.0.0.1", self.port, None))
        return self._transports[-1]

    async def close(self) -> None:
        for transport in self._transports:
            await transport.close()
        await self.server.stop()


class Agent(AgentSide):
    """An agent with its own transport."""

    def __init__(self, name: str, transport: HttpTransport) -> None:
        self.transport = transport
        super().__init__(name, lambda request: self.transport.exchange(request), **SETTINGS)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    await site.open()
    yield site
    await site.close()


async def two_running(site: Site) -> tuple[Agent, Agent]:
    """Return the agents of a formed round. Agent a has joined first."""
    a, b = site.agent("a"), site.agent("b")
    first = asyncio.create_task(a.join("2"))
    await parked(site, 1)
    await asyncio.gather(first, b.join("2"))
    await asyncio.gather(a.told(Start), b.told(Start))
    return a, b


# Connections.


async def test_an_agent_that_returned_while_the_server_stood_still_is_not_lost(site):
    """The request is unread in the kernel when the grace ends."""
    _, b = await two_running(site)
    poll = asyncio.create_task(b.poll())
    await parked(site, 1)
    poll.cancel()
    await b.transport.close()
    (run,) = site.server.rendezvous.runs()
    async with asyncio.timeout(PATIENCE_S):
        while "b" not in run.leases.absent_since:  # noqa: ASYNC110
            await asyncio.sleep(0)
    again = PollRequest(run_id=RUN_ID, agent_id="b", revision=0)
    with socket.create_connection(("127.0.0.1", site.port)) as back:
        body = encode(again)
        head = f"POST {paths.POLL} HTTP/1.1\r\nHost: x\r\nContent-Type: {paths.MEDIA_TYPE}\r\n"
        back.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        time.sleep(4 * SETTINGS["disconnect_grace_s"])  # noqa: ASYNC251
        while run.leases.absent_since:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert not run.departures


async def test_an_agent_whose_connection_closes_under_its_parked_poll_is_noticed_at_once(site):
    a, b = await two_running(site)
    poll = asyncio.create_task(b.poll())
    await parked(site, 1)
    poll.cancel()
    await asyncio.gather(poll, return_exceptions=True)
    reply = await a.told(Stop)
    assert reply.directive.reason.startswith("node b lost: its connection closed")


@pytest.mark.parametrize("polls", [0, 3])
async def test_a_connection_that_closes_after_an_answer_is_not_a_loss(site, polls):
    a, b = await two_running(site)
    for _ in range(polls):
        await b.poll(hold=False)
    await b.transport.close()
    await the_grace_to_run_out()
    assert isinstance((await a.poll(hold=False)).directive, Start)


async def test_an_agent_that_returns_on_a_new_connection_is_not_lost(site):
    a, b = await two_running(site)
    older, b.transport = b.transport, site.transport()
    await b.poll(hold=False)
    await older.close()
    await the_grace_to_run_out()
    assert isinstance((await a.poll(hold=False)).directive, Start)


async def test_closing_a_report_only_connection_does_not_lose_agents(site):
    a, _ = await two_running(site)
    other_transport = site.transport()
    await other_transport.exchange(ReportRequest(run_id=RUN_ID, agent_id="b", round=1, failure=None))
    await other_transport.close()
    await the_grace_to_run_out()
    assert isinstance((await a.poll(hold=False)).directive, Start)


# Long polls.


@pytest.mark.parametrize("is_parked", [True, False], ids=["it was parked", "it comes later"])
async def test_a_poll_is_answered_the_moment_that_something_has_happened(site, is_parked):
    a, _ = await two_running(site)
    poll = asyncio.create_task(a.poll()) if is_parked else None
    if is_parked:
        await parked(site, 1)
    await site.transport().exchange(ReportRequest(run_id=RUN_ID, agent_id="b", round=1, failure=a_failure("b")))
    async with asyncio.timeout(2.0):  # well before the poll's hold ends
        assert isinstance((await (poll or a.poll())).directive, Stop)


async def test_a_waiting_join_soon_reports_the_reason(site, monkeypatch):
    monkeypatch.setattr("rdzv_server.service.rendezvous.FIRST_HOLD_S", 0.01)
    reply = await site.agent("a").join("2")
    assert isinstance(reply.directive, Wait)
    assert reply.directive.reason.startswith("waiting for 1 more node")


# Refusals.


async def test_unknown_agents_are_fenced_and_not_remembered(site):
    transport = site.transport()
    for number in range(10):
        with pytest.raises(AgentFenced, match="does not know run run"):
            await transport.exchange(PollRequest(run_id=RUN_ID, agent_id=f"unknown {number}", revision=0))
    assert not site.server.rendezvous.connections._paths


@pytest.mark.parametrize("guess", ["", "guess", "sécret"])
async def test_an_agents_id_does_not_let_others_speak_in_its_name(site, guess):
    a, b = site.agent("a"), site.agent("b")
    await asyncio.gather(a.join("2", secret="a's"), b.join("2", secret="b's"))
    sender = {"run_id": RUN_ID, "agent_id": "b", "secret": guess}
    for request in (
        LeaveRequest(**sender, reason="SIGTERM"),
        ReportRequest(**sender, round=1, failure=a_failure("b")),
        PollRequest(**sender, revision=0),
        a_join("b", settings=settings_of("2", **SETTINGS), secret=guess),
        a_join("b", settings=settings_of("2", **SETTINGS), after_round=1, secret=guess),
    ):
        with pytest.raises(AgentFenced, match="with another secret"):
            await site.transport().exchange(request)
    (run,) = site.server.service.runs()
    assert run.stage.value == "running" and list(run.agents) == ["a", "b"]
    assert isinstance(
        await site.transport().exchange(LeaveRequest(run_id=RUN_ID, agent_id="b", secret="b's", reason="SIGTERM")), Ack
    )


async def test_an_agents_secret_is_kept_as_a_digest_and_survives_the_server(tmp_path):
    store = tmp_path / "runs.db"
    leave = {"run_id": RUN_ID, "agent_id": "a", "reason": "SIGTERM"}
    join = a_join("a", settings=settings_of("1"), secret="one of a kind")
    async with RendezvousServer(store=SqliteStore(str(store))) as server:
        await server.rendezvous.ask(join, Connection(1))
    assert not any(b"one of a kind" in path.read_bytes() for path in tmp_path.iterdir())
    async with RendezvousServer(store=SqliteStore(str(store))) as server:
        with pytest.raises(AgentFenced, match="with another secret"):
            await server.rendezvous.ask(LeaveRequest(**leave), Connection(2))
        await server.rendezvous.ask(LeaveRequest(**leave, secret="one of a kind"), Connection(2))


async def test_leases_do_not_end_before_a_returning_server_can_be_reached(tmp_path, monkeypatch):
    """Modules for HTTP may take longer to import, on a busy machine, than a short lease lasts."""
    lease_s = 2.0
    store = str(tmp_path / "runs.db")
    join = a_join("a", settings=settings_of("1", lease_s=lease_s))
    async with RendezvousServer(store=SqliteStore(store)) as server:
        await server.rendezvous.ask(join, Connection(1))

    def import_slowly(*args: object) -> MetricsView:
        time.sleep(1.25 * lease_s)
        return MetricsView(*args)

    monkeypatch.setattr("rdzv_server.http.metrics.MetricsView", import_slowly)
    site = Site()
    site.server = RendezvousServer(store=SqliteStore(store))
    await site.open()
    try:
        poll = PollRequest(run_id=RUN_ID, agent_id="a", revision=0, hold=False)
        assert isinstance((await site.transport().exchange(poll)).directive, Start)
    finally:
        await site.close()


async def test_a_status_that_fails_half_way_is_cut_off_without_a_second_answer(site, monkeypatch, caplog):
    await site.agent("a").join("1")

    def fail(*about: object, **more: object) -> None:
        raise ZeroDivisionError

    for name in ("view", "unreadable"):  # without the second, the run is shown as unreadable
        monkeypatch.setattr(f"rdzv_server.core.views.status_view.{name}", fail)
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200 OK") and answer.count(b"HTTP/1.1") == 1
    assert not answer.endswith(b"\r\n0\r\n\r\n"), "a reader sees that something is missing"
    assert http_words.answer_failed("GET", "/v1/status") in caplog.text


# Closing.


async def test_closing_answers_parked_polls_within_a_second(site):
    """Parked polls end as their hold would: directives remain, and agents ask the next server."""
    a, b = await two_running(site)
    polls = [asyncio.create_task(agent.poll()) for agent in (a, b)]
    await parked(site, 1)
    async with asyncio.timeout(1.0):
        await site.server.stop()
        replies = await asyncio.gather(*polls)
    assert [type(reply.directive) for reply in replies] == [Start] * 2


async def test_a_server_that_is_closing_answers_polls_at_once_until_it_has_stopped(site):
    a, _ = await two_running(site)
    site.server.rendezvous.close()
    async with asyncio.timeout(1.0):
        assert isinstance((await a.poll()).directive, Start)
    assert site.server.rendezvous.state().unhealthy_reason == "shutting down"
    await site.server.stop()
    with pytest.raises(ServerUnavailable, match=words.SHUTTING_DOWN):
        await site.server.rendezvous.ask(PollRequest(run_id=RUN_ID, agent_id="a", revision=0), Connection("late"))


async def test_agents_are_not_lost_when_the_server_closes_their_connections_itself(site):
    a, b = await two_running(site)
    await site.transport().exchange(ReportRequest(run_id=RUN_ID, agent_id="a", round=1, failure=a_failure("a")))
    await asyncio.gather(a.told(Stop), b.told(Stop))
    await site.server.stop()
    (run,) = site.server.rendezvous.runs()
    assert not run.departures and len(run.agents) == 2


def test_every_address_is_ipv4_and_ipv6():
    with bind(None, 0) as listener:
        assert listener.getsockname()[0] == "::"


async def the_grace_to_run_out() -> None:
    """Let the time pass in which an agent would have been missed."""
    await asyncio.sleep(4 * SETTINGS["disconnect_grace_s"])


async def parked(site: Site, count: int) -> None:
    """Return once this number of polls is parked."""
    async with asyncio.timeout(PATIENCE_S):
        while len(site.server.rendezvous._long_polls) < count:  # noqa: ASYNC110
            await asyncio.sleep(0)
