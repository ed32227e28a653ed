"""Test of the network between this node and another one that the server has chosen: `--check network`.

One agent listens for a moment at its reserved MASTER_PORT, the port that others connect to when the run starts. It
accepts one connection, which must begin with the test's nonce. The latency is the median time of a byte there and back.
Then each node sends a few megabytes to the other, and measures what it receives.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from hmac import compare_digest
from statistics import median
from typing import Any

from rdzv_protocol.queries import PAIR_TEST_BYTES, PAIR_TEST_PINGS, PairTest, PairTested

from node_agent.features.checks import words
from node_agent.kernel.threads import in_thread

MB = 1e6
SLACK = 1.25
"""Ratio of the test's time limit to the longest time that the rate limit allows. A later byte cannot meet that limit.
"""
MOST_LATENCY_S = 0.1
"""Longest round trip. In one cluster it is usually much shorter, and Linux sends a lost packet again after 0.2 s."""
CONNECTING_SHARE = 0.5
"""Part of the test's time in which the connection must be made."""
NONCE_S = 2.0
"""Seconds that a connection has to send the nonce."""
MOST_UNAUTHENTICATED = 8
"""Most connections that have not sent the nonce yet. If there are more, the oldest is closed."""
RETRY_S = 0.02
"""Seconds between two attempts to connect: the other node may listen a little later."""
_CHUNK = 1 << 18


class _Failed(Exception):
    """The test has failed: there is no connection, or it is too slow. The message says which."""


async def measure(query: PairTest, least_mb_per_s: float) -> PairTested:
    """Test the network as the server has requested. The answer says what is wrong, if anything."""
    try:
        async with asyncio.timeout(query.limit_s), _connection(query) as (connection, latency_s):
            if latency_s > MOST_LATENCY_S:
                raise _Failed(words.packets_lost(query.peer, latency_s))
            mb_per_s = await _exchange(connection, query, least_mb_per_s)
    except _Failed as error:
        return PairTested(problem=str(error))
    except TimeoutError:
        return PairTested(problem=words.broke_off(query.peer, query.limit_s))
    except OSError as error:
        return PairTested(problem=words.broke(query.peer, error.strerror or str(error)))
    return PairTested(mb_per_s=mb_per_s, latency_s=latency_s)


@asynccontextmanager
async def _connection(query: PairTest) -> AsyncIterator[tuple[socket.socket, float]]:
    """Yield the connection to the other node, and its latency if this node measures it."""
    where, within_s = f"{query.addr}:{query.port}", query.limit_s * CONNECTING_SHARE
    try:
        async with asyncio.timeout(within_s):
            connection = await (_accepted if query.listens else _connected)(query)
    except TimeoutError:
        too_late = words.no_connection if query.listens else words.no_answer
        raise _Failed(too_late(query.peer, where, within_s)) from None
    except OSError as error:
        failed = words.cannot_listen if query.listens else words.cannot_connect
        raise _Failed(failed(query.peer, where, error.strerror or str(error))) from None
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection, await (_echo if query.listens else _ping)(connection)


