"""Replica of one shard at one of several servers: it leads, or names the leader.

Each leadership has its own core, driver and rendezvous, which use the records in etcd. Nothing is carried over from one
to the next. An answer leaves this server only if the server was certain to lead when the answer was complete. If a
server was stopped or cut off in the middle of a decision, the decision does not count, and is not sent.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from rdzv_protocol.errors import NotLeader, ProtocolError, ServerUnavailable
from rdzv_protocol.messages import LeaderReply, LeaderRequest
from rdzv_protocol.timing import LEADER_HOLD_S

from rdzv_server.cluster.cordon_follower import CordonFollower
from rdzv_server.cluster.election import Election, Leadership
from rdzv_server.cluster.membership import Leader
from rdzv_server.core.kernel.run import Undecided
from rdzv_server.service.driver import Driver
from rdzv_server.service.interface import Answer, Answered, AnyRequest, Connection
from rdzv_server.service.observers import Observer
from rdzv_server.service.rendezvous import Rendezvous
from rdzv_server.storage.base import StoreFenced
from rdzv_server.tasks import first_of
from rdzv_server.words import cluster as words
from rdzv_server.words import service as service_words

log = logging.getLogger("rdzv_server")

LEADERLESS_HOLD_S = 2.0
"""Seconds for which an agent's request waits for a leader; after that the agent tries another server."""
RETRY_S = 0.2


class Term:
    """Term of this server as the leader of a shard."""

    def __init__(self, leadership: Leadership, driver: Driver) -> None:
        self.leadership = leadership
        self.driver = driver
        self.rendezvous = Rendezvous(driver, leadership.number)

    async def end(self) -> None:
        """Refuse agents, and let go of their runs and connections.

        The parts of a term refer to each other. So without that, all of it would be garbage in cycles.
        """
        self.rendezvous.close()
        await self.driver.stop()
        self.rendezvous.connections.let_go()
        self.driver.registry.let_go()


