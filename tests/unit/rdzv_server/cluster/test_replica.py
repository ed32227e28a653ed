"""One of several servers. The test gives and takes its leadership."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace

import pytest
from rdzv_protocol.actions import Done, RestartRequest
from rdzv_protocol.errors import AgentFenced, NotLeader, ProtocolError, ServerUnavailable
from rdzv_protocol.events import RunEvent
from rdzv_protocol.messages import LeaderReply, LeaderRequest, PollRequest, Reply, ReportRequest, Start, Wait

from rdzv_server.core.effects import Record
from rdzv_server.core.kernel.run import Cause
from rdzv_server.service.interface import OperatorRequest
from rdzv_server.storage.base import Change, MemoryStore, StoreBroken, StoreFenced, StoreSilent, StoreUnavailable
from tests.support.etcd import need_aetcd
from tests.support.scenario import RUN_ID, Connection, a_join, settings_of

need_aetcd()

from rdzv_server.cluster import replica as replica_module  # noqa: E402
from rdzv_server.cluster.membership import Leader  # noqa: E402
from rdzv_server.cluster.replica import Replica  # noqa: E402
from rdzv_server.core.runs.registry import Registry  # noqa: E402
from rdzv_server.service import rendezvous as rendezvous_module  # noqa: E402
from rdzv_server.service import store_access  # noqa: E402
from rdzv_server.service.driver import Driver  # noqa: E402
from rdzv_server.storage.outage import Outage  # noqa: E402
from rdzv_server.words import cluster as words  # noqa: E402

PATIENCE_S = 10.0


class GivenLeadership:
    """A leadership that ends when the test says so."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_certain = True
        self.lapsed_s = 2.5
        self.has_resigned = asyncio.Event()
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def over(self, regained: Callable[[float], None]) -> str:
        self._regained = regained
        return await asyncio.shield(self._over)

    def regain(self, lapsed_s: float) -> None:
        self.is_certain = True
        self._regained(lapsed_s)

    def end(self, reason: str) -> None:
        self.is_certain = False
        self._over.set_result(reason)

    async def resign(self) -> None:
        self.is_certain = False
        self.has_resigned.set()


class GivenElection:
    """Election that this server wins when the test says so."""

    def __init__(self) -> None:
        self.wins: asyncio.Queue[GivenLeadership] = asyncio.Queue()
        self.follow: Callable[[Leader | None], None] = lambda leader: None
        self.is_running = asyncio.Event()
        self.membership = SimpleNamespace(is_current=True, outage_reason=None, view=None, losses=0)
        self.outage = Outage(logs_silence=False)

    async def win(self, follow: Callable[[Leader | None], None]) -> GivenLeadership:
        self.follow = follow
        self.is_running.set()
        return await self.wins.get()


