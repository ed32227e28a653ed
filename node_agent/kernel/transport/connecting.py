"""Connections to a server by its name: first to the address that answered last, then to the name's addresses.

So an agent whose connection broke can reconnect without a name server. It looks the name up at the same time. If the
server has moved, the next connection uses the new address. An agent of several servers can reach one that was down when
the agent looked its name up.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from errno import EINVAL
from functools import partial
from typing import Any

from rdzv_protocol.constraints import MAX_MESSAGE_BYTES, SEGMENT_BYTES
from rdzv_protocol.timing import LONGEST_PAUSE_S, TCP_RTO_MAX_MS

from node_agent import words
from node_agent.kernel.core.backoff import Unreachable
from node_agent.kernel.transport import name_lookup
from node_agent.kernel.transport.name_lookup import Address
from node_agent.kernel.transport.own_files import OwnFiles

CONNECT_TIMEOUT_S = 5.0
REMEMBERED_TIMEOUT_S = 2.0
"""Seconds to wait for the address that answered last. If it is silent, the agent uses the name's addresses."""
HEAD_START_S = 0.25
"""Seconds after which the next address is tried beside a silent one (RFC 8305), and the name's addresses beside the one
that answered last."""
LOOK_UP_S = 0.5
"""Most seconds to wait for a name server while the server may still be where it answered last."""
NAME_SERVER_S = 1.8
"""Seconds after which a try fails whose look-up has no answer. The look-up continues, for the next try. It is less than
the time after which the agent logs that it waits for the server. So the agent names the name server instead."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Attempt = Callable[[], Coroutine[Any, Any, Streams]]

_SOCKET_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 3),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class Connector:
    """Opens connections to `host:port`, one after another."""

    def __init__(self, host: str, port: int, files: OwnFiles) -> None:
        self._host, self._port = host, port
        self._files = files
        self._at: Address | None = None
        """Address of the latest connection."""
        self._is_proven = False
        """Whether this server is certainly at that address: its name leads there, or it has answered."""

    async def open(self) -> Streams:
        """Open a new connection. Raises `Unreachable`."""
        before = name_lookup.remembered(self._host, self._port)
        streams = await (self._open_at_name() if before is None else self._open_at_remembered(before))
        self._at = _peer(streams)
        self._is_proven = self._at != before
        return streams

    def answered(self) -> None:
        """Record that this server has answered on the latest connection."""
        if self._at:
            name_lookup.remember(self._host, self._port, self._at)
        self._is_proven = True

    async def prove(self) -> None:
        """Raise `Unreachable` if the server has moved, and the latest connection leads to its old address."""
        if self._is_proven:
            return
        with suppress(TimeoutError):
            self._is_proven = self._at in await self._resolve_soon()
            if not self._is_proven:
                raise Unreachable("name", words.connection.moved(self._host))

    def tls_failure(self, error: Exception) -> Unreachable | None:
        """Return a TLS failure in TLS's own words, None if the error has another cause."""
        tls = self._files.credentials.tls
        why = tls and tls.explain(error, self._host)
        return Unreachable("TLS", why, is_final=True) if why else None

    async def _open_at_name(self) -> Streams:
        return await self._open_any(await self._resolve())

    async def _open_at_remembered(self, at: Address) -> Streams:
        name_lookup.start(self._host, self._port)
        return await _race([partial(self._open_one, at, REMEMBERED_TIMEOUT_S), partial(self._open_others, at)])

    async def _open_others(self, than: Address) -> Streams:
        found = await self._resolve_soon()
        return await self._open_any(address for address in found if address != than)

    async def _open_any(self, addresses: Iterable[Address]) -> Streams:
        attempts = [partial(self._open_one, at, CONNECT_TIMEOUT_S) for at in addresses]
        if not attempts:
            raise Unreachable("connect", words.connection.NO_ADDRESS)
        return await _race(attempts)

    async def _open_one(self, at: Address, timeout_s: float) -> Streams:
        where = at[1][0]
        try:
            async with asyncio.timeout(timeout_s):
                return await self._open_at(at)
        except TimeoutError:
            raise Unreachable("connect", words.connection.address_silent(where, timeout_s)) from None
        except OSError as error:
            why = self.tls_failure(error) or Unreachable("connect", f"{where}: {_words(error, where)}")
            raise why from None
        except ValueError as error:  # one of the agent's own files
            raise Unreachable("TLS", str(error)) from None

    async def _open_at(self, at: Address) -> Streams:
        tls = await self._files.tls_context()
        connection = await _connected(*at)
        return await asyncio.open_connection(
            sock=connection, limit=MAX_MESSAGE_BYTES, ssl=tls, server_hostname=self._host if tls else None
        )

    async def _resolve_soon(self) -> list[Address]:
        async with asyncio.timeout(LOOK_UP_S):
            return await self._resolve()

    async def _resolve(self) -> list[Address]:
        try:
            async with asyncio.timeout(NAME_SERVER_S):
                return await name_lookup.addresses(self._host, self._port)
        except TimeoutError:
            raise Unreachable("name", words.connection.name_server_silent(self._host, NAME_SERVER_S)) from None
        except (socket.gaierror, UnicodeError) as error:
            raise Unreachable("name", f"{self._host}: {name_lookup.in_words(error)}") from None


