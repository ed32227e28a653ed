"""Exchanges that come about in the end, with the policy at work."""

import asyncio
from math import inf

import pytest
from msgspec.structs import replace
from rdzv_protocol.errors import AgentFenced, ServerUnavailable, Unauthorized
from rdzv_protocol.messages import Ack, JoinRequest, PollRequest, Reply, ReportRequest, Wait

from node_agent.core import backoff
from node_agent.core.backoff import Unreachable
from node_agent.transport.retrying import RetryingClient
from tests.unit.node_agent.story import join

POLL = PollRequest(run_id="run", agent_id="a.1", revision=7)
REPLY = Reply(epoch="e", revision=8, lease_s=10.0, directive=Wait(reason="waiting"))
REFUSED = Unreachable("connect", "10.0.0.1: Connection refused")
CLOSED = Unreachable("HTTP", "the server closed the connection")


class ScriptedTransport:
    """Meets one fate after another: an error is raised, an answer returned."""

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
async def test_trouble_below_the_protocol_is_tried_again_and_told_once(trouble):
    failures: list[Exception] = []
    link = ScriptedTransport(trouble, trouble, trouble, REPLY, trouble, REPLY)
    conversation = RetryingClient(link, failures.append)
    assert await conversation.ask(POLL) == REPLY
    assert failures == [trouble]
    assert await conversation.ask(POLL) == REPLY
    assert failures == [trouble] * 2, "and once more in the next outage"
    assert {replace(request, hold=True) for request in link.requests} == {POLL}


async def test_a_poll_after_an_outage_is_not_held() -> None:
    """The answer of such a poll tells that the server is back, which must not wait for the end of a hold."""
    link = ScriptedTransport(CLOSED, CLOSED, REPLY, ServerUnavailable("shutting down"), REPLY)
    client = RetryingClient(link)
    for _ in range(2):
        assert await client.ask(POLL) == REPLY
    assert [request.hold for request in link.requests] == [True, False, False, True, True]


async def test_a_refusal_is_an_answer_and_not_tried_again():
    link = ScriptedTransport(AgentFenced("gone"), REPLY)
    with pytest.raises(AgentFenced):
        await RetryingClient(link).ask(POLL)
    assert len(link.requests) == 1


async def test_who_is_kept_out_from_the_first_is_refused():
    with pytest.raises(Unauthorized):
        await RetryingClient(ScriptedTransport(Unauthorized("no token"), REPLY)).ask(POLL)


async def test_a_report_is_delivered_when_the_server_lets_the_agent_in_again():
    link = ScriptedTransport(Unauthorized("no token"), Ack(epoch="e"))
    report = ReportRequest(run_id="run", agent_id="a.1", round=1)
    assert await RetryingClient(link, has_joined=True).ask(report) == Ack(epoch="e")
    assert link.requests == [report] * 2


@pytest.mark.parametrize(("given", "named"), [("", "10.0.0.7"), ("node-7", "node-7")])
async def test_a_join_names_the_address_from_which_this_node_reaches_the_server(given, named):
    link = ScriptedTransport(REPLY)
    await RetryingClient(link).ask(join(addr=given))
    assert link.requests == [join(addr=named)]


async def test_what_is_asked_meanwhile_waits_for_its_turn():
    link = ScriptedTransport(REPLY, REPLY)
    conversation = RetryingClient(link)
    second = PollRequest(run_id="run", agent_id="a.1", revision=8)
    await asyncio.gather(conversation.ask(POLL), conversation.ask(second))
    assert link.requests == [POLL, second]


async def test_news_of_another_server_ends_the_pause(monkeypatch):
    monkeypatch.setattr(backoff, "delay", lambda attempt, jitter: inf)
    news = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, news.set)
    link = ScriptedTransport(Unreachable("leader", "hangs", news), REPLY)
    assert await asyncio.wait_for(RetryingClient(link).ask(POLL), 10) == REPLY


async def test_closing_gives_the_connection_up():
    link = ScriptedTransport(REPLY)
    await RetryingClient(link).close()
    assert link.is_closed
