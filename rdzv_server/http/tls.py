"""TLS of the listener's connections: handshakes take turns, only a few are in progress, and buffers are small.

A handshake costs a stranger nothing and the server a millisecond; asyncio allocates 256 KiB for each TLS connection.
"""

import asyncio
import socket
import ssl
from asyncio import sslproto
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from typing import Generic, TypeVar
from weakref import ref

from rdzv_server.http.connection import READ_BYTES, HttpConnection, free
from rdzv_server.service.fair_scheduler import scheduler

EVICTION_INTERVAL_S, MOST_EVICTED = 0.02, 8
"""Least seconds between two searches for stale holders, and most holders evicted at once."""

Holder = TypeVar("Holder", bound=Hashable)


class TlsProtocol(sslproto.SSLProtocol):
    """TLS of one connection, whose handshake continues when its peer has its turn."""

    max_size = READ_BYTES
    _state: sslproto.SSLProtocolState
    _transport: asyncio.Transport | None
    _app_protocol: HttpConnection

    def buffer_updated(self, nbytes: int) -> None:
        if self._state is not sslproto.SSLProtocolState.DO_HANDSHAKE:
            super().buffer_updated(nbytes)
            return
        assert self._transport
        self._transport.pause_reading()
        scheduler().ask(self._app_protocol.peer, partial(_shake_hands, ref(self), nbytes), is_unauthenticated=True)

    def connection_lost(self, exc: BaseException | None) -> None:
        transport = self._transport
        super().connection_lost(exc)
        if transport:
            free(transport)

    def continue_handshake(self, nbytes: int) -> None:
        """Continue the handshake with the `nbytes` bytes that have been received."""
        if self._transport is not None:
            self._transport.resume_reading()
            super().buffer_updated(nbytes)


def _shake_hands(protocol: "ref[TlsProtocol]", nbytes: int) -> None:
    """Continue a handshake, unless its connection has closed: a closed one does not keep memory until its turn."""
    if found := protocol():
        found.continue_handshake(nbytes)


async def shake_hands(
    accepted: socket.socket, connection: HttpConnection, context: ssl.SSLContext, limit_s: float
) -> None:
    """Connect the connection by TLS. Raises `OSError` if the peer fails, or takes longer than `limit_s` seconds."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    protocol = TlsProtocol(
        loop,
        connection,
        context,
        done,
        server_side=True,
        ssl_handshake_timeout=limit_s,  # type: ignore[arg-type]  # typeshed: int
        ssl_shutdown_timeout=limit_s,
    )
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, accepted)
    try:
        await done
    except BaseException:
        transport.abort()
        raise


class Places(Generic[Holder]):
    """Places for a number of holders, at most half of them for one peer. Waiting peers take turns.

    While others wait, a holder is evicted after `stale_s` seconds.
    """

    def __init__(self, most: int, stale_s: float, evict: Callable[[Holder], None]) -> None:
        self._most, self._stale_s, self._evict = most, stale_s, evict
        self._holders: OrderedDict[Holder, tuple[str, float]] = OrderedDict()
        """Peer of each holder, and the time since which the holder has its place; the oldest is first."""
        self._of_peer = Counter[str]()
        self._waiting: OrderedDict[str, OrderedDict[Holder, Callable[[], None]]] = OrderedDict()
        """Waiting holders by peer, and the function to call when each gets its place."""
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, peer: str, holder: Holder, given: Callable[[], None]) -> None:
        """Give the holder a place, as soon as there is one for this peer, and call `given`."""
        if peer not in self._waiting and self._has_room(peer):
            self._give(peer, holder, given)
            return
        self._waiting.setdefault(peer, OrderedDict())[holder] = given
        self._expect_stale()

    def leave(self, peer: str, holder: Holder) -> None:
        """Take the holder's place back if it has one; if it waits for one, it stops waiting."""
        if holder in self._holders:
            del self._holders[holder]
            self._of_peer[peer] -= 1
            if not self._of_peer[peer]:
                del self._of_peer[peer]
            self._give_free_places()
        elif queue := self._waiting.get(peer):
            queue.pop(holder, None)
            if not queue:
                del self._waiting[peer]

    def _has_room(self, peer: str) -> bool:
        return len(self._holders) < self._most and self._of_peer[peer] < self._most // 2

    def _give(self, peer: str, holder: Holder, given: Callable[[], None]) -> None:
        self._holders[holder] = peer, asyncio.get_running_loop().time()
        self._of_peer[peer] += 1
        given()

    def _give_free_places(self) -> None:
        """Give free places to waiting peers, in turn."""
        while len(self._holders) < self._most and (peer := next(filter(self._has_room, self._waiting), None)):
            self._next_of(peer)

    def _next_of(self, peer: str) -> None:
        queue = self._waiting.pop(peer)
        holder, given = queue.popitem(last=False)
        if queue:
            self._waiting[peer] = queue
        self._give(peer, holder, given)

    def _expect_stale(self) -> None:
        if self._timer is None and self._holders:
            loop = asyncio.get_running_loop()
            _, since = next(iter(self._holders.values()))
            self._timer = loop.call_at(max(since + self._stale_s, loop.time() + EVICTION_INTERVAL_S), self._evict_stale)

    def _evict_stale(self) -> None:
        """Evict the stale holders that others wait for."""
        self._timer = None
        left, stale_at = MOST_EVICTED, asyncio.get_running_loop().time() - self._stale_s
        for holder, (peer, since) in list(self._holders.items()):
            if not self._waiting or not left or since > stale_at:
                break
            if peer in self._waiting or len(self._holders) >= self._most:
                self._evict(holder)
                left -= 1
        if self._waiting:
            self._expect_stale()
