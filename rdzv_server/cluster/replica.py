"""One of several servers: it leads, or answers with who does.

Each leadership has a core, a driver and a rendezvous of its own, over the records that etcd holds; nothing is carried
over from one to the next. No answer leaves this server unless it was certain to lead when the answer was complete: what
a server has decided that was stopped in the middle of it, or cut off, counts for nothing and is told to nobody.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from rdzv_protocol.errors import NotLeader, ProtocolError, ServerUnavailable
from rdzv_protocol.messages import LeaderReply, LeaderRequest
from rdzv_protocol.timing import LEADER_HOLD_S

from rdzv_server.cluster.election import Held, Leader, Standing
from rdzv_server.config import MOST_RUNS
from rdzv_server.core.registry import Registry
from rdzv_server.core.run import Run
from rdzv_server.service.driver import STOPPED, Driver
from rdzv_server.service.interface import Answer, AnyRequest, Connection, ShardView
from rdzv_server.service.long_polls import Waiters
from rdzv_server.service.rendezvous import Rendezvous
from rdzv_server.storage.base import Store, StoreFenced, StoreUnavailable

log = logging.getLogger("rdzv_server")

LEADERLESS_HOLD_S = 2.0
"""An agent's request waits this long for a leader; then the agent tries another server."""
RETRY_S = 0.2


class Reign:
    """This server's time as the leader."""

    def __init__(self, leadership: Held, store: Store, retention_s: float, max_runs: int) -> None:
        waiters = Waiters()
        self.leadership = leadership
        self.driver = Driver(Registry(retention_s, max_runs), store, waiters)
        self.rendezvous = Rendezvous(self.driver, waiters, leadership.number)

    async def begin(self) -> None:
        """Take over what the store holds, however long it cannot be read. Raises `StoreBroken` or `StoreFenced`."""
        said = False
        while True:
            try:
                return await self.driver.start()
            except StoreUnavailable as error:
                if not said:
                    log.error("%s; cannot take over yet", error)
                said = True
                await asyncio.sleep(RETRY_S)

    async def end(self) -> None:
        self.rendezvous.close()
        await self.driver.stop()


