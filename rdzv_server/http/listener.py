"""Listener of the server: accepts as many connections as there is room for, with TLS only after its handshake.

A connection is unauthenticated until one of its requests has been let in. If there is no room for a new connection, the
oldest unauthenticated one is closed. A legitimate connection is unauthenticated only for a round trip.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from rdzv_protocol.errors import TooManyRequests

from rdzv_server.config import Limits
from rdzv_server.http.connection import READ_BYTES, Http, HttpConnection
from rdzv_server.http.connection_limits import MOST_HELD_BYTES, ConnectionLimits, HeldMemory
from rdzv_server.http.garbage_collection import GarbageCollector
from rdzv_server.http.peer_limits import RefusalLog, peer_of
from rdzv_server.http.pending_connections import PendingConnection
from rdzv_server.http.tls import Places, shake_hands
from rdzv_server.service.fair_scheduler import scheduler
from rdzv_server.service.operator_scheduler import operator_scheduler
from rdzv_server.service.timeouts import Timeouts
from rdzv_server.storage.outage import Outage
from rdzv_server.words import http as words

log = logging.getLogger("rdzv_server")

ACCEPTS_PER_TURN, ACCEPT_TURN_S = 64, 0.0005
"""Most connections that are accepted before other tasks of the process run, and seconds for that."""
MOST_HANDSHAKES, STALE_S = 512, 1.0
"""Most TLS connections that are in their handshake, or from which no request has been let in since; half of them for
one peer. While others wait, the server closes one that has sent nothing useful for `STALE_S` seconds."""
AGENT_BYTES, TLS_AGENT_BYTES = 20 << 10, 50 << 10
"""Most bytes that an agent and its connection take, without and with TLS: 14 and 40 kB were measured."""
PAUSE_S = 1.0
"""Seconds without accepting after the system could not take another connection."""
HANDSHAKE = b"\x16"
"""First byte of every TLS connection (RFC 8446, 5.1). No HTTP request begins with it."""
_PASSING = {errno.EAGAIN, errno.EINTR, errno.ECONNABORTED, errno.EPROTO}

REASONS = ("connections", "handshakes", "held_memory", "slow_request", "unread_answer")
"""Reasons for which the server closes connections, as the metrics name them."""
_TOO_MUCH_HELD = (
    b"HTTP/1.1 429 Too Many Requests\r\nServer: rdzv-server\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Content-Length: 49\r\nConnection: close\r\n\r\ntoo many unfinished requests; each is tried again"
)
MakeProtocol = Callable[[], Http]
Connect = Callable[[], Coroutine[Any, Any, object]]


class Listener:
    """Listener of one socket, with its connections. `closed` is called with each connection that ends."""

    def __init__(
        self, bound: socket.socket, http: MakeProtocol, limits: Limits, tls: ssl.SSLContext | None,
        closed: Callable[[HttpConnection], None],
    ) -> None:  # fmt: skip
        self.tls = tls
        """TLS context of new connections. A connection without TLS is accepted as well, so that it gets an answer."""
        self._socket = bound
        self._http = http
        self._limits = limits
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._connections: set[HttpConnection] = set()
        self._unauthenticated: dict[HttpConnection, None] = {}
        self._garbage = GarbageCollector(self._used_bytes)
        self._bounds = ConnectionLimits(
            arriving=Timeouts(limits.request_s, self._request_is_late),
            unread=Timeouts(limits.unread_s, partial(self._close_for, "unread_answer")),
            held=HeldMemory(MOST_HELD_BYTES, self._refuse_held),
            garbage=self._garbage,
            turns=scheduler(),
            looks=operator_scheduler(),
        )
        self._silent = Timeouts(limits.handshake_s, partial(self._close_for, "slow_request"))
        """Time limits of TLS connections to their first byte."""
        self._unauthenticated_of = defaultdict[str, dict[HttpConnection, None]](dict)
        self._warned: set[str] = set()
        """Peers whose share is full, and "" if all places are taken: each was logged once."""
        self._outage = Outage(over=lambda: words.ACCEPTS_AGAIN)
        self.closed_for = Counter[str](dict.fromkeys(REASONS, 0))
        """Number of connections that the server has closed, by reason."""
        self._refusals = RefusalLog()
        self._places = Places[HttpConnection](MOST_HANDSHAKES, STALE_S, self._evict_stale)
        """Places of TLS connections from which no request has been let in: each takes much more memory than others."""

    def open(self) -> None:
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._accept)

    @property
    def connections(self) -> tuple[int, int]:
        """Number of authenticated and of unauthenticated connections."""
        return len(self._connections) - len(self._unauthenticated), len(self._unauthenticated)

    def _used_bytes(self) -> int:
        return self.connections[0] * (AGENT_BYTES if self.tls is None else TLS_AGENT_BYTES)

    async def close(self) -> None:
        """Accept no more connections; existing ones continue."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
        self._socket.close()
        openings = [connection.opening for connection in self._connections if connection.opening]
        for opening in openings:
            opening.cancel()  # ends only openings that have no transport yet
        await asyncio.gather(*(opening.task for opening in openings if opening.task), return_exceptions=True)

    def _accept(self) -> None:
        over_at = self._loop.time() + ACCEPT_TURN_S
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, address = self._socket.accept()
            except OSError as error:
                if error.errno not in _PASSING:
                    self._pause(error)
                return
            self._outage.end()
            self._receive(accepted, peer_of(str(address[0])))
            if self._loop.time() >= over_at:
                return

    def _pause(self, error: OSError) -> None:
        """Leave new connections in the system's queue for a while: the system has no room for more."""
        self._outage.begin(words.cannot_accept(error.strerror or str(error)))
        self._loop.remove_reader(self._socket)
        self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._socket.fileno() >= 0:
            self.open()

    def _receive(self, accepted: socket.socket, peer: str) -> None:
        if not self._make_room(peer):
            self.closed_for["connections"] += 1
            accepted.close()
            return
        connection = HttpConnection(self._http, peer, self._bounds, self._authenticated, self._gone)
        self._connections.add(connection)
        self._unauthenticated[connection] = self._unauthenticated_of[peer][connection] = None
        connection.opening = PendingConnection(
            accepted, peer, self._bounds.turns, _read if self.tls is None else _first_byte,
            partial(self._connect, accepted, connection), partial(self._gone, connection),
        )  # fmt: skip
        (self._bounds.arriving if self.tls is None else self._silent).start(connection)
        connection.opening.begin()

    def _make_room(self, peer: str) -> bool:
        """Make room for a connection of this peer, perhaps by evicting another one. Return False if there is none."""
        most, of_peer = self._limits.connections, self._unauthenticated_of.get(peer, {})
        share = max(1, most // 2)
        if len(of_peer) >= share:
            self._warn(peer, words.too_many_of_peer(len(of_peer), peer))
            self._evict(next(iter(of_peer)))
        elif len(self._connections) < most:
            if len(of_peer) <= 0.9 * share:
                self._warned.discard(peer)
            if len(self._connections) <= 0.9 * most:
                self._warned.discard("")
        elif self._unauthenticated:
            self._warn("", words.no_room_for_unauthenticated(most))
            self._evict(next(iter(self._unauthenticated)))
        else:
            self._warn("", words.no_room(most))
            return False
        return True

    def _warn(self, about: str, problem: str) -> None:
        if about not in self._warned:
            log.warning(problem)
        self._warned.add(about)

    def _evict_stale(self, connection: HttpConnection) -> None:
        if connection.waits_for_peer:
            self._note(connection, words.too_many_handshakes())
            self._evict(connection, "handshakes")

    def _evict(self, connection: HttpConnection, reason: str = "connections") -> None:
        self._close_for(reason, connection)
        self._gone(connection)

    def _refuse_held(self, connection: HttpConnection) -> None:
        """Close the oldest connection whose request is incomplete, or that does not read, to free memory."""
        self._note(connection, words.too_much_held())
        self.closed_for["held_memory"] += 1
        connection.refuse(_TOO_MUCH_HELD)

    def _request_is_late(self, connection: HttpConnection) -> None:
        """Close a connection whose request has not arrived in time, unless its data waits for the server."""
        if connection.waits_for_peer:
            self._close_for("slow_request", connection)
        else:
            self._bounds.arriving.start(connection)

    def _close_for(self, reason: str, connection: HttpConnection) -> None:
        self.closed_for[reason] += 1
        connection.close()

    def _note(self, connection: HttpConnection, problem: str) -> None:
        self._refusals.note(connection.peer, TooManyRequests(problem), self._loop.time())

    def _connect(self, accepted: socket.socket, connection: HttpConnection, received: bytes) -> None:
        """Open the connection. With TLS, it first waits for a place. `received`: what came first."""
        self._silent.stop(connection)
        connection.lacks_tls = self.tls is not None and received != HANDSHAKE
        if self.tls is None or connection.lacks_tls:
            connection.received = received if self.tls is None else b""
            self._open_plain(accepted, connection)
        else:
            self._bounds.arriving.start(connection)
            self._places.enter(connection.peer, connection, partial(self._shake_hands, accepted, connection, self.tls))

    def _open_plain(self, accepted: socket.socket, connection: HttpConnection) -> None:
        """Open a connection without TLS.

        `connect_accepted_socket` does it in a task, which costs a tenth of a node's join. Event loops other than
        asyncio's own have only that.
        """
        make = getattr(self._loop, "_make_socket_transport", None)
        if make is None:
            self._open(connection, partial(self._loop.connect_accepted_socket, lambda: connection, accepted))
            return
        try:
            connection.opened(make(accepted, connection))
        except OSError:
            accepted.close()
            self._gone(connection)

    def _shake_hands(self, accepted: socket.socket, connection: HttpConnection, tls: ssl.SSLContext) -> None:
        self._bounds.arriving.stop(connection)
        self._open(connection, partial(shake_hands, accepted, connection, tls, self._limits.handshake_s))

    def _open(self, connection: HttpConnection, connect: Connect) -> None:
        if connection.opening:
            connection.opening.run(self._opened(connection, connect))

    async def _opened(self, connection: HttpConnection, connect: Connect) -> None:
        try:
            await connect()
        except OSError as error:  # includes TimeoutError and every failure of TLS
            error.__traceback__ = None  # else what its frames hold would be garbage in a cycle
            self._gone(connection)
        except BaseException:
            self._gone(connection)
            raise

    def _authenticated(self, connection: HttpConnection) -> None:
        self._places.leave(connection.peer, connection)
        if self._unauthenticated.pop(connection, connection) is None:
            of_peer = self._unauthenticated_of[connection.peer]
            del of_peer[connection]
            if not of_peer:
                del self._unauthenticated_of[connection.peer]
                self._warned.discard(connection.peer)

    def _gone(self, connection: HttpConnection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            connection.opening = None  # else its task and what that holds would be garbage in a cycle
            self._silent.stop(connection)
            self._bounds.arriving.stop(connection)
            self._garbage.connection_closed()
            self._authenticated(connection)
            self._closed(connection)


def _read(accepted: socket.socket) -> bytes:
    return accepted.recv(READ_BYTES)


def _first_byte(accepted: socket.socket) -> bytes:
    """Return the first byte, and leave it for TLS to read."""
    return accepted.recv(1, socket.MSG_PEEK)
