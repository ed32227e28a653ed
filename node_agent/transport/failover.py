"""Failover transport to several servers, of which one leads at a time.

An agent talks to the leader alone. A server that is not it names it, and so each agent finds it from whichever server
it asks first; one that does not answer is passed over. Beside its polls the agent has another of the servers tell it
when somebody else leads: so it leaves a leader that hangs, whose connection still stands, in the moment in which there
is a new one.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from itertools import cycle
from typing import TypeVar

from rdzv_protocol.errors import KEPT_OUT, NotLeader, ProtocolError, ServerUnavailable
from rdzv_protocol.messages import Ack, LeaderRequest, Reply, Request

from node_agent.core import backoff
from node_agent.core.backoff import Unreachable
from node_agent.transport.base import raise_in_loop
from node_agent.transport.credentials import Credentials
from node_agent.transport.http import HttpTransport

Endpoint = tuple[str, int]
T = TypeVar("T")

CONNECT_TIMEOUT_S = 1.0
"""How long one of several servers may take to accept; one that is there takes a round trip."""
WATCH_PAUSE_S = 5.0
"""Between two tries to be told of leaders, at the longest: nothing waits for it while the leader answers."""


class Failover:
    """Knowledge that an agent's transports share: who leads, and whom to ask next. `say` logs when that changes."""

    def __init__(
        self, endpoints: Sequence[Endpoint], credentials: Credentials | None, say: Callable[[str], None]
    ) -> None:
        self.name = ", ".join(map(_text, endpoints))
        self.leadership = 0
        """The latest one that is known; 0: none, or a server that is the only one."""
        self.changed = asyncio.Event()
        """Set when a later leader is known, and replaced."""
        self._endpoints = list(endpoints)
        self._credentials = credentials
        self._say = say
        self._order = list(endpoints)
        self._current: Endpoint | None = None
        self._transports: set[FailoverTransport] = set()
        self._watch: asyncio.Task[None] | None = None
        self._run_id: str | None = None

    def transport(self) -> "FailoverTransport":
        """A line to whichever of them leads."""
        transport = FailoverTransport(self)
        self._transports.add(transport)
        return transport

    def http(self, endpoint: Endpoint) -> HttpTransport:
        return HttpTransport(*endpoint, self._credentials)

    def next(self, tried: set[Endpoint]) -> Endpoint | None:
        """The one to try now."""
        return next((endpoint for endpoint in self._order if endpoint not in tried), None)

    @property
    def spare(self) -> int:
        """How many there are to turn to besides one."""
        return len(self._endpoints) - 1

    def failed(self, endpoint: Endpoint) -> None:
        """It is tried last from now on."""
        if endpoint in self._order:
            self._order.remove(endpoint)
        if endpoint in self._endpoints:
            self._order.append(endpoint)

    def asked_about(self, run_id: str) -> None:
        """All lines are about one run: servers may share the runs, each with a leader of its own."""
        self._run_id = run_id

    def answered(self, endpoint: Endpoint, leadership: int) -> None:
        """It has answered as the leader: that counts, also where numbers begin anew, as in an etcd set up anew."""
        if self._current not in (None, endpoint):
            self._say(f"rdzv-server at {_text(endpoint)} leads now")
        self._current = endpoint
        if not self.told_of(endpoint, leadership):
            self.leadership = leadership
            self.prefer(endpoint)

    def told_of(self, leader: Endpoint, leadership: int) -> bool:
        """A server says who leads. If that is news, every line goes there; whether it is."""
        if leadership <= self.leadership:
            return False
        self.leadership = leadership
        self.prefer(leader)
        self.changed.set()
        self.changed = asyncio.Event()
        for transport in self._transports:
            transport.leave_all_but(leader)
        if self._watch is None and self.spare:
            self._watch = asyncio.create_task(self._be_told())
            self._watch.add_done_callback(raise_in_loop)
        return True

    def prefer(self, endpoint: Endpoint) -> None:
        """It is tried first from now on."""
        if endpoint in self._order:
            self._order.remove(endpoint)
        self._order.insert(0, endpoint)

    async def gone(self, transport: "FailoverTransport") -> None:
        """The line is not used any more."""
        self._transports.discard(transport)
        if self._watch and not self._transports:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)

    async def _be_told(self) -> None:
        """Have one of the servers that do not lead tell who does, for as long as the agent lives."""
        attempt = 0
        for endpoint in cycle(self._endpoints):
            line = self.http(endpoint)
            try:
                while endpoint != self._current:
                    reply = await line.ask_leader(LeaderRequest(after=self.leadership, run_id=self._run_id))
                    attempt = 0
                    if reply.leader:
                        self.told_of(endpoint if reply.leads else _endpoint(reply.leader), reply.leadership)
                    if reply.leads:
                        break
            except (Unreachable, ProtocolError):
                attempt += 1
                await asyncio.sleep(backoff.delay(attempt, os.urandom(1)[0] / 255, WATCH_PAUSE_S))
            finally:
                await line.close()


