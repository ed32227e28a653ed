"""What fails below the protocol is tried again, and said once."""

from math import inf

import pytest
from rdzv_protocol.errors import AgentFenced, Forbidden, ServerUnavailable, TlsRequired, Unauthorized
from rdzv_protocol.messages import PollRequest, Reply, ReportRequest, Wait

from node_agent.config import AgentConfig
from node_agent.core import backoff
from node_agent.core.command import Command
from node_agent.core.effects import SendReport
from node_agent.transport.base import Unreachable
from node_agent.transport.retrying import Conversation, ServerLost
from node_agent.transport.session import RunLine

POLL = PollRequest(run_id="run", agent_id="a.1", revision=7)
REPLY = Reply(epoch="e", revision=8, lease_s=10.0, directive=Wait(reason="waiting"))

REFUSED = Unreachable("connect", "10.0.0.1: Connection refused")
UNTRUSTED = Unreachable("TLS", "of an unknown authority", is_final=True)
CLOSED = Unreachable("HTTP", "the server closed the connection")


class ScriptedLink:
    """Meets one fate after another: an error is raised, an answer returned."""

    def __init__(self, *fates: Exception | Reply) -> None:
        self.fates = list(fates)
        self.requests: list[PollRequest] = []
        self.is_closed = False

    async def connect(self) -> str:
        return "10.0.0.7"

    async def exchange(self, request: PollRequest) -> Reply:
        self.requests.append(request)
        fate = self.fates.pop(0) if len(self.fates) > 1 else self.fates[0]
        if isinstance(fate, Exception):
            raise fate
        return fate

    async def close(self) -> None:
        self.is_closed = True


class LostCable(ScriptedLink):
    """Not even a connection comes about."""

    async def connect(self) -> str:
        if isinstance(self.fates[0], Exception):
            raise self.fates.pop(0)
        return "10.0.0.7"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(backoff, "delay", lambda attempt, jitter: 0.0)


class Told:
    """A conversation and what it said."""

    def __init__(self, link: ScriptedLink, timeout_s: float = 60.0, lost_timeout_s: float = inf) -> None:
        self.said: list[str] = []
        self._conversation = Conversation(link, "host:29400", timeout_s, self.said.append, lost_timeout_s)

    async def ask(self) -> Reply:
        return await self._conversation.ask(lambda addr: POLL)


async def test_an_answer_at_once_is_nothing_to_talk_about():
    told = Told(ScriptedLink(REPLY))
    assert await told.ask() == REPLY
    assert told.said == []


async def test_the_request_is_made_with_this_nodes_address():
    link, addresses = ScriptedLink(REPLY), []

    def request(addr):
        addresses.append(addr)
        return POLL

    await Conversation(link, "host:1", 60.0, None).ask(request)
    assert addresses == ["10.0.0.7"]


@pytest.mark.parametrize("trouble", [REFUSED, CLOSED, ServerUnavailable("shutting down")])
async def test_trouble_below_the_protocol_is_tried_again(trouble):
    link = ScriptedLink(trouble, trouble, trouble, REPLY)
    assert await Told(link).ask() == REPLY
    assert link.requests == [POLL] * 4


async def test_a_line_that_does_not_stand_is_tried_again():
    assert await Told(LostCable(REFUSED, REFUSED, REPLY)).ask() == REPLY


async def test_a_refusal_is_an_answer_and_not_tried_again():
    link = ScriptedLink(AgentFenced("gone"), REPLY)
    with pytest.raises(AgentFenced):
        await Told(link).ask()
    assert len(link.requests) == 1


@pytest.mark.parametrize("refusal", [Unauthorized("no token"), Forbidden("not this run"), TlsRequired("TLS")])
async def test_who_has_been_in_bears_to_be_kept_out(refusal):
    """Somebody has made a mistake with tokens or certificates, and will mend it."""
    link = ScriptedLink(REPLY, refusal, refusal, REPLY)
    told = Told(link)
    await told.ask()
    assert await told.ask() == REPLY
    assert told.said[0] == f"lost rdzv-server at host:29400 ({refusal}); workers keep running, trying again"
    assert told.said[1].startswith("reached rdzv-server at host:29400 after ")


@pytest.mark.parametrize("refusal", [Unauthorized("no token"), Forbidden("not this run"), TlsRequired("TLS")])
async def test_who_has_never_been_in_is_told_at_once(refusal):
    with pytest.raises(type(refusal)):
        await Told(ScriptedLink(refusal, REPLY)).ask()


async def test_the_side_line_of_an_agent_that_is_in_bears_it_from_the_first():
    link = ScriptedLink(Unauthorized("no token"), UNTRUSTED, REPLY)
    assert await Conversation(link, "host:1", inf, None, has_joined=True).ask(lambda addr: POLL) == REPLY


