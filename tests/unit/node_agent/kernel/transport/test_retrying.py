"""Exchanges that succeed in the end, with the real retry policy."""

import asyncio
from math import inf

import pytest
from msgspec.structs import replace
from rdzv_protocol.errors import AgentFenced, NotLeader, ServerUnavailable, Unauthorized
from rdzv_protocol.messages import Ack, JoinRequest, PollRequest, Reply, ReportRequest

from node_agent import words
from node_agent.kernel.core import backoff
from node_agent.kernel.core.backoff import Unreachable
from node_agent.kernel.transport.retrying import RetryingClient
from tests.unit.node_agent.kernel.transport.http_server import POLL, REPLY
from tests.unit.node_agent.story import join

REFUSED = Unreachable("connect", "10.0.0.1: Connection refused")
CLOSED = Unreachable("HTTP", words.connection.CLOSED)


class ScriptedTransport:
    """Takes one outcome after another: it raises an error, or returns an answer."""

    def __init__(self, *fates: Exception | Reply | Ack) -> None:
        self.fates = list(fates)
        self.requests: list[JoinRequest | PollRequest] = []
        self.is_closed = False

    async def connect(self) -> str:
        if self.fates[0] is REFUSED:
            raise self.fates.pop(0)
        return "10.0.0.7"

    async def exchange(self, request):
        self.requests.append(request)
        fate = self.fates.pop(0)
        if isinstance(fate, Exception):
            raise fate
        return fate

    async def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(backoff, "delay", lambda attempt, jitter: 0.0)


@pytest.mark.parametrize("trouble", [REFUSED, CLOSED, ServerUnavailable("shutting down")])
async def test_network_errors_are_retried_and_logged_once(trouble):
    failures: list[Exception] = []
    transport = ScriptedTransport(trouble, trouble, trouble, REPLY, trouble, REPLY)
    client = RetryingClient(transport, failures.append)
    assert await client.ask(POLL) == REPLY
    assert failures == [trouble]
    assert await client.ask(POLL) == REPLY
    assert failures == [trouble] * 2, "and once more in the next outage"
    assert {replace(request, hold=True) for request in transport.requests} == {POLL}


async def test_only_answers_of_servers_that_cannot_serve_now_count_as_refusals() -> None:
    proxy = Unreachable("proxy", words.connection.proxy_answered(503, False))
    elsewhere = Unreachable("leader", "etcd is lost")
    full, no_leader = ServerUnavailable("full"), NotLeader("etcd is lost", None)
    told: list[str] = []
    transport = ScriptedTransport(REFUSED, full, full, CLOSED, proxy, elsewhere, no_leader, Unauthorized("no"), REPLY)
    client = RetryingClient(transport, refused=lambda: told.append("refused"), has_joined=True)
    assert await client.ask(POLL) == REPLY
    assert len(told) == 4


async def test_a_poll_after_an_outage_is_not_held() -> None:
    """The answer shows that the server is back, which must not wait for the end of a hold."""
    transport = ScriptedTransport(CLOSED, CLOSED, REPLY, ServerUnavailable("shutting down"), REPLY)
    client = RetryingClient(transport)
    for _ in range(2):
        assert await client.ask(POLL) == REPLY
    assert [request.hold for request in transport.requests] == [True, False, False, True, True]


async def test_a_cut_poll_answered_on_retry_is_not_a_failure(monkeypatch):
    monkeypatch.setattr(backoff, "CUT_S", 0.0)
    is_cut = Unreachable("HTTP", words.connection.CLOSED, is_cut=True)
    failures: list[Exception] = []
    cuts: list[Exception] = []
    transport = ScriptedTransport(is_cut, REPLY, is_cut, is_cut, REPLY)
    client = RetryingClient(transport, failures.append, lambda cut: cuts.append(cut.error))
    await client.ask(POLL)
    assert (failures, cuts) == ([], [is_cut])
    await client.ask(POLL)
    assert (failures, cuts) == ([is_cut], [is_cut])
    assert [request.hold for request in transport.requests] == [True, False, True, False, False]