class Replica:
    """Answers about the runs of a shard, whichever server leads it. `run` leads and follows."""

    def __init__(
        self,
        election: Election,
        address: str,
        make_driver: Callable[[int], Driver],
        shard: int | None = None,
        follower: CordonFollower | None = None,
    ) -> None:
        """Set up, without leading. `make_driver`: makes the driver of a leadership, by its number.

        `shard`: number of the shard, for the log; None if it is the only one. `follower`: follower of shard 0's
        cordons; None for shard 0 itself.
        """
        self.term: Term | None = None
        """Term of this server; None while it does not act as the leader."""
        self.leadership = 0
        """Number of the shard's latest known leadership."""
        self._follower = follower
        self._shard = shard
        self._election = election
        self._address = address
        self._make_driver = make_driver
        self.broken = ""
        """Reason why this server cannot lead the shard; empty if it can, or may try again."""
        self._other: Leader | None = None
        self._losses = 0
        """Losses of etcd that `leadership` takes into account."""
        self._observers: list[Observer] = []
        self._change = asyncio.Event()
        self._closing = False

    # Leading and following.

    async def run(self) -> None:
        """Lead whenever possible, forever; resign when cancelled.

        Raises errors after which the server cannot continue: `StoreBroken` if it cannot lead this shard.
        """
        while True:
            leadership = await self._election.win(self._follow)
            term = Term(leadership, self._make_driver(leadership.number))
            term.driver.measurements.elections_won += 1
            for observer in self._observers:
                term.driver.observers.add(observer)
            log.info(words.takes_over(self._shard, leadership.number))
            try:
                log.warning(words.no_longer_leads(self._shard, await self._act_until_over(term)))
            finally:
                self._set(None, None)
                await asyncio.shield(leadership.resign())
                await term.end()  # rejects agents, when another server may already lead

    async def follow_others(self, for_s: float) -> None:
        """Follow the leaders of the shard, for `for_s` seconds: this server could not lead it."""
        self._election.is_candidate = False
        with suppress(TimeoutError):
            async with asyncio.timeout(for_s):
                await self._election.win(self._follow)
        self.broken, self._election.is_candidate = "", True

    async def _act_until_over(self, term: Term) -> str:
        """Act as the leader. While the leadership is not certain, decide nothing, and reject agents."""
        term.driver.may_decide = lambda: term.leadership.is_certain
        term.driver.lapsed = partial(_lapsed, term)
        return await first_of(self._act(term), term.leadership.over(term.driver.heard))

    async def _act(self, term: Term) -> str:
        """Act as the leader until a write is fenced. Raises `StoreBroken`."""
        try:
            await self._election.outage.outlast(term.driver.start, RETRY_S)
            if self._follower:
                await first_of(self._follower.catch_up_at_last(term.driver), term.driver.crashed())
                term.driver.heard()
            self._set(term, None)
            log.info(words.leads(self._shard, len(term.driver.runs())))
            follows = [self._follower.run(term.driver)] if self._follower else []
            await first_of(term.driver.crashed(), *follows)
        except StoreFenced as error:
            return str(error)
        raise AssertionError("a driver never ends by itself")

    def _follow(self, leader: Leader | None) -> None:
        if leader and leader != self._other:
            log.info(words.follows(self._shard, leader.address, leader.number))
        self._set(None, leader)

    def _set(self, term: Term | None, other: Leader | None) -> None:
        """Note which server leads, and wake all that wait for that."""
        membership = self._election.membership
        if self._losses != membership.losses:
            self._losses, self.leadership = membership.losses, 0
        if membership.view and membership.view.revision < self.leadership:
            other = None  # the view is older than this server's own last leadership
        self.term, self._other = term, other
        if latest := term.leadership if term else other:
            self.leadership = max(self.leadership, latest.number)
        self._notify()

    def _notify(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    # Agents and operators.

    async def ask(self, request: AnyRequest, connection: Connection) -> Answer:
        """Return the leader's answer. Raises `NotLeader` if another server leads, or the leader's own refusal."""
        if isinstance(request, LeaderRequest):
            return await self._name_leader(request, connection)
        return await self.in_term(lambda term: term.rendezvous.ask(request, connection))

    async def in_term(self, work: Callable[[Term], Awaitable[Answered]]) -> Answered:
        """Run some work in this server's term. Raises `NotLeader` if another server leads, or the work's refusal."""
        term = await self._find_term()
        try:
            answer = await work(term)
        except ProtocolError:
            if self._is_certain(term):
                raise
            raise self._not_leader() from None
        if not self._is_certain(term):
            raise self._not_leader()
        return answer

    def observe(self, observer: Observer) -> None:
        """Call `observer` with what happens in every term of this server."""
        self._observers.append(observer)
        if self.term:
            self.term.driver.observers.add(observer)

    async def _name_leader(self, request: LeaderRequest, connection: Connection) -> LeaderReply:
        """Wait for a later leadership than the one that the agent knows."""
        asked_at = time.monotonic()
        await self._until(lambda: self.leader is not None and self.leadership > request.after, LEADER_HOLD_S)
        connection.held(time.monotonic() - asked_at)
        return LeaderReply(leadership=self.leadership, leader=self.leader, leads=self.leads)

    async def _find_term(self) -> Term:
        """Return this server's own term. While no leader is known, wait for one. Raises `NotLeader`."""
        await self._until(lambda: bool(self.term or self._other), LEADERLESS_HOLD_S)
        if self._closing:
            raise ServerUnavailable(service_words.SHUTTING_DOWN)
        if self.term is None or not self._is_certain(self.term):
            raise self._not_leader()
        return self.term

    async def _until(self, is_so: Callable[[], bool], hold_s: float) -> None:
        """Return when `is_so()` holds, after `hold_s` seconds, or when the server closes."""
        with suppress(TimeoutError):
            async with asyncio.timeout(hold_s):
                while not (is_so() or self._closing):
                    await self._change.wait()

    def _is_certain(self, term: Term) -> bool:
        return term is self.term and term.leadership.is_certain

    def _not_leader(self) -> NotLeader:
        if self._other:
            return NotLeader(words.other_leads(self._other.address), self._other.address, self._other.number)
        return NotLeader(self.unhealthy_reason or words.UNKNOWN_LEADER)

    # Status.

    @property
    def leads(self) -> bool:
        return self.term is not None and self._is_certain(self.term)

    @property
    def leader(self) -> str | None:
        if self._other:
            return self._other.address
        return self._address if self.leads else None

    @property
    def unhealthy_reason(self) -> str | None:
        if self.term and not self.leads:
            return words.UNCERTAIN
        if self.term:
            return self.term.rendezvous.state().unhealthy_reason
        if not self._other:
            membership = self._election.membership
            if why := self.broken or membership.outage_reason or self._election.outage.reason:
                return words.no_leader_found(why)
            is_cut_off = membership.view and not membership.is_current
            return words.LEADER_UNCERTAIN if is_cut_off else words.NO_LEADER
        return None if self._election.membership.is_current else words.LEADER_UNCERTAIN

    def close(self) -> None:
        """Take no more requests: agents keep their workers and try another server. `run` has been cancelled."""
        self._closing = True
        self._notify()


def _lapsed(term: Term) -> Undecided | None:
    """Return since when the leadership has not been certain; None if it is certain."""
    if term.leadership.is_certain:
        return None
    return Undecided(words.UNCERTAIN, term.driver.now() - term.leadership.lapsed_s)