async def test_what_waiting_cannot_heal_is_not_waited_for():
    with pytest.raises(ServerLost, match=r"^cannot use rdzv-server at host:29400 \(TLS: of an unknown authority\)$"):
        await Told(ScriptedLink(UNTRUSTED, REPLY)).ask()


async def test_what_waiting_cannot_heal_is_borne_by_who_has_been_in():
    told = Told(ScriptedLink(REPLY, UNTRUSTED, REPLY))
    await told.ask()
    assert await told.ask() == REPLY


async def test_a_server_that_is_not_there_yet_is_said_once_and_so_is_its_arrival():
    told = Told(ScriptedLink(REFUSED, REFUSED, REFUSED, REPLY))
    await told.ask()
    assert told.said == [
        "cannot reach rdzv-server at host:29400 yet (connect: 10.0.0.1: Connection refused); trying for 60 s",
        "reached rdzv-server at host:29400 after 0.0 s",
    ]


async def test_a_server_that_is_gone_is_given_up_after_a_limit_of_its_own():
    told = Told(ScriptedLink(REPLY, REFUSED), timeout_s=60.0, lost_timeout_s=0.01)
    await told.ask()
    with pytest.raises(ServerLost, match=r"no rdzv-server at host:29400 within 0.01 s \(connect: "):
        await told.ask()
    (line,) = told.said
    assert line.startswith("lost rdzv-server at host:29400 (connect: ")
    assert line.endswith("; workers keep running, trying again for 0.01 s")


async def test_an_outage_is_said_once_and_so_is_its_end():
    told = Told(ScriptedLink(REPLY, CLOSED, CLOSED, REPLY))
    await told.ask()
    await told.ask()
    assert told.said == [
        "lost rdzv-server at host:29400 (HTTP: the server closed the connection); workers keep running, trying again",
        "reached rdzv-server at host:29400 after 0.0 s",
    ]


async def test_how_far_it_gets_is_said_again_when_that_changes():
    told = Told(ScriptedLink(REPLY, CLOSED, REFUSED, REFUSED, REPLY))
    await told.ask()
    await told.ask()
    assert [line.split()[0] for line in told.said] == ["lost", "still", "reached"]
    assert told.said[1] == "still no rdzv-server at host:29400 (connect: 10.0.0.1: Connection refused)"


@pytest.mark.parametrize(
    ("trouble", "advice"),
    [
        (Unreachable("name", "host: no such name"), "check the name in --endpoint, or in --master-addr"),
        (REFUSED, "check that rdzv-server runs there and that no firewall is between"),
        (CLOSED, "check that this port is rdzv-server's"),
        (ServerUnavailable("overloaded"), "look at its log"),
    ],
    ids=["name", "connect", "HTTP", "server"],
)
async def test_a_server_that_never_answers_is_given_up_with_advice(trouble, advice):
    with pytest.raises(ServerLost) as lost:
        await Told(ScriptedLink(trouble), timeout_s=0.0).ask()
    assert str(lost.value) == f"no rdzv-server at host:29400 within 0 s ({trouble}): {advice}"


async def test_a_server_that_has_answered_once_is_never_given_up():
    link = ScriptedLink(REPLY, *[REFUSED] * 50, REPLY)
    told = Told(link, timeout_s=0.0)
    await told.ask()
    assert await told.ask() == REPLY


async def test_the_side_line_tries_for_as_long_as_it_takes_and_says_nothing():
    side_line = Conversation(ScriptedLink(*[REFUSED] * 50, REPLY), "host:1", float("inf"), None)
    assert await side_line.ask(lambda addr: POLL) == REPLY


async def test_tries_are_spaced_further_and_further(monkeypatch):
    attempts = []
    monkeypatch.setattr(backoff, "delay", lambda attempt, jitter: attempts.append((attempt, 0 <= jitter <= 1)) or 0.0)
    told = Told(ScriptedLink(REFUSED, REFUSED, REPLY, REFUSED, REPLY))
    await told.ask()
    await told.ask()
    assert attempts == [(1, True), (2, True), (1, True)], "and soon again in the next outage"


async def test_closing_gives_the_line_up():
    link = ScriptedLink(REPLY)
    await Conversation(link, "host:1", 60.0, None).close()
    assert link.is_closed


async def test_a_report_is_delivered_when_the_server_lets_the_agent_in_again():
    links = [ScriptedLink(REPLY), ScriptedLink(Unauthorized("no token"), REPLY)]
    reports = links[1]
    config = AgentConfig(command=Command(("true",)), nproc=1, run_id="run", node_id="a")
    line = RunLine(config, lambda: links.pop(0), "host:1", lambda text: None)
    await line.tell(SendReport("a.1", 1, None))
    assert [type(request) for request in reports.requests] == [ReportRequest] * 2