class FailoverTransport:
    """Transport to whichever server leads."""

    def __init__(self, failover: Failover) -> None:
        self._failover = failover
        self._http: HttpTransport | None = None
        self._endpoint: Endpoint | None = None
        self._is_left = False
        self._patience: asyncio.Timeout | None = None
        self._spare = failover.spare
        self._trouble: dict[Endpoint, Unreachable] = {}

    async def connect(self) -> str:
        if self._is_left:
            await self._drop()
        tried: set[Endpoint] = set()
        while endpoint := self._endpoint or self._failover.next(tried):
            tried.add(endpoint)
            self._endpoint, self._http = endpoint, self._http or self._failover.http(endpoint)
            try:
                return await self._connect(self._http)
            except Unreachable as error:
                failure = await self._fail(error)
        failure.sooner = self._failover.changed if self._failover.spare else None
        raise failure

    async def exchange(self, request: Request) -> Reply | Ack:
        assert self._http and self._endpoint
        endpoint = self._endpoint
        self._failover.asked_about(request.run_id)
        try:
            answer = await self._unless_left(self._http.exchange(request), None)
        except TimeoutError:
            await self._drop()
            raise Unreachable("leader", f"{_text(endpoint)} leads no more", _now()) from None
        except (Unreachable, NotLeader, ServerUnavailable) as error:
            failure = await self._fail(error)
            is_news = isinstance(error, NotLeader) and self._is_pointed(error)
            failure.sooner = _now() if is_news else self._elsewhere()
            raise failure from None
        except KEPT_OUT:
            await self._drop()
            self._failover.failed(endpoint)  # another one may know better
            raise
        except ProtocolError:
            self._settle()
            raise
        self._settle()
        if isinstance(answer, Reply):
            self._failover.answered(endpoint, answer.leadership)
        return answer

    async def close(self) -> None:
        await self._drop()
        await self._failover.gone(self)

    def leave_all_but(self, leader: Endpoint) -> None:
        """Give up a line to another server, and what is under way on it."""
        self._is_left = self._endpoint != leader
        if self._is_left and self._patience:
            self._patience.reschedule(asyncio.get_running_loop().time())
            self._patience = None  # once

    async def _connect(self, line: HttpTransport) -> str:
        limit_s = CONNECT_TIMEOUT_S if self._failover.spare else None
        try:
            return await self._unless_left(line.connect(), limit_s)
        except TimeoutError:
            raise Unreachable("connect", f"no answer within {CONNECT_TIMEOUT_S:g} s") from None

    async def _unless_left(self, work: Awaitable[T], limit_s: float | None) -> T:
        """Raises `TimeoutError` after so long, or when the line is to be given up."""
        async with asyncio.timeout(limit_s) as self._patience:
            try:
                return await work
            finally:
                self._patience = None

    async def _drop(self) -> None:
        if self._http:
            await self._http.close()
        self._http = self._endpoint = None
        self._is_left = False

    async def _fail(self, error: Unreachable | ProtocolError) -> Unreachable:
        """The server is of no use now. What to say of it, and of the others that have failed since one answered."""
        assert self._endpoint
        endpoint, cause = self._endpoint, _as_unreachable(error)
        await self._drop()
        self._failover.failed(endpoint)
        self._trouble.pop(endpoint, None)
        self._trouble[endpoint] = cause
        if self._failover.spare:
            told = "; ".join(f"{_text(at)}: {each.detail}" for at, each in self._trouble.items())
            is_everywhere = len(self._trouble) > self._failover.spare
            is_final = is_everywhere and all(each.is_final for each in self._trouble.values())
            return Unreachable(cause.stage, told, is_final=is_final)
        return cause

    def _settle(self) -> None:
        """The leader has answered."""
        self._trouble.clear()
        self._spare = self._failover.spare

    def _is_pointed(self, error: NotLeader) -> bool:
        """Turn to the leader that the server names, then to the others, which may know more. Whether that is news."""
        if not error.leader:
            return False
        leader = _endpoint(error.leader)
        if self._failover.told_of(leader, error.leadership):
            return True
        if error.leadership == self._failover.leadership:
            self._failover.prefer(leader)
        return False

    def _elsewhere(self) -> asyncio.Event | None:
        """When to try the next one: at once, until all have been tried. None: there is no other."""
        if not self._failover.spare:
            return None
        self._spare -= 1
        if self._spare >= 0:
            return _now()
        self._spare = self._failover.spare
        return self._failover.changed


def _as_unreachable(error: Unreachable | ProtocolError) -> Unreachable:
    if isinstance(error, Unreachable):
        return error
    return Unreachable("leader" if isinstance(error, NotLeader) else "server", str(error))


def _now() -> asyncio.Event:
    now = asyncio.Event()
    now.set()
    return now


def _text(endpoint: Endpoint) -> str:
    host, port = endpoint
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _endpoint(address: str) -> Endpoint:
    """A server's own word for where it is; what cannot be one is tried in vain and passed over."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port) if port.isascii() and port.isdigit() else 0
