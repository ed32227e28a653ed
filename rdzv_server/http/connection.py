"""Connection of the server: time limits and scheduling. HTTP is aiohttp's, which limits idle connections alone."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import cast

from rdzv_protocol import paths

from rdzv_server.auth.authorization import Permit
from rdzv_server.http.garbage import GarbageCollector
from rdzv_server.service.fair_scheduler import scheduler
from rdzv_server.service.operator_scheduler import operator_scheduler
from rdzv_server.service.timeouts import Timeouts

LOOKS, PROBES = ("GET", "HEAD"), (paths.HEALTHZ, paths.READYZ, paths.LEADERZ)
"""Methods of requests that wait until agents leave time for them; paths of probes, which do not wait."""
MOST_WAITING = 2
"""Pieces of received data that may wait for their turns; with as many, no more is read from the peer."""


class HttpConnection(asyncio.Protocol):
    """Protocol between a transport and aiohttp's, which passes data on when it is its run's turn.

    A connection is cut if a request takes too long to arrive, or an answer is left unread. So one that dribbles holds
    no place for long, and one that does not read holds no memory for long.
    """

    def __init__(
        self,
        http: asyncio.Protocol,
        peer: str,
        arriving: "ConnectionTimeouts",
        unread: "ConnectionTimeouts",
        garbage: GarbageCollector,
        authenticated: "OnConnection",
        gone: "OnConnection",
    ) -> None:
        """`arriving` and `unread`: time limits of requests and of unread answers. `garbage` is told of requests.

        `authenticated` is called when a request has been let in for the first time, `gone` when the connection is
        closed.
        """
        self.http = http
        self.peer = peer
        self.run = peer
        """Run with which the connection is scheduled; the peer, until a run is known."""
        self.credential: str | None = None
        """Authorization header with which the last request was let in; None: no request has been yet."""
        self.opening: asyncio.Task[None] | None = None
        """Task that connects the protocol to its transport, after TLS's handshake."""
        self.lacks_tls = False
        """Whether the peer speaks no TLS to a server that requires it."""
        self.held_s = 0.0
        """Seconds for which the present request was held as a long poll."""
        self.permit = _NOTHING
        """Runs that the present request may be about."""
        self._authenticated, self._gone = authenticated, gone
        self._transport: asyncio.Transport | None = None
        self._is_answering = False
        self._arriving, self._unread, self._garbage = arriving, unread, garbage
        self._waiting: list[tuple[Ask, Callable[[], None]]] = []

    @property
    def server_addr(self) -> str:
        """The server's own address on this connection; an IPv4 one that came in by a dual-stack socket as IPv4."""
        sockname = self._transport.get_extra_info("sockname") if self._transport else None
        return str(sockname[0]).removeprefix("::ffff:") if sockname else ""

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed, by either side: perhaps before the last received data has had its turn."""
        return self._transport is None or self._transport.is_closing()

    def request_arrived(self) -> None:
        """Note that the request has arrived, to its last byte."""
        self._is_answering = True
        self._arriving.stop(self)

    def request_answered(self) -> None:
        """Note that the next byte begins the next request."""
        self._is_answering = False
        self._arriving.stop(self)

    def held(self, seconds: float) -> None:
        """Note that the present request was held as a long poll, which is no delay of the server's."""
        self.held_s += seconds

    def let_in(self, permit: Permit, credential: str) -> None:
        """Note that the present request may be about what the permit says, by this credential."""
        self.permit = permit
        if self.credential is None:
            self._authenticated(self)
        self.credential = credential

    def close(self) -> None:
        """Cut the connection."""
        if self._transport:
            self._transport.abort()
        elif self.opening:
            self.opening.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by their class
        self._arriving.start(self)
        self.http.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._garbage.request_arrived()
        if not self._is_answering:
            self._arriving.start(self)
        if not _is_look(data):
            operator_scheduler().give_way()
            ask = scheduler().ask
        else:
            ask = operator_scheduler().ask
            if data.endswith(b"\r\n\r\n"):
                self._arriving.stop(self)  # all of it is here, and that it waits for its slice is our doing
        self._pass_on(partial(self.http.data_received, data), ask)
        if len(self._waiting) >= MOST_WAITING and self._transport:
            self._transport.pause_reading()

    def eof_received(self) -> bool | None:
        return self.http.eof_received()

    def pause_writing(self) -> None:
        self._unread.start(self)
        self.http.pause_writing()

    def resume_writing(self) -> None:
        self._unread.stop(self)
        self.http.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._arriving.stop(self)
        self._unread.stop(self)
        self._pass_on(partial(self._end, error), scheduler().ask)

    def _end(self, error: Exception | None) -> None:
        self.http.connection_lost(error)
        self._gone(self)

    def _pass_on(self, what: Callable[[], None], ask: "Ask") -> None:
        """Call `what` in its turn, after everything that came before."""
        self._waiting.append((ask, what))
        if len(self._waiting) == 1:
            self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        ask, _ = self._waiting[0]
        ask(self.run, self._pass)

    def _is_http_full(self) -> bool:
        """Whether aiohttp has stopped reading for reasons of its own; it goes on by itself then."""
        return bool(getattr(self.http, "_reading_paused", False))

    def _pass(self) -> None:
        is_full = len(self._waiting) == MOST_WAITING
        if is_full and self._transport and not self.is_closed and not self._is_http_full():
            self._transport.resume_reading()
        _, what = self._waiting[0]
        try:
            what()
        finally:
            del self._waiting[0]
            if self._waiting:
                self._wait_for_turn()


def _is_look(data: bytes) -> bool:
    """Whether `data` begins an operators' request to read something, which waits until agents leave time for it.

    Later pieces of such a request are scheduled among agents, like everything else.
    """
    return data.startswith(_LOOKS) and not data.startswith(_PROBES)


_NOTHING = Permit(())
_LOOKS = tuple(f"{method} ".encode() for method in LOOKS)
_PROBES = tuple(f"{method} {path}".encode() for method in LOOKS for path in PROBES)
"""Beginnings of probes' requests."""

Ask = Callable[[str, Callable[[], None]], None]
"""Method `ask` of a scheduler: the name whose turn it takes, and what to call."""

OnConnection = Callable[[HttpConnection], None]
ConnectionTimeouts = Timeouts[HttpConnection]