class Failover:
    """What agents and operators are answered, whoever leads. `run` makes it work."""

    def __init__(
        self,
        candidacy: Standing,
        address: str,
        make_store: Callable[[int], Store],
        retention_s: float,
        max_runs: int = MOST_RUNS,
        name: str = "",
    ) -> None:
        """`name`: which of several of this server's it is, for the log."""
        self.connections = _Connections(self)
        self._said = f"{name}: " if name else ""
        self._candidacy = candidacy
        self._address = address
        self._make_store = make_store
        self._retention_s = retention_s
        self._max_runs = max_runs
        self._reign: Reign | None = None
        self._others: Leader | None = None
        self._latest = 0
        self._news = asyncio.Event()
        self._closing = False
        self._started_at = time.monotonic()

    # Leading and following.

    async def run(self) -> None:
        """Lead whenever it can, for ever; resigns when cancelled. Raises what it cannot go on after."""
        while True:
            leadership = await self._candidacy.win(self._follow)
            store = self._make_store(leadership.number)
            reign = Reign(leadership, store, self._retention_s, self._max_runs)
            try:
                log.warning("%sleads no more: %s", self._said, await self._lead(reign))
            finally:
                self._set(None, None)
                await asyncio.shield(leadership.resign())
                await reign.end()  # sends the agents away, when another server may lead already

    async def _lead(self, reign: Reign) -> str:
        """Act as the leader until that is over; the reason."""
        log.info("%staking over as leader (leadership %d)", self._said, reign.leadership.number)
        over = asyncio.create_task(reign.leadership.over())
        work = asyncio.create_task(self._act(reign))
        try:
            await asyncio.wait({over, work}, return_when=asyncio.FIRST_COMPLETED)
            return (work if work.done() else over).result()
        finally:
            for task in (over, work):
                task.cancel()
            await asyncio.gather(over, work, return_exceptions=True)

    async def _act(self, reign: Reign) -> str:
        try:
            await reign.begin()
            self._set(reign, None)
            count = len(reign.driver.runs())
            log.info("%sleading: %d run%s", self._said, count, "s" * (count != 1))
            await reign.driver.crashed()
        except StoreFenced as error:
            return str(error)
        raise AssertionError("a driver never ends by itself")

    def _follow(self, leader: Leader | None) -> None:
        if leader and leader != self._others:
            log.info("%sfollowing %s (leadership %d)", self._said, leader.address, leader.number)
        self._set(None, leader)

    def _set(self, reign: Reign | None, others: Leader | None) -> None:
        """Note who leads, and tell whoever waits for it."""
        self._reign, self._others = reign, others
        self._latest = max(self._latest, reign.leadership.number if reign else 0, others.number if others else 0)
        self._news.set()
        self._news = asyncio.Event()

    # What agents ask.

    async def ask(self, request: AnyRequest, connection: Connection) -> Answer:
        """The leader's answer. Raises `NotLeader` while that is another server, or the leader's own refusal."""
        if isinstance(request, LeaderRequest):
            return await self._tell_leader(request)
        reign = await self._find_reign()
        try:
            answer = await reign.rendezvous.ask(request, connection)
        except ProtocolError:
            if self._is_certain(reign):
                raise
            raise self._not_leader() from None
        if not self._is_certain(reign):
            raise self._not_leader()
        return answer

    async def _tell_leader(self, request: LeaderRequest) -> LeaderReply:
        """A long poll for a later leadership than the one that the agent knows."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LEADER_HOLD_S):
                while not self._closing and (self.leader is None or self._latest <= request.after):
                    await self._news.wait()
        return LeaderReply(leadership=self._latest, leader=self.leader, leads=self.leads)

    async def _find_reign(self) -> Reign:
        """This server's own. While nobody is known to lead, waits for a leader. Raises `NotLeader`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LEADERLESS_HOLD_S):
                while self._reign is None and self._others is None and not self._closing:
                    await self._news.wait()
        if self._closing:
            raise ServerUnavailable(STOPPED)
        if self._reign is None or not self._is_certain(self._reign):
            raise self._not_leader()
        return self._reign

    def _is_certain(self, reign: Reign) -> bool:
        return reign is self._reign and reign.leadership.is_certain

    def _not_leader(self) -> NotLeader:
        if self._others:
            message = f"{self._others.address} leads: ask there"
            return NotLeader(message, self._others.address, self._others.number)
        return NotLeader("this server does not lead, and does not know who does")

    # What operators see.

    def runs(self) -> list[Run]:
        return self._reign.rendezvous.runs() if self._reign else []

    def now(self, run_id: str = "") -> float:
        return self._reign.rendezvous.now() if self._reign else time.monotonic()

    @property
    def started_at(self) -> float:
        return self._reign.rendezvous.started_at if self._reign else self._started_at

    @property
    def epoch(self) -> str:
        return self._reign.rendezvous.epoch if self._reign else ""

    @property
    def leads(self) -> bool:
        return self._reign is not None and self._reign.leadership.is_certain

    @property
    def reigns(self) -> bool:
        """Whether this server leads as far as it knows, certain or not."""
        return self._reign is not None

    @property
    def leader(self) -> str | None:
        if self._others:
            return self._others.address
        return self._address if self.leads else None

    @property
    def leadership(self) -> int:
        return self._latest

    @property
    def shards(self) -> Sequence[ShardView]:
        return ()

    @property
    def trouble(self) -> str | None:
        if self._closing:
            return "shutting down"
        if self._reign and not self.leads:
            return "etcd does not answer: this server's leadership is not certain"
        if self._reign:
            return self._reign.rendezvous.trouble
        return None if self._others else "no leader is known"

    def close(self) -> None:
        """Take no more requests: agents keep their workers and try another server. `run` has been cancelled."""
        self._closing = True
        self._news.set()


class _Connections:
    """Those of the present leadership."""

    def __init__(self, failover: Failover) -> None:
        self._failover = failover

    def lost(self, connection: Connection) -> None:
        if reign := self._failover._reign:
            reign.rendezvous.connections.lost(connection)