def give_up(streams: Streams) -> None:
    """Close a connection at once. With TLS, `close` would wait for the server's close_notify."""
    streams[1].transport.abort()


async def _race(attempts: Sequence[Attempt]) -> Streams:
    """Return the connection of the first attempt that succeeds. Each begins when the one before fails or its head start
    ends.

    Raises the first attempt's error if all attempts fail.
    """
    later = deque(attempts)
    begun: list[asyncio.Task[Streams]] = []
    try:
        while not any(map(_has_connected, begun)):
            if later:
                begun.append(asyncio.create_task(later.popleft()()))
            if not (pending := [each for each in begun if not each.done()]):
                break
            await asyncio.wait(pending, timeout=HEAD_START_S if later else None, return_when=asyncio.FIRST_COMPLETED)
        winner = next(filter(_has_connected, begun), begun[0])
    except asyncio.CancelledError:
        _abandon(begun)
        raise
    _abandon(each for each in begun if each is not winner)
    return winner.result()


def _has_connected(attempt: "asyncio.Task[Streams]") -> bool:
    return attempt.done() and not attempt.cancelled() and attempt.exception() is None


def _abandon(attempts: "Iterable[asyncio.Task[Streams]]") -> None:
    for attempt in attempts:
        attempt.cancel()
        attempt.add_done_callback(_give_up_if_open)


def _give_up_if_open(attempt: "asyncio.Task[Streams]") -> None:
    if _has_connected(attempt):
        give_up(attempt.result())


async def _connected(family: int, address: tuple[Any, ...]) -> socket.socket:
    """Connect to this address. The connection notices a vanished server host even while the server holds a poll."""
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        for level, option, value in _SOCKET_OPTIONS:
            connection.setsockopt(level, option, value)
        with suppress(OSError):  # an older kernel
            connection.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, round(1000 * LONGEST_PAUSE_S))
        await asyncio.get_running_loop().sock_connect(connection, address)
    except BaseException:
        connection.close()
        raise
    return connection


def _peer(streams: Streams) -> Address:
    """Return the address of the other side. Raises `Unreachable` and closes the connection if it has broken."""
    try:
        connection = streams[1].get_extra_info("socket")
        return connection.family, connection.getpeername()
    except (AttributeError, OSError):  # with TLS, a broken connection has no socket
        give_up(streams)
        raise Unreachable("HTTP", words.connection.BROKE, is_cut=True) from None


def _words(error: OSError, where: str) -> str:
    if error.errno == EINVAL and where.startswith("fe80:"):
        return words.connection.names_no_interface(where)
    return os.strerror(error.errno) if error.errno else str(error) or type(error).__name__