class SharedStore(MemoryStore):
    """Store for every leadership of a test. It may be fenced, unreachable or slow."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.is_writing = asyncio.Event()

    async def load(self) -> Sequence[Record]:
        if self.error:
            raise self.error
        return await super().load()

    async def append(self, changes: Sequence[Change], events: Sequence[RunEvent] = ()) -> None:
        self.is_writing.set()
        await self.may_write.wait()
        if self.error:
            raise self.error
        await super().append(changes, events)


class Server:
    """The server under test."""

    def __init__(self) -> None:
        self.store = SharedStore()
        self.election = GivenElection()
        self.replica = Replica(self.election, "a:29400", lambda number: Driver(Registry(3_600.0), self.store))
        self.running = asyncio.create_task(self.replica.run())

    async def lead(self, number: int = 5) -> GivenLeadership:
        leadership = GivenLeadership(number)
        self.election.wins.put_nowait(leadership)
        async with asyncio.timeout(PATIENCE_S):
            await self.replica.ask(LeaderRequest(after=number - 1), Connection("a"))
        return leadership

    async def follow(self, leader: Leader | None) -> None:
        await self.election.is_running.wait()
        self.election.follow(leader)

    async def join(self, name: str = "a", nodes: str = "2", **settings) -> Reply:
        join = a_join(name, settings=settings_of(nodes, **settings))
        return await self.replica.ask(join, Connection(name))

    async def poll(self, name: str, revision: int = 0, *, hold: bool = True) -> Reply:
        poll = PollRequest(run_id=RUN_ID, agent_id=name, revision=revision, hold=hold)
        return await self.replica.ask(poll, Connection(name))

    async def parked(self, name: str) -> asyncio.Task[ProtocolError]:
        """Return the refusal of a poll that has been parked."""
        poll = asyncio.create_task(refusal(self.poll(name, revision=100)))
        await asyncio.sleep(0)
        return poll

    async def end(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        self.replica.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(replica_module, "LEADERLESS_HOLD_S", 0.05)
    monkeypatch.setattr(replica_module, "RETRY_S", 0.0)
    monkeypatch.setattr(store_access, "RETRY_S", 0.0)
    monkeypatch.setattr(rendezvous_module, "FIRST_HOLD_S", 0.02)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    yield server
    await server.end()


async def refusal(asked) -> ProtocolError:
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(ProtocolError) as caught:
            await asked
    return caught.value


# Which server answers.


async def test_the_leader_answers_with_the_number_of_its_leadership(server):
    await server.lead(5)
    reply = await server.join(nodes="1")
    assert isinstance(reply.directive, Start)
    assert reply.leadership == 5


async def test_a_follower_redirects_to_the_leader(server):
    await server.follow(Leader("b:29400", 7))
    report = ReportRequest(run_id=RUN_ID, agent_id="a", round=1)
    for asked in (server.join(), server.poll("a"), server.replica.ask(report, Connection("a"))):
        error = await refusal(asked)
        assert isinstance(error, NotLeader)
        assert (error.leader, error.leadership) == ("b:29400", 7)


@pytest.mark.parametrize("leads", [True, False], ids=["it leads", "another leads"])
async def test_without_a_leader_a_request_waits_for_the_next_one(server, monkeypatch, leads):
    monkeypatch.setattr(replica_module, "LEADERLESS_HOLD_S", PATIENCE_S)
    join = asyncio.create_task(server.join(nodes="1"))
    await asyncio.sleep(0)
    if leads:
        await server.lead()
        assert isinstance((await join).directive, Start)
    else:
        await server.follow(Leader("b:29400", 7))
        assert (await refusal(join)).leader == "b:29400"


async def test_without_a_leader_a_held_poll_is_redirected_after_a_while(server):
    error = await refusal(server.join())
    assert isinstance(error, NotLeader) and error.leader is None


@pytest.mark.parametrize(
    ("revision", "losses", "leader", "number"),
    [(3, 1, "b:29400", 2), (9, 1, "b:29400", 2), (9, 0, "b:29400", 5), (4, 0, None, 5)],
    ids=["etcd has lost changes", "it has made as many since", "it lost them unnoticed", "the view is late"],
)
async def test_numbers_of_leaderships_begin_again_only_with_the_revisions_of_etcd(
    server, revision, losses, leader, number
):
    """Agents wait for a number that is higher than the one they know. An earlier leader may be seen late."""
    leadership = await server.lead(5)
    leadership.end("it is over")
    await leadership.has_resigned.wait()
    server.election.membership.view = SimpleNamespace(revision=revision)
    server.election.membership.losses = losses
    await server.follow(Leader("b:29400", 2))
    assert (server.replica.leader, server.replica.leadership) == (leader, number)
    if leader:
        reply = await server.replica.ask(LeaderRequest(after=0), Connection("a"))
        assert (reply.leader, reply.leadership) == (leader, number)


# Uncertain leadership.


async def test_a_leader_that_is_not_certain_does_not_answer_until_it_is(server):
    leadership = await server.lead()
    reply = await server.join(nodes="1")
    leadership.is_certain = False
    assert isinstance(await refusal(server.poll("a")), NotLeader)
    assert not server.replica.leads
    assert server.replica.unhealthy_reason == words.UNCERTAIN
    assert server.replica.term
    driver = server.replica.term.driver
    found = driver.runs()[0].undecided()
    assert found and found.reason == words.UNCERTAIN and found.since == pytest.approx(driver.now() - 2.5, abs=1.0)
    leadership.is_certain = True
    assert driver.runs()[0].undecided() is None
    assert (await server.poll("a", hold=False)).directive == reply.directive


async def test_agents_that_are_sent_away_meanwhile_are_not_lost(server):
    """The agent's connection closes, and its grace ends, before the server can answer it."""
    leadership = await server.lead()
    await server.join("a", disconnect_grace_s=0.01)
    assert isinstance((await server.join("b", disconnect_grace_s=0.01)).directive, Start)
    connection = Connection("a")
    poll = PollRequest(run_id=RUN_ID, agent_id="a", revision=100)
    parked = asyncio.create_task(refusal(server.replica.ask(poll, connection)))
    await asyncio.sleep(0)
    leadership.is_certain = False
    assert server.replica.term
    server.replica.term.rendezvous.lost(connection)
    await asyncio.sleep(0.05)  # longer than the grace
    leadership.regain(0.05)
    await server.poll("b", hold=False)
    await asyncio.sleep(0.05)  # again: the agent returns at its next try
    reply = await server.poll("b", hold=False)
    assert isinstance(reply.directive, Start)
    (run,) = server.replica.term.driver.runs()
    assert not run.departures and list(run.leases.uncertain) == ["a"]
    await server.poll("a", hold=False)
    parked.cancel()
    await asyncio.gather(parked, return_exceptions=True)


