"""Lets connections in: as many as there is room for, and with TLS only those that come through its handshake.

A connection is a stranger's until a request of it has been let in. When there is no room for a new one, the stranger
who has been there for longest has to go: whoever belongs here is let in by the first request, a round trip later.
"""

import asyncio
import errno
import gc
import logging
import socket
import ssl
from collections import defaultdict
from collections.abc import Callable

from rdzv_server.config import Limits
from rdzv_server.http.connection import Visit
from rdzv_server.http.limits import peer_of
from rdzv_server.service.timeouts import Timeouts

log = logging.getLogger("rdzv_server")

AT_ONCE = 64
"""Connections that are taken before anything else in the process gets its turn."""
GARBAGE = 10_000
"""Closed connections whose memory waits to be collected, 1.5 kB each: an asyncio transport holds on to itself."""
PAUSE_S = 1.0
"""How long the system is given when it cannot take another connection."""
HANDSHAKE = b"\x16"
"""The first byte of every TLS connection (RFC 8446, 5.1), and of no HTTP request."""
_PASSING = {errno.EAGAIN, errno.EINTR, errno.ECONNABORTED, errno.EPROTO}

MakeProtocol = Callable[[], asyncio.Protocol]


class Door:
    """The connections of one listener. `closed` is told of each that ends."""

    def __init__(
        self, listener: socket.socket, http: MakeProtocol, limits: Limits,
        closed: Callable[[Visit], None],
    ) -> None:  # fmt: skip
        self.tls: ssl.SSLContext | None = None
        """What new connections must speak; those who come without it are let in to be told so."""
        self._listener = listener
        self._http = http
        self._limits = limits
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._arriving = Timeouts(limits.request_s, Visit.close)
        self._unread = Timeouts(limits.unread_s, Visit.close)
        self._visits: set[Visit] = set()
        self._strangers: dict[Visit, None] = {}
        self._strangers_of = defaultdict[str, dict[Visit, None]](dict)
        self._arrivals: set[asyncio.Task[None]] = set()
        self._has_said_full = False
        self._closings = 0

    def open(self) -> None:
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept)

    async def close(self) -> None:
        """Take no more connections. Those that stand go on."""
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
        self._listener.close()
        for task in self._arrivals:
            task.cancel()
        await asyncio.gather(*self._arrivals, return_exceptions=True)

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
        if not self._has_room(peer):
            connection.close()
            return
        visit = Visit(self._http(), peer, self._arriving, self._unread, self._known, self._gone)
        self._visits.add(visit)
        self._strangers[visit] = self._strangers_of[peer][visit] = None
        visit.arrival = self._loop.create_task(self._begin(connection, visit))
        self._arrivals.add(visit.arrival)
        visit.arrival.add_done_callback(self._arrivals.discard)

    def _has_room(self, peer: str) -> bool:
        """Make some, if need be and if that can be done."""
        most, of_peer = self._limits.connections, self._strangers_of.get(peer, {})
        if len(of_peer) >= max(1, most // 2):
            self._say(f"{len(of_peer)} connections from {peer} that no request has been taken from; closing the oldest")
            self._send_away(next(iter(of_peer)))
        elif len(self._visits) < most:
            self._has_said_full = len(self._visits) > 0.9 * most and self._has_said_full
        elif self._strangers:
            self._say(f"{most} connections, as many as --max-connections allows; closing those that nobody knows")
            self._send_away(next(iter(self._strangers)))
        else:
            self._say(f"{most} connections, as many as --max-connections allows; closing new ones")
            return False
        return True

    def _say(self, trouble: str) -> None:
        if not self._has_said_full:
            log.warning("%s; those that have been let in go on", trouble)
        self._has_said_full = True

    def _send_away(self, visit: Visit) -> None:
        visit.close()
        self._gone(visit)

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
        except BaseException:
            self._gone(visit)
            raise

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
        if self._strangers.pop(visit, visit) is None:
            of_peer = self._strangers_of[visit.peer]
            del of_peer[visit]
            if not of_peer:
                del self._strangers_of[visit.peer]

    def _gone(self, visit: Visit) -> None:
        if visit in self._visits:
            self._visits.remove(visit)
            self._closings += 1
            if self._closings % GARBAGE == 0:
                gc.collect()
            self._known(visit)
            self._closed(visit)
