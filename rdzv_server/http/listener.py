"""Listener of the server: lets in as many connections as there is room for, with TLS only after its handshake.

A connection is unauthenticated until a request of it has been let in. When there is no room for a new one, the oldest
of these is closed: a rightful one is let in by its first request, a round trip later.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections import defaultdict
from collections.abc import Callable

from rdzv_server.config import Limits
from rdzv_server.http.connection import HttpConnection
from rdzv_server.http.garbage import GarbageCollector
from rdzv_server.http.limits import peer_of
from rdzv_server.service.timeouts import Timeouts
from rdzv_server.storage.outage import Outage

log = logging.getLogger("rdzv_server")

AT_ONCE = 64
"""Most connections that are accepted before anything else in the process gets its turn."""
PAUSE_S = 1.0
"""Seconds without accepting, after the system could not take another connection."""
HANDSHAKE = b"\x16"
"""First byte of every TLS connection (RFC 8446, 5.1), and of no HTTP request."""
_PASSING = {errno.EAGAIN, errno.EINTR, errno.ECONNABORTED, errno.EPROTO}

MakeProtocol = Callable[[], asyncio.Protocol]


class Listener:
    """Listener of one socket, with its connections. `closed` is called with each that ends."""

    def __init__(
        self, bound: socket.socket, http: MakeProtocol, limits: Limits, tls: ssl.SSLContext | None,
        closed: Callable[[HttpConnection], None],
    ) -> None:  # fmt: skip
        self.tls = tls
        """TLS context of new connections. One that speaks no TLS is accepted all the same, so that it can be told."""
        self._socket = bound
        self._http = http
        self._limits = limits
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._arriving = Timeouts(limits.request_s, HttpConnection.close)
        self._unread = Timeouts(limits.unread_s, HttpConnection.close)
        self._connections: set[HttpConnection] = set()
        self._unauthenticated: dict[HttpConnection, None] = {}
        self._unauthenticated_of = defaultdict[str, dict[HttpConnection, None]](dict)
        self._has_warned = False
        self._outage = Outage(over="connections are taken again")
        self._garbage = GarbageCollector()

    def open(self) -> None:
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._accept)

    @property
    def connections(self) -> tuple[int, int]:
        """Number of authenticated and of unauthenticated connections."""
        return len(self._connections) - len(self._unauthenticated), len(self._unauthenticated)

    async def close(self) -> None:
        """Accept no more connections; present ones go on."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
        self._socket.close()
        openings = [connection.opening for connection in self._connections if connection.opening]
        for task in openings:
            task.cancel()  # which ends those alone that have no transport yet
        await asyncio.gather(*openings, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                accepted, address = self._socket.accept()
            except OSError as error:
                if error.errno not in _PASSING:
                    self._pause(error)
                return
            self._outage.end()
            self._receive(accepted, peer_of(str(address[0])))

    def _pause(self, error: OSError) -> None:
        """Leave new connections in the system's queue for a while: the system has no room for more."""
        self._outage.begin(f"cannot take connections ({error.strerror or error})")
        self._loop.remove_reader(self._socket)
        self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._socket.fileno() >= 0:
            self.open()

    def _receive(self, accepted: socket.socket, peer: str) -> None:
        if not self._has_room(peer):
            accepted.close()
            return
        connection = HttpConnection(
            self._http(), peer, self._arriving, self._unread, self._garbage, self._authenticated, self._gone
        )
        self._connections.add(connection)
        self._unauthenticated[connection] = self._unauthenticated_of[peer][connection] = None
        connection.opening = self._loop.create_task(self._open(accepted, connection))

    def _has_room(self, peer: str) -> bool:
        """Whether there is room for a connection of this peer, by evicting another if need be."""
        most, of_peer = self._limits.connections, self._unauthenticated_of.get(peer, {})
        if len(of_peer) >= max(1, most // 2):
            self._warn(
                f"{len(of_peer)} connections from {peer} that no request has been taken from; closing the oldest"
            )
            self._evict(next(iter(of_peer)))
        elif len(self._connections) < most:
            self._has_warned = len(self._connections) > 0.9 * most and self._has_warned
        elif self._unauthenticated:
            self._warn(f"{most} connections, as many as --max-connections allows; closing those that nobody knows")
            self._evict(next(iter(self._unauthenticated)))
        else:
            self._warn(f"{most} connections, as many as --max-connections allows; closing new ones")
            return False
        return True

    def _warn(self, problem: str) -> None:
        if not self._has_warned:
            log.warning("%s; those that have been let in go on", problem)
        self._has_warned = True

    def _evict(self, connection: HttpConnection) -> None:
        connection.close()
        self._gone(connection)

    async def _open(self, accepted: socket.socket, connection: HttpConnection) -> None:
        accepted.setblocking(False)
        try:
            is_tls = self.tls is not None and await self._first_byte(accepted) == HANDSHAKE
            connection.lacks_tls = self.tls is not None and not is_tls
            limit_s = self._limits.handshake_s if is_tls else None
            await self._loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=self.tls if is_tls else None,
                ssl_handshake_timeout=limit_s, ssl_shutdown_timeout=limit_s,
            )  # fmt: skip
        except OSError:  # among them TimeoutError and every failure of TLS
            self._gone(connection)
        except BaseException:
            self._gone(connection)
            raise

    async def _first_byte(self, accepted: socket.socket) -> bytes:
        """Return a connection's first byte. Closes it and raises `TimeoutError` if none comes in time."""
        readable = asyncio.Event()
        self._loop.add_reader(accepted, readable.set)
        try:
            async with asyncio.timeout(self._limits.handshake_s):
                await readable.wait()
            self._loop.remove_reader(accepted)
            return accepted.recv(1, socket.MSG_PEEK)
        except BaseException:
            self._loop.remove_reader(accepted)
            accepted.close()
            raise

    def _authenticated(self, connection: HttpConnection) -> None:
        if self._unauthenticated.pop(connection, connection) is None:
            of_peer = self._unauthenticated_of[connection.peer]
            del of_peer[connection]
            if not of_peer:
                del self._unauthenticated_of[connection.peer]

    def _gone(self, connection: HttpConnection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self._garbage.connection_closed()
            self._authenticated(connection)
            self._closed(connection)