class LinkLocalTransport(ScriptedTransport):
    """Reaches the server from a link-local address, whose zone sockets do not report."""

    async def connect(self) -> str:
        return "fe80::fc:ff:fe00:1"


@pytest.mark.parametrize("rank", [None, 0])
@pytest.mark.parametrize("named", ["", "FE80::7", "febf::7"])
async def test_a_node_that_would_be_a_master_at_a_link_local_address_does_not_join(named, rank):
    told: asyncio.Future[Unreachable] = asyncio.get_running_loop().create_future()
    transport = LinkLocalTransport(REPLY)
    client = RetryingClient(transport, lambda error: told.done() or told.set_result(error))
    asked = asyncio.create_task(client.ask(replace(join(), addr=named, node_rank=rank)))
    failure = await asyncio.wait_for(told, 5.0)
    asked.cancel()
    assert failure.is_final and transport.requests == []
    assert failure.stage == "address"
    assert failure.detail == words.connection.own_address_link_local(named or "fe80::fc:ff:fe00:1")


@pytest.mark.parametrize(
    ("named", "rank"),
    [("fe80::7%eth0", None), ("fd00::7", 0), ("10.0.0.7", None), ("fe80", 0), ("fe8::1", 0), ("", 1)],
    ids=["with its zone", "IPv6", "IPv4", "a name", "another IPv6 address", "a node that is never the master"],
)
async def test_a_node_can_choose_when_it_joins(named, rank):
    transport = LinkLocalTransport(REPLY)
    await RetryingClient(transport).ask(replace(join(), addr=named, node_rank=rank))
    assert transport.requests[0].addr == (named or "fe80::fc:ff:fe00:1")


async def test_a_refusal_is_an_answer_and_not_tried_again():
    transport = ScriptedTransport(AgentFenced("gone"), REPLY)
    with pytest.raises(AgentFenced):
        await RetryingClient(transport).ask(POLL)
    assert len(transport.requests) == 1


async def test_an_agent_that_never_joined_is_refused():
    with pytest.raises(Unauthorized):
        await RetryingClient(ScriptedTransport(Unauthorized("no token"), REPLY)).ask(POLL)


async def test_a_report_is_delivered_when_the_server_lets_the_agent_in_again():
    transport = ScriptedTransport(Unauthorized("no token"), Ack(epoch="e"))
    report = ReportRequest(run_id="run", agent_id="a.1", round=1)
    assert await RetryingClient(transport, has_joined=True).ask(report) == Ack(epoch="e")
    assert transport.requests == [report] * 2


@pytest.mark.parametrize(("given", "named"), [("", "10.0.0.7"), ("node-7", "node-7")])
async def test_a_join_names_the_address_from_which_this_node_reaches_the_server(given, named):
    transport = ScriptedTransport(REPLY)
    await RetryingClient(transport).ask(join(addr=given))
    assert transport.requests == [join(addr=named)]


async def test_a_request_during_another_one_waits_for_its_turn():
    transport = ScriptedTransport(REPLY, REPLY)
    client = RetryingClient(transport)
    second = PollRequest(run_id="run", agent_id="a.1", revision=8)
    await asyncio.gather(client.ask(POLL), client.ask(second))
    assert transport.requests == [POLL, second]


async def test_news_of_another_server_ends_the_pause(monkeypatch):
    monkeypatch.setattr(backoff, "delay", lambda attempt, jitter: inf)
    news = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, news.set)
    transport = ScriptedTransport(Unreachable("leader", "hangs", news), REPLY)
    assert await asyncio.wait_for(RetryingClient(transport).ask(POLL), 10) == REPLY


async def test_closing_gives_the_connection_up():
    transport = ScriptedTransport(REPLY)
    await RetryingClient(transport).close()
    assert transport.is_closed
