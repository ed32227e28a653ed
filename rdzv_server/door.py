"""Lets connections in: as many as there is room for, and with TLS only those that come through its handshake."""

import asyncio
import errno
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Hashable

from rdzv_server.limits import Limits, peer_of
from rdzv_server.visits import Visit

log = logging.getLogger("rdzv_server")

AT_ONCE = 256
"""Connections that are taken before anything else in the process gets its turn."""
PAUSE_S = 1.0
"""How long the system is given when it cannot take another connection."""
HANDSHAKE = b"\x16"
"""The first byte of every TLS connection (RFC 8446, 5.1), and of no HTTP request."""
_PASSING = {errno.EAGAIN, errno.EINTR, errno.ECONNABORTED, errno.EPROTO}

MakeProtocol = Callable[[], asyncio.Protocol]


class Door:
    """The connections of one listener. `closed` is told of the HTTP protocol of each that ends."""

    def __init__(
        self, listener: socket.socket, http: MakeProtocol, limits: Limits,
        closed: Callable[[Hashable], None],
    ) -> None:  # fmt: skip
        self.tls: ssl.SSLContext | None = None
        """What new connections must speak; those who come without it are let in to be told so."""
        self._listener = listener
        self._http = http
        self._limits = limits
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._visits: set[Visit] = set()
        self._strangers = Counter[str]()
        self._arrivals: set[asyncio.Task[None]] = set()
        self._has_said_full = False

    def open(self) -> None:
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept)

    async def close(self) -> None:
        """Take no more connections. Those that stand go on."""
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for task in self._arrivals:
            task.cancel()
        await asyncio.gather(*self._arrivals, return_exceptions=True)

    def __len__(self) -> int:
        return len(self._visits)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, address = self._listener.accept()
            except OSError as error:
                if error.errno not in _PASSING:
                    self._rest(error)
                return
            self._receive(connection, peer_of(str(address[0])))

    def _rest(self, error: OSError) -> None:
        """The system has no room: whoever knocks waits in its queue."""
        log.error("cannot take connections (%s); trying again", error.strerror or error)
        self._loop.remove_reader(self._listener)
        self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._listener.fileno() >= 0:
            self.open()

    def _receive(self, connection: socket.socket, peer: str) -> None:
        if reason := self._is_full(peer):
            connection.close()
            if not self._has_said_full:
                log.warning("%s; closing new ones, and those that stand go on", reason)
            self._has_said_full = True
            return
        visit = Visit(self._http(), peer, self._limits, self._known, self._gone)
        self._visits.add(visit)
        self._strangers[peer] += 1
        task = self._loop.create_task(self._begin(connection, visit))
        self._arrivals.add(task)
        task.add_done_callback(self._arrivals.discard)

    def _is_full(self, peer: str) -> str | None:
        most = self._limits.connections
        if len(self._visits) >= most:
            return f"{most} connections, as many as --max-connections allows"
        if self._strangers[peer] >= max(1, most // 2):
            return f"{self._strangers[peer]} connections from {peer} that no request has been taken from"
        if len(self._visits) < 0.9 * most:
            self._has_said_full = False
        return None

    async def _begin(self, connection: socket.socket, visit: Visit) -> None:
        connection.setblocking(False)
        try:
            if self.tls and await self._first_byte(connection) == HANDSHAKE:
                await self._shake_hands(connection, visit, self.tls)
            else:
                visit.lacks_tls = self.tls is not None
                await self._loop.connect_accepted_socket(lambda: visit, connection)
        except OSError:  # among them TimeoutError and every failure of TLS
            self._gone(visit)

    async def _first_byte(self, connection: socket.socket) -> bytes:
        """Raises `TimeoutError` if there is none in time, having closed the connection."""
        readable = asyncio.Event()
        self._loop.add_reader(connection, readable.set)
        try:
            async with asyncio.timeout(self._limits.handshake_s):
                await readable.wait()
            self._loop.remove_reader(connection)
            return connection.recv(1, socket.MSG_PEEK)
        except BaseException:
            self._loop.remove_reader(connection)
            connection.close()
            raise

    async def _shake_hands(self, connection: socket.socket, visit: Visit, tls: ssl.SSLContext) -> None:
        await self._loop.connect_accepted_socket(
            lambda: visit,
            connection,
            ssl=tls,
            ssl_handshake_timeout=self._limits.handshake_s,
            ssl_shutdown_timeout=self._limits.handshake_s,
        )

    def _known(self, visit: Visit) -> None:
        self._strangers[visit.peer] -= 1
        if not self._strangers[visit.peer]:
            del self._strangers[visit.peer]

    def _gone(self, visit: Visit) -> None:
        if visit not in self._visits:
            return
        self._visits.remove(visit)
        if visit.badge is None:
            self._known(visit)
        self._closed(visit.http)
