"""Connection of the server: limits of time and memory, and scheduling. Its `http` handles HTTP itself."""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol, cast

from rdzv_protocol import paths

from rdzv_server.auth.authorization import Permit
from rdzv_server.http.connection_limits import ConnectionLimits
from rdzv_server.http.pending_connections import PendingConnection

LOOKS, PROBES = ("GET", "HEAD"), (paths.HEALTHZ, paths.READYZ, paths.LEADERZ)
"""Methods of requests that wait until agents leave time for them, and paths of probes, which do not wait."""
READ_BYTES = 8_192
"""Most bytes that are read at a time and handled in one turn. With any content, that takes a millisecond or two."""
MOST_WAITING = 2
"""Pieces of received data that may wait for their turns. Above that, no more is read from the peer."""
MOST_DROPPED = 1 << 20
"""Most bytes after a refused request that are read and dropped, so that its sender reads the answer."""


class Http(Protocol):
    """HTTP of one connection, as `HttpConnection` uses it."""

    @property
    def drops_rest(self) -> bool:
        """Whether the rest of the connection's data is ignored, because the last request was refused by its head."""

    @property
    def is_whole(self) -> bool:
        """Whether the last request has arrived to its last byte, and no other has begun."""

    @property
    def is_full(self) -> bool:
        """Whether HTTP has stopped reading for its own reasons; then it also continues by itself."""

    def connection_made(self, transport: asyncio.BaseTransport, /) -> None: ...

    def data_received(self, data: bytes, /) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, error: BaseException | None, /) -> None: ...


