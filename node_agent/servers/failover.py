"""Failover transport to several servers, of which one leads at a time.

An agent talks to the leader alone. Every other server names it, so that an agent finds it from whichever server it asks
first; one that does not answer is passed over. Beside its polls the agent has another of the servers tell it when
somebody else leads: so it leaves a leader that hangs, whose connection still stands, as soon as there is a new one.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from itertools import cycle
from typing import TypeVar

from rdzv_protocol.credentials import Credentials
from rdzv_protocol.errors import KEPT_OUT, NotLeader, ProtocolError, ServerUnavailable
from rdzv_protocol.flag_values import address
from rdzv_protocol.messages import Ack, LeaderRequest, Reply, Request
from rdzv_protocol.timing import ANSWER_TIMEOUT_S, answer_timeout_s

from node_agent import words
from node_agent.kernel.core import backoff
from node_agent.kernel.core.backoff import Unreachable
from node_agent.kernel.transport.base import spawn
from node_agent.kernel.transport.http import HttpTransport

Endpoint = tuple[str, int]
T = TypeVar("T")

CONNECT_TIMEOUT_S = 1.0
"""Time that one of several servers may take to accept; one that is there takes a round trip."""
WATCH_PAUSE_S = 5.0
"""Longest pause between two tries to be told of leaders: nothing waits for it while the leader answers."""


class Failover:
    """Knowledge that an agent's transports share: who leads, and whom to ask next. `log` is told when that changes."""

    def __init__(
        self, endpoints: Sequence[Endpoint], credentials: Credentials | None, log: Callable[[str], None]
    ) -> None:
        self.name = ", ".join(address(*endpoint) for endpoint in endpoints)
        self.leadership = 0
        """Number of the latest leadership that is known; 0: none, or a server that is the only one."""
        self.changed = asyncio.Event()
        """Event that is set, and replaced, when a later leader is known."""
        self.answer_timeout_s = ANSWER_TIMEOUT_S
        """Silence after which a connection to any of the servers is given up."""
        self.run_id: str | None = None
        """Run of all transports: servers may share the runs, each with a leader of its own."""
        self.spare = len(endpoints) - 1
        """Number of servers besides the one in use."""
        self._endpoints = list(endpoints)
        self._credentials = credentials
        self._log = log
        self._order = list(endpoints)
        self._current: Endpoint | None = None
        self._transports: set[FailoverTransport] = set()
        self._watch: asyncio.Task[None] | None = None

    def transport(self) -> "FailoverTransport":
        """A transport to whichever server leads."""
        transport = FailoverTransport(self)
        self._transports.add(transport)
        return transport

    def http(self, endpoint: Endpoint) -> HttpTransport:
        return HttpTransport(*endpoint, self._credentials)

    def next(self, tried: set[Endpoint]) -> Endpoint | None:
        """The server to try now; None: all have been tried."""
        return next((endpoint for endpoint in self._order if endpoint not in tried), None)

    def prefer(self, endpoint: Endpoint) -> None:
        """Try this server first from now on."""
        self._order = [endpoint, *(other for other in self._order if other != endpoint)]

    def failed(self, endpoint: Endpoint) -> None:
        """Try this server last from now on; one that was only named, not given, no more."""
        self._order = [other for other in self._order if other != endpoint]
        if endpoint in self._endpoints:
            self._order.append(endpoint)

    def answered(self, endpoint: Endpoint, leadership: int, by: "FailoverTransport") -> None:
        """Note an answer of the server as the leader, also where numbers begin anew, as in another etcd."""
        if self._current not in (None, endpoint):
            self._log(words.connection.leads_now(address(*endpoint)))
        is_balancer = self._current == endpoint and leadership > self.leadership
        self._current = endpoint
        if not self.named(endpoint, leadership):
            self.leadership = leadership
            self.prefer(endpoint)
        elif is_balancer:  # the same address leads to another server now
            for transport in self._transports - {by}:
                transport.leave()

    def named(self, leader: Endpoint, leadership: int) -> bool:
        """A server has named the leader. If that changes anything, every transport goes there; whether it does."""
        if leadership <= self.leadership:
            return False
        self.leadership = leadership
        self.prefer(leader)
        self.changed.set()
        self.changed = asyncio.Event()
        for transport in self._transports:
            transport.leave_all_but(leader)
        if self._watch is None and self.spare:
            self._watch = spawn(self._watch_leaders())
        return True

    async def closed(self, transport: "FailoverTransport") -> None:
        """Forget a transport that is not used any more."""
        self._transports.discard(transport)
        if self._watch and not self._transports:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)

    async def _watch_leaders(self) -> None:
        """Have one of the servers that do not lead tell who does, for as long as the agent lives."""
        attempt = 0
        for endpoint in cycle(self._endpoints):
            http = self.http(endpoint)
            try:
                while endpoint != self._current:
                    reply = await http.ask_leader(LeaderRequest(after=self.leadership, run_id=self.run_id))
                    attempt = 0
                    if reply.leader:
                        self.named(endpoint if reply.leads else _endpoint(reply.leader), reply.leadership)
                    if reply.leads:
                        break
            except (Unreachable, ProtocolError):
                attempt += 1
                await asyncio.sleep(backoff.delay(attempt, os.urandom(1)[0] / 255, WATCH_PAUSE_S))
            finally:
                await http.close()