async def test_answers_and_refusals_that_come_too_late_are_kept_back(server):
    """An agent that learns that it is fenced stops its workers."""
    leadership = await server.lead()
    await server.join()
    assert isinstance(await refusal(server.poll("unknown")), AgentFenced)
    server.store.may_write.clear()
    server.store.is_writing.clear()
    join = asyncio.create_task(refusal(server.join("b")))
    await server.store.is_writing.wait()
    unknown = asyncio.create_task(refusal(server.poll("unknown")))
    await asyncio.sleep(0)
    leadership.is_certain = False
    server.store.may_write.set()
    assert isinstance(await join, NotLeader)
    leadership.end("it is over")
    assert isinstance(await unknown, NotLeader)


async def test_a_parked_poll_is_answered_only_after_the_write(server):
    """A hold ends while the store cannot be written."""
    await server.lead()
    waiting = await server.join("a", lease_s=0.1, disconnect_grace_s=600.0)
    assert isinstance(waiting.directive, Wait)
    poll = asyncio.create_task(server.poll("a", waiting.revision))
    await asyncio.sleep(0)
    server.store.may_write.clear()
    server.store.is_writing.clear()
    join = asyncio.create_task(server.join("b", lease_s=0.1, disconnect_grace_s=600.0))
    await server.store.is_writing.wait()
    await asyncio.sleep(0.1)  # three holds
    assert not poll.done() and not join.done()
    server.store.may_write.set()
    assert isinstance((await poll).directive, Start)
    await join


async def test_a_follower_is_not_ready_while_its_leader_may_no_longer_lead(server):
    await server.follow(Leader("b:29400", 7))
    assert server.replica.unhealthy_reason is None
    server.election.membership.is_current = False
    assert server.replica.unhealthy_reason == words.LEADER_UNCERTAIN
    assert (await refusal(server.join())).leader == "b:29400", "it is the most likely leader"
    await server.follow(None)
    assert server.replica.unhealthy_reason == words.NO_LEADER


async def test_an_agent_learns_why_a_server_does_not_know_the_leader(server, monkeypatch):
    monkeypatch.setattr(replica_module, "LEADERLESS_HOLD_S", 0.01)
    await server.follow(None)
    assert str(await refusal(server.join())) == words.NO_LEADER
    server.election.membership.view, server.election.membership.is_current = SimpleNamespace(revision=1), False
    assert str(await refusal(server.join())) == words.LEADER_UNCERTAIN
    server.election.outage.begin("etcd: database space exceeded")
    assert str(await refusal(server.join())) == words.no_leader_found("etcd: database space exceeded")
    server.election.membership.outage_reason = "etcd is down"
    assert str(await refusal(server.join())) == words.no_leader_found("etcd is down")
    (await server.lead(5)).is_certain = False
    assert str(await refusal(server.join())) == words.UNCERTAIN


# Leadership ends.


async def test_when_it_ends_parked_polls_are_sent_away_and_the_next_one_knows_everything(server):
    first = await server.lead(5)
    await server.join("a")
    poll = await server.parked("a")
    first.end("it is over")
    assert isinstance(await poll, NotLeader)
    async with asyncio.timeout(PATIENCE_S):
        await first.has_resigned.wait()
    await server.lead(6)
    await server.poll("a", revision=0)
    reply = await server.join("b")
    assert isinstance(reply.directive, Start)
    assert reply.leadership == 6