class HttpConnection(asyncio.BufferedProtocol):
    """Protocol between a transport and the protocol that handles HTTP. It passes data on when its run has its turn.

    A connection is cut if a request takes too long to arrive, or an answer stays unread too long. So a slow sender does
    not hold a place for long, and a peer that does not read does not hold memory for long.
    """

    def __init__(
        self,
        make_http: Callable[[], Http],
        peer: str,
        bounds: ConnectionLimits["HttpConnection"],
        authenticated: "OnConnection",
        gone: "OnConnection",
    ) -> None:
        """Prepare a connection that is not made yet.

        `make_http` makes the protocol of HTTP once the connection is made: many connections never are. `authenticated`
        is called when a request has been let in for the first time, `gone` when the connection is closed.
        """
        self.http: Http
        """Protocol that handles HTTP, once the connection is made."""
        self._make_http = make_http
        self.peer = peer
        self.run = peer
        """Run for which the connection is scheduled; the peer until a run is known."""
        self.credential: str | None = None
        """Authorization header with which the last request was let in; None if none was yet."""
        self.is_unauthenticated = True
        """Whether no request has been let in. If no token is set, a request is let in with its last byte."""
        self.opening: PendingConnection | None = None
        """Opening of the connection, until the first byte and the TLS handshake have come; None once it is made."""
        self.received = b""
        """Bytes that were received before the connection was made, in a turn of the peer."""
        self.lacks_tls = False
        """Whether the peer does not speak TLS to a server that requires it."""
        self.held_s = 0.0
        """Seconds for which the current request was held as a long poll."""
        self.permit = _NOTHING
        """Runs that the current request may be about."""
        self._authenticated, self._gone = authenticated, gone
        self._transport: asyncio.Transport | None = None
        self._has_left = False
        """Whether the peer has closed the connection, and the server closes it in a turn."""
        self._is_answering = False
        self._bounds = bounds
        self._waiting: list[tuple[bool, Callable[[], None]]] = []
        """Calls that wait for their turns, and whether each is an operator's read."""
        self._is_refused = False
        """Whether the connection was cut to free memory. Its end then frees the memory without waiting for a turn."""
        self._dropped = 0
        """Bytes that were dropped after a refused request."""

    @property
    def is_scoped(self) -> bool:
        return not self.permit.covers_all

    @property
    def server_addr(self) -> str:
        """The server's own address on this connection. An IPv4 address from a dual-stack socket is returned as IPv4."""
        sockname = self._transport.get_extra_info("sockname") if self._transport else None
        return str(sockname[0]).removeprefix("::ffff:") if sockname else ""

    @property
    def is_closed(self) -> bool:
        """Whether either side has closed the connection, perhaps before the last received data had its turn."""
        return self.is_lost or (self._transport is not None and self._transport.is_closing())

    @property
    def is_lost(self) -> bool:
        """Whether the peer or the transport is gone. What was received before still has its turns."""
        return self._has_left or self._transport is None

    @property
    def waits_for_peer(self) -> bool:
        """Whether the peer has to send something next."""
        waits_for_turn = self._waiting or self.received or (self.opening and self.opening.waits_for_turn)
        return not (self._is_answering or waits_for_turn)

    def request_arrived(self) -> None:
        """Note that the request has arrived, to its last byte."""
        self._is_answering = True
        self._bounds.arriving.stop(self)
        if not self._waiting:
            self._bounds.held.remove(self)
        if self.credential is not None:
            self._greet()

    def request_answered(self) -> None:
        """Note that the next byte begins the next request, unless a part of that has arrived already."""
        self._is_answering = False
        self._bounds.arriving.stop(self)
        if not self.http.is_whole:
            self._bounds.arriving.start(self)

    def held(self, seconds: float) -> None:
        """Note that the current request was held as a long poll, which is no delay of the server."""
        self.held_s += seconds

    def let_in(self, permit: Permit, credential: str) -> None:
        """Note that the current request may be about what the permit allows, because of this credential."""
        self.permit, self.credential = permit, credential
        if permit.tokens is not None or self._is_answering:
            self._greet()

    def _greet(self) -> None:
        if self.is_unauthenticated:
            self.is_unauthenticated = False
            self._authenticated(self)

    def refuse(self, answer: bytes) -> None:
        """Cut the connection to free memory, after this answer unless the peer waits for an earlier request's
        answer."""
        self._is_refused = True
        if self._transport and not self._is_answering:
            self._transport.write(answer)
            self._transport.close()
        else:
            self.close()

    def close(self) -> None:
        """Cut the connection."""
        if self._transport:
            self._transport.abort()
        elif self.opening:
            self.opening.cancel()

    def opened(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport, so that `close` ends it. asyncio calls `connection_made` soon."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports have another class
        self.opening = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.opened(transport)
        self._bounds.arriving.start(self)
        self.http = self._make_http()
        self.http.connection_made(transport)
        if self.received:
            received, self.received = self.received, b""
            self._take(received, has_turn=True)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _BUFFER  # shared by all connections: what is read into it is copied at once

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(_BUFFER[:nbytes]))

    def data_received(self, data: bytes) -> None:
        self._take(data, has_turn=False)

    def _take(self, data: bytes, *, has_turn: bool) -> None:
        """Pass data on in its turn.

        `has_turn`: its turn is now, unless it is an operator's read, which waits for its slice.
        """
        if self.http.drops_rest:
            self._drop(len(data))
            return
        self._bounds.garbage.request_arrived()
        if not self._is_answering:
            self._bounds.arriving.start(self)
        is_look = _is_look(data)
        at_once = has_turn and not is_look
        is_counted = self.is_unauthenticated and not at_once
        if is_counted:
            self._bounds.held.add(self.peer, self, len(data))  # also while the data waits for its turn
        if is_look and data.endswith(b"\r\n\r\n"):
            self._bounds.arriving.stop(self)  # the request is complete: from now on the server makes it wait
        self._pass_on(partial(self._receive, data, is_counted), is_look, at_once)
        if len(self._waiting) >= MOST_WAITING and self._transport:
            self._transport.pause_reading()

    def _receive(self, data: bytes, is_counted: bool) -> None:
        head, rest = _first_head(data) if self.is_unauthenticated else (data, b"")
        self.http.data_received(head)
        is_last = self.http.drops_rest or (self.is_closed and self.http.is_whole)
        if rest and not is_last:
            if not is_counted and self.is_unauthenticated:
                is_counted = True
                self._bounds.held.add(self.peer, self, len(rest))
            self._waiting.insert(1, (False, partial(self._receive, rest, is_counted)))  # the rest has a turn of its own
        if self.http.drops_rest:
            self._bounds.held.remove(self)
        elif self.http.is_whole:
            self.request_arrived()  # from now on the server makes it wait, perhaps for long before its handler runs
        elif not is_counted:
            self._bounds.held.add(self.peer, self, len(data))

    def _drop(self, size: int) -> None:
        """Drop received data. Reading more of it takes a turn."""
        self._dropped += size
        if self._transport and not self.is_closed:
            self._transport.pause_reading()
            if self._dropped <= MOST_DROPPED:
                self._bounds.turns.ask(self.peer, self._read_on, is_unauthenticated=True)

    def eof_received(self) -> bool:
        """Close the connection in its turn. Return whether asyncio leaves that to this method.

        If all nodes of a large run vanish at once, closing their sockets takes most of the time. Strangers are closed
        at once, to free memory, and asyncio closes connections with TLS itself.
        """
        if self.is_unauthenticated or not self._transport or self._transport.get_extra_info("sslcontext"):
            return False
        self._has_left = True
        self._pass_on(self._hang_up, is_look=False)
        return True

    def _hang_up(self) -> None:
        if self._transport:
            self._transport.close()

    def pause_writing(self) -> None:
        self._bounds.unread.start(self)
        self.http.pause_writing()
        if self._transport:
            self._bounds.held.add(self.peer, self, self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._bounds.unread.stop(self)
        self._bounds.held.remove(self)
        self.http.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._bounds.arriving.stop(self)
        self._bounds.unread.stop(self)
        self._bounds.held.remove(self)
        if self._transport:
            free(self._transport)
        self._transport = None
        if self._is_refused:
            self._waiting.clear()
            self._end(error)
            return
        if self.is_unauthenticated:
            self._waiting.clear()  # no reader is left for the answer
        self._pass_on(partial(self._end, error), is_look=False, at_once=self._has_left)

    def _end(self, error: Exception | None) -> None:
        self.http.connection_lost(error)
        self._gone(self)

    def _pass_on(self, what: Callable[[], None], is_look: bool, at_once: bool = False) -> None:
        """Call `what` in its turn, after everything that came before. `at_once`: whether its turn is now."""
        self._waiting.append((is_look, what))
        if at_once:
            self._pass()
        elif len(self._waiting) == 1:
            self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        is_look, _ = self._waiting[0]
        if is_look:
            self._bounds.looks.ask(self.run, self._pass)
        else:
            self._bounds.turns.ask(self.run, self._pass, is_unauthenticated=self.is_unauthenticated)

    def _pass(self) -> None:
        if not self._waiting:
            return
        was_full, (_, what) = len(self._waiting) >= MOST_WAITING, self._waiting[0]
        try:
            what()
        finally:
            del self._waiting[0]
            if was_full and len(self._waiting) < MOST_WAITING:
                self._read_on()
            if self._waiting:
                self._wait_for_turn()

    def _read_on(self) -> None:
        if self._transport and not self.is_closed and not self.http.is_full:
            self._transport.resume_reading()


def _is_look(data: bytes) -> bool:
    """Whether `data` begins an operator's request to read something, which waits until agents leave time for it.

    Later pieces of such a request are scheduled among agents, like everything else.
    """
    return data.startswith(_LOOKS) and not data.startswith(_PROBES)


def _first_head(data: bytes) -> tuple[bytes, bytes]:
    """Split data after the first head of a request in it. A stranger's head is judged before the rest is handled.

    If nothing follows a request, all of it is passed on at once: what comes after its head is its body.
    """
    end = data.find(b"\r\n\r\n") + 4
    if end < 4:
        return data, b""
    length = _CONTENT_LENGTH.search(data, 0, end)
    if length and len(data) - end <= int(length[1]):
        return data, b""
    return data[:end], data[end:]


_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,4})\r\n", re.IGNORECASE)
"""Pattern for the length of a request's body that may be in one piece with its head."""
_BUFFER = memoryview(bytearray(READ_BYTES))
_NOTHING = Permit(())
_LOOKS = tuple(f"{method} ".encode() for method in LOOKS)
_PROBES = tuple(f"{method} {path}".encode() for method in LOOKS for path in PROBES)
"""First bytes of probes' requests."""

OnConnection = Callable[[HttpConnection], None]


def free(transport: asyncio.BaseTransport) -> None:
    """Free a closed transport with its last reference: asyncio's keeps one of its own methods, which is a cycle."""
    with suppress(AttributeError):  # transports of TLS and of uvloop have no such attribute
        del transport._read_ready_cb  # type: ignore[attr-defined]