class FailoverTransport:
    """Transport to whichever server leads."""

    def __init__(self, failover: Failover) -> None:
        self._failover = failover
        self._http: HttpTransport | None = None
        self._silent: HttpTransport | None = None
        """Transport on which no answer came in time. Its end would tell the server that the agent may be gone: so it
        stays open until the next answer has come."""
        self._endpoint: Endpoint | None = None
        self._is_left = False
        self._limit: asyncio.Timeout | None = None
        """Time limit of the exchange that is under way."""
        self._spare = failover.spare
        """Servers to be tried before a pause."""
        self._failures: dict[Endpoint, Unreachable] = {}
        """Latest failure of each server since one has answered."""

    async def connect(self) -> str:
        if self._is_left:
            await self._drop()
        limit_s = CONNECT_TIMEOUT_S if self._failover.spare else None
        tried: set[Endpoint] = set()
        while endpoint := self._endpoint or self._failover.next(tried):
            tried.add(endpoint)
            self._endpoint, self._http = endpoint, self._http or self._failover.http(endpoint)
            try:
                return await self._unless_left(self._http.connect(), limit_s)
            except TimeoutError:
                silent = Unreachable("connect", words.connection.server_silent(CONNECT_TIMEOUT_S))
                failure = await self._fail(silent)
            except Unreachable as error:
                failure = await self._fail(error)
        failure.sooner = self._failover.changed if self._failover.spare else None
        raise failure

    async def exchange(self, request: Request) -> Reply | Ack:
        assert self._http and self._endpoint
        endpoint = self._endpoint
        self._failover.run_id = request.run_id
        self._http.answer_timeout_s = self._failover.answer_timeout_s
        try:
            answer = await self._unless_left(self._http.exchange(request), None)
        except TimeoutError:
            await self._drop()
            raise Unreachable("leader", words.connection.leads_no_more(address(*endpoint)), _now()) from None
        except (Unreachable, NotLeader, ServerUnavailable) as error:
            failure = await self._fail(error)
            is_elsewhere = isinstance(error, NotLeader) and self._follow(error)
            failure.sooner = _now() if is_elsewhere else self._next_try()
            raise failure from None
        except KEPT_OUT:
            await self._drop()
            self._failover.failed(endpoint)  # another one may know better
            raise
        except ProtocolError:
            await self._succeed()
            raise
        await self._succeed()
        if isinstance(answer, Reply):
            self._failover.answer_timeout_s = answer_timeout_s(answer.lease_s)
            self._failover.answered(endpoint, answer.leadership, self)
        return answer

    async def close(self) -> None:
        await self._drop()
        await self._close_silent()
        await self._failover.closed(self)

    def leave_all_but(self, leader: Endpoint) -> None:
        """Give up a connection to another server."""
        self._is_left = False
        if self._endpoint != leader:
            self.leave()

    def leave(self) -> None:
        """Give up the connection, and what is under way on it."""
        self._is_left = True
        if self._limit and not self._limit.expired():  # an expired limit gives it up by itself
            self._limit.reschedule(asyncio.get_running_loop().time())
            self._limit = None  # once

    async def _unless_left(self, work: Awaitable[T], limit_s: float | None) -> T:
        """Await the work. Raises `TimeoutError` after `limit_s`, or when the connection is to be given up."""
        async with asyncio.timeout(limit_s) as self._limit:
            try:
                return await work
            finally:
                self._limit = None

    async def _drop(self) -> None:
        if self._http:
            await self._http.close()
        self._http = self._endpoint = None
        self._is_left = False

    async def _fail(self, error: Unreachable | ProtocolError) -> Unreachable:
        """Turn away from the server. The failure to report: its own, and those of the others since one has answered."""
        assert self._endpoint
        endpoint, cause = self._endpoint, error
        if not isinstance(cause, Unreachable):
            cause = Unreachable("leader" if isinstance(error, NotLeader) else "server", str(error))
        if self._http and self._http.is_silent:
            await self._close_silent()
            self._silent, self._http = self._http, None
        await self._drop()
        self._failover.failed(endpoint)
        if not self._failover.spare:
            return cause
        self._failures.pop(endpoint, None)  # to the end
        self._failures[endpoint] = cause
        details = "; ".join(f"{address(*at)}: {each.detail}" for at, each in self._failures.items())
        is_everywhere = len(self._failures) > self._failover.spare
        is_final = is_everywhere and all(each.is_final for each in self._failures.values())
        return Unreachable(cause.stage, details, is_final=is_final)

    async def _close_silent(self) -> None:
        if self._silent:
            await self._silent.close()
            self._silent = None

    async def _succeed(self) -> None:
        """Note that the leader has answered."""
        await self._close_silent()
        self._failures.clear()
        self._spare = self._failover.spare

    def _follow(self, error: NotLeader) -> bool:
        """Turn to the leader that the server names, then to the others. Whether it was not known before."""
        if not error.leader:
            return False
        leader = _endpoint(error.leader)
        if error.leadership == self._failover.leadership:
            self._failover.prefer(leader)
        return self._failover.named(leader, error.leadership)

    def _next_try(self) -> asyncio.Event | None:
        """Event that ends the pause before the next try, set until all have been tried. None: there is no other."""
        if not self._failover.spare:
            return None
        self._spare -= 1
        if self._spare >= 0:
            return _now()
        self._spare = self._failover.spare
        return self._failover.changed


def _now() -> asyncio.Event:
    now = asyncio.Event()
    now.set()
    return now


def _endpoint(text: str) -> Endpoint:
    """Endpoint that a server names; what cannot be one is tried in vain and passed over."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port) if port.isascii() and port.isdigit() else 0