async def test_a_fenced_write_ends_the_leadership_and_no_agent_acts_on_it(server):
    leadership = await server.lead(5)
    await server.join("a")
    poll = await server.parked("a")
    server.store.error = StoreFenced("over")
    assert isinstance(await refusal(server.join("b")), NotLeader)
    assert isinstance(await poll, NotLeader)
    async with asyncio.timeout(PATIENCE_S):
        await leadership.has_resigned.wait()
    server.store.error = None
    await server.lead(6)
    assert isinstance((await server.join("a")).directive, Wait), "b's join was never written"


@pytest.mark.parametrize("is_written", [True, False], ids=["it was written", "the write was refused"])
async def test_an_action_during_a_takeover_is_carried_out_once(server, is_written):
    """The operator's program gets no answer from the first leader, and repeats the request at the next one."""
    first = await server.lead(5)
    await server.join("a", nodes="1")
    restart = OperatorRequest(RestartRequest(run_id=RUN_ID, request_id="7"), "me")
    server.store.may_write.clear()
    server.store.is_writing.clear()
    asked = asyncio.create_task(refusal(server.replica.ask(restart, Connection("me"))))
    poll = await server.parked("a")
    await server.store.is_writing.wait()
    server.store.error = None if is_written else StoreFenced("over")
    first.is_certain = False
    server.store.may_write.set()
    assert isinstance(await asked, NotLeader) and isinstance(await poll, NotLeader)
    first.end("it is over")
    await first.has_resigned.wait()
    server.store.error = None
    await server.lead(6)
    for _ in range(2):
        done = await server.replica.ask(restart, Connection("me"))
        assert isinstance(done, Done) and done.changed
    (run,) = server.replica.term.driver.runs()
    assert (run.round, run.opening.cause) == (2, Cause.RUN_RESTARTED)


@pytest.mark.parametrize("error", [StoreUnavailable, StoreSilent])
async def test_a_server_does_not_give_up_while_etcd_cannot_be_read_yet(server, error, caplog):
    server.store.error = error("cannot use etcd")
    server.election.wins.put_nowait(GivenLeadership(5))
    assert isinstance(await refusal(server.join()), NotLeader)
    assert ("cannot use etcd" in caplog.text) == (error is StoreUnavailable), "the membership logs silence, once"
    server.store.error = None
    async with asyncio.timeout(PATIENCE_S):
        await server.replica.ask(LeaderRequest(after=4), Connection("a"))
    assert (await server.join(nodes="1")).leadership == 5


async def test_damaged_records_end_the_server_and_its_leadership(server):
    server.store.error = StoreBroken("damaged")
    leadership = GivenLeadership(5)
    server.election.wins.put_nowait(leadership)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(StoreBroken):
            await server.running
    assert leadership.has_resigned.is_set()


async def test_a_stopping_server_resigns_and_notifies_its_agents(server):
    leadership = await server.lead()
    await server.join("a")
    poll = await server.parked("a")
    await server.end()
    assert isinstance(await poll, NotLeader | ServerUnavailable)
    assert leadership.has_resigned.is_set()
    assert isinstance(await refusal(server.join()), ServerUnavailable)


# Requests for the leader.


async def test_a_client_learns_of_a_later_leader_at_once_or_when_there_is_one(server):
    def ask(after: int) -> asyncio.Task[LeaderReply]:
        return asyncio.create_task(server.replica.ask(LeaderRequest(after=after), Connection("a")))

    await server.follow(Leader("b:29400", 7))
    assert await ask(6) == LeaderReply(leadership=7, leader="b:29400")
    asked = ask(7)
    for leader in (None, Leader("c:29400", 8)):
        await asyncio.sleep(0)
        assert not asked.done()
        await server.follow(leader)
    assert await asked == LeaderReply(leadership=8, leader="c:29400")
    asked = ask(8)
    await asyncio.sleep(0)
    await server.lead(9)
    assert await asked == LeaderReply(leadership=9, leader="a:29400", leads=True)


# The operators' view.


async def test_the_operators_view_shows_every_run(server):
    replica = server.replica
    assert (replica.unhealthy_reason, replica.leads, replica.leader) == (words.NO_LEADER, False, None)
    await server.follow(Leader("b:29400", 7))
    assert (replica.unhealthy_reason, replica.leads, replica.leader, replica.leadership) == (None, False, "b:29400", 7)
    assert replica.term is None
    await server.lead(8)
    await server.join()
    assert (replica.unhealthy_reason, replica.leads, replica.leader, replica.leadership) == (None, True, "a:29400", 8)
    assert [run.run_id for run in replica.term.driver.runs()] == [RUN_ID]
