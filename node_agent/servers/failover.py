"""Failover transport to several servers, one of which leads at a time.

An agent sends its requests only to the leader. Every other server names the leader, so the agent can ask any of them
first, and skips servers that do not answer. Besides its polls, the agent keeps a request open at another server, which
answers when a new server leads. So it can leave a leader that hangs, with its connection still open, as soon as there
is a new one.
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
from node_agent.kernel.config import Endpoint
from node_agent.kernel.core import backoff
from node_agent.kernel.core.backoff import Unreachable
from node_agent.kernel.tasks import spawn
from node_agent.kernel.transport.http import HttpTransport

T = TypeVar("T")

CONNECT_TIMEOUT_S = 1.0
"""Seconds for one of several servers to accept a connection. A healthy one takes a round trip."""
WATCH_PAUSE_S = 5.0
"""Most seconds between two requests for news of leaders. Nothing depends on them while the leader answers."""


class Failover:
    """State shared by an agent's transports: which server leads, and which to try next. `log` is called when the leader
    changes.
    """

    def __init__(
        self, endpoints: Sequence[Endpoint], credentials: Credentials | None, log: Callable[[str], None]
    ) -> None:
        self.name = ", ".join(address(*endpoint) for endpoint in endpoints)
        self.leadership = 0
        """Number of the latest known leadership, 0 if there is none or only one server."""
        self.changed = asyncio.Event()
        """Set, and replaced, when a later leader is known."""
        self.answer_timeout_s = ANSWER_TIMEOUT_S
        """Seconds of silence after which a connection to any of the servers is dropped."""
        self.run_id: str | None = None
        """Run of all transports. Servers may divide the runs, with a leader for each part."""
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
        """Return a transport to the current leader."""
        transport = FailoverTransport(self)
        self._transports.add(transport)
        return transport

    def http(self, endpoint: Endpoint) -> HttpTransport:
        return HttpTransport(*endpoint, self._credentials)

    def next(self, tried: set[Endpoint]) -> Endpoint | None:
        """Return the server to try now, None if all have been tried."""
        return next((endpoint for endpoint in self._order if endpoint not in tried), None)

    def prefer(self, endpoint: Endpoint) -> None:
        """Try this server first from now on."""
        self._order = [endpoint, *(other for other in self._order if other != endpoint)]

    def failed(self, endpoint: Endpoint) -> None:
        """Try this server last from now on. Do not try it again if it was only named by another server."""
        self._order = [other for other in self._order if other != endpoint]
        if endpoint in self._endpoints:
            self._order.append(endpoint)

    def answered(self, endpoint: Endpoint, leadership: int, by: "FailoverTransport") -> None:
        """Record an answer of the leading server, even if leadership numbers start again, as in another etcd."""
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
        """Record that a server has named the leader. If that is news, redirect all transports. Return whether it is."""
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
        """Forget a closed transport."""
        self._transports.discard(transport)
        if self._watch and not self._transports:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)

    async def _watch_leaders(self) -> None:
        """Ask the servers that do not lead for news of the leader, as long as the agent lives."""
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
    """Transport to the current leader."""

    def __init__(self, failover: Failover) -> None:
        self._failover = failover
        self._http: HttpTransport | None = None
        self._silent: HttpTransport | None = None
        """Transport without an answer in time. If it were closed, the server would treat the agent as lost. So it stays
        open until the next answer."""
        self._endpoint: Endpoint | None = None
        self._is_left = False
        self._limit: asyncio.Timeout | None = None
        """Time limit of the current exchange."""
        self._spare = failover.spare
        """Servers to try before a pause."""
        self._failures: dict[Endpoint, Unreachable] = {}
        """Latest failure of each server since the last answer."""

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
            raise Unreachable("leader", words.connection.no_longer_leads(address(*endpoint)), _now()) from None
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
        """Drop a connection to another server."""
        self._is_left = False
        if self._endpoint != leader:
            self.leave()

    def leave(self) -> None:
        """Drop the connection, and the current exchange on it."""
        self._is_left = True
        if self._limit and not self._limit.expired():  # an expired limit ends the exchange by itself
            self._limit.reschedule(asyncio.get_running_loop().time())
            self._limit = None  # only once

    async def _unless_left(self, work: Awaitable[T], limit_s: float | None) -> T:
        """Await the work. Raises `TimeoutError` after `limit_s`, or when the connection is to be dropped."""
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
        """Turn to the next server. Return the failure to report, with the other servers' failures since the last
        answer.
        """
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
        self._failures.pop(endpoint, None)  # move it to the end
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
        """Record that the leader has answered."""
        await self._close_silent()
        self._failures.clear()
        self._spare = self._failover.spare

    def _follow(self, error: NotLeader) -> bool:
        """Turn to the leader that the server names, then to the others. Return whether that leader was unknown."""
        if not error.leader:
            return False
        leader = _endpoint(error.leader)
        if error.leadership == self._failover.leadership:
            self._failover.prefer(leader)
        return self._failover.named(leader, error.leadership)

    def _next_try(self) -> asyncio.Event | None:
        """Return an event that ends the pause before the next try, set until all were tried. None if there is no other
        server.
        """
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
    """Return the endpoint that a server names. If it is invalid, the agent tries it and skips it."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port) if port.isascii() and port.isdigit() else 0