async def _exchange(connection: socket.socket, query: PairTest, least_mb_per_s: float) -> float:
    """Send and receive the test's bytes in turns. Return MB/s of the received bytes. Raises `_Failed`."""
    loop, zeros = asyncio.get_running_loop(), memoryview(bytes(_CHUNK))
    mb_per_s = await _receive(connection, query.peer, least_mb_per_s) if query.listens else 0.0
    for _ in range(PAIR_TEST_BYTES // _CHUNK):
        await loop.sock_sendall(connection, zeros)
    if query.listens:
        await _read(connection, 1)  # the other node has received everything
        return mb_per_s
    mb_per_s = await _receive(connection, query.peer, least_mb_per_s)
    await loop.sock_sendall(connection, b"\0")
    return mb_per_s


async def _receive(connection: socket.socket, peer: str, least_mb_per_s: float) -> float:
    loop, buffer, got = asyncio.get_running_loop(), bytearray(_CHUNK), 0
    began = loop.time()
    try:
        async with asyncio.timeout(SLACK * PAIR_TEST_BYTES / MB / least_mb_per_s):
            while got < PAIR_TEST_BYTES:
                number = await loop.sock_recv_into(connection, buffer)
                if not number:
                    raise ConnectionResetError(words.OTHER_ENDED)
                got += number
    except TimeoutError:
        pass
    mb_per_s = got / MB / max(loop.time() - began, 1e-6)
    if mb_per_s < least_mb_per_s:
        raise _Failed(words.too_little(peer, mb_per_s, least_mb_per_s))
    return mb_per_s


async def _connected(query: PairTest) -> socket.socket:
    """Return a connection to the listening node, after sending the nonce."""
    loop = asyncio.get_running_loop()
    family, kind, protocol, _, address = await _looked_up(query)
    while True:
        connection = socket.socket(family, kind, protocol)
        connection.setblocking(False)
        try:
            await loop.sock_connect(connection, address)
            await loop.sock_sendall(connection, query.nonce.encode())
            return connection
        except ConnectionRefusedError:
            connection.close()
            await asyncio.sleep(RETRY_S)
        except BaseException:
            connection.close()
            raise


async def _ping(connection: socket.socket) -> float:
    """Return the median time of a byte there and back."""
    loop, times = asyncio.get_running_loop(), []
    for _ in range(PAIR_TEST_PINGS):
        began = loop.time()
        await loop.sock_sendall(connection, b"\0")
        await _read(connection, 1)
        times.append(loop.time() - began)
    return median(times)


async def _echo(connection: socket.socket) -> float:
    for _ in range(PAIR_TEST_PINGS):
        await asyncio.get_running_loop().sock_sendall(connection, await _read(connection, 1))
    return 0.0


async def _accepted(query: PairTest) -> socket.socket:
    """Return the one connection that sends the nonce. Others are closed without an answer."""
    loop = asyncio.get_running_loop()
    unauthenticated: dict[asyncio.Task[bool], socket.socket] = {}
    taken: socket.socket | None = None
    with await _listener(query) as listener:
        accepting = loop.create_task(loop.sock_accept(listener))
        try:
            while taken is None:
                done, _ = await asyncio.wait({accepting, *unauthenticated}, return_when=asyncio.FIRST_COMPLETED)
                if accepting in done:
                    connection, _ = accepting.result()
                    accepting = loop.create_task(loop.sock_accept(listener))
                    unauthenticated[loop.create_task(_knows(connection, query.nonce.encode()))] = connection
                for task in [each for each in unauthenticated if each in done]:
                    connection = unauthenticated.pop(task)
                    if task.result():
                        taken = connection
                        break
                    connection.close()
                if len(unauthenticated) > MOST_UNAUTHENTICATED:
                    _drop(unauthenticated, next(iter(unauthenticated)))
            return taken
        finally:
            accepting.cancel()
            await asyncio.wait({accepting})  # it releases the listener, which is closed next
            for task in list(unauthenticated):
                _drop(unauthenticated, task)


def _drop(unauthenticated: dict[asyncio.Task[bool], socket.socket], task: asyncio.Task[bool]) -> None:
    """Close the connection once its reader has finished."""
    connection = unauthenticated.pop(task)
    task.add_done_callback(lambda _: connection.close())
    task.cancel()


async def _knows(connection: socket.socket, nonce: bytes) -> bool:
    """Return whether the connection begins with the nonce, within `NONCE_S` seconds."""
    connection.setblocking(False)
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(NONCE_S):
            return compare_digest(await _read(connection, len(nonce)), nonce)
    return False


async def _listener(query: PairTest) -> socket.socket:
    """Return a socket that listens at this node's own address, beside the one that reserves the port.

    If that address is not this machine's, because of a NAT, it listens at every address. The nonce identifies the right
    connection.
    """
    family, kind, protocol, _, address = await _looked_up(query)
    for each in (address, ("", query.port)):
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(each)
            listener.listen(MOST_UNAUTHENTICATED)
            return listener
        except OSError:
            listener.close()
            if each is not address:
                raise
    raise AssertionError


async def _looked_up(query: PairTest) -> tuple[Any, ...]:
    """Return the first address of the listening node, as `getaddrinfo` returns it."""
    found, *_ = await in_thread(partial(socket.getaddrinfo, query.addr, query.port, type=socket.SOCK_STREAM))
    return found


async def _read(connection: socket.socket, number: int) -> bytes:
    """Return the next `number` bytes of the connection. Raises `ConnectionResetError` if it ends before."""
    got = b""
    while len(got) < number:
        more = await asyncio.get_running_loop().sock_recv(connection, number - len(got))
        if not more:
            raise ConnectionResetError(words.OTHER_ENDED)
        got += more
    return got
