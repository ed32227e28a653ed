"""The listener: no room for another connection, and how connections open."""

import asyncio
import errno
import os
import socket
import time
from contextlib import ExitStack
from unittest.mock import Mock

import pytest
from aiohttp import ClientSession

from rdzv_server.config import Limits
from rdzv_server.http import listener
from rdzv_server.http.connection import HttpConnection
from rdzv_server.http.listener import Listener
from rdzv_server.http.pending_connections import PendingConnection
from rdzv_server.http.request_handler import RequestHandler
from rdzv_server.server import RendezvousServer, bind
from rdzv_server.words import http as words
from tests.support.lost_packets import longest_pause_ms
from tests.support.process_info import until

PATIENCE_S = 20.0


class CrowdedSocket(socket.socket):
    """Listening socket of a process that may not open more files, for a number of tries."""

    refusals = 3

    def accept(self) -> tuple[socket.socket, object]:
        self.refusals -= 1
        if self.refusals >= 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


async def test_a_lack_of_descriptors_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "PAUSE_S", 0.01)
    caplog.set_level("INFO", "rdzv_server")
    bound = CrowdedSocket(fileno=bind("127.0.0.1", 0).detach())
    url = f"http://127.0.0.1:{bound.getsockname()[1]}/healthz"
    async with RendezvousServer() as server, ClientSession() as session, asyncio.timeout(PATIENCE_S):
        await server.listen(bound)
        assert (await session.get(url)).status == 200
    assert caplog.messages == [
        f"{words.cannot_accept(os.strerror(errno.EMFILE))}; retrying", words.ACCEPTS_AGAIN,
    ]  # fmt: skip


def test_lost_packets_to_a_peer_are_sent_again_at_least_every_second() -> None:
    with bind("127.0.0.1", 0) as bound, socket.create_connection(bound.getsockname()), bound.accept()[0] as accepted:
        assert longest_pause_ms(accepted) == 1000


async def test_a_peer_with_too_many_connections_is_logged_once_while_some_close_and_others_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    share = 20
    with bind("127.0.0.1", 0) as bound, ExitStack() as opened:
        owner = Listener(bound, Mock(), Limits(connections=2 * share), None, Mock())
        owner.open()
        peers = [opened.enter_context(socket.create_connection(bound.getsockname())) for _ in range(share)]
        await until(lambda: owner.connections == (0, share))
        for _ in range(3):
            peers.pop().close()
            await until(lambda: owner.connections == (0, share - 1))
            for _ in range(2):
                peers.append(opened.enter_context(socket.create_connection(bound.getsockname())))
            await until(lambda: owner.closed_for["connections"] and owner.connections == (0, share))
        await owner.close()
    assert caplog.messages == [words.too_many_of_peer(share, "127.0.0.1")]


@pytest.mark.parametrize(
    ("kind", "step"), [(RequestHandler, "data_received"), (Listener, "_receive")], ids=["parsed", "accepted"]
)
async def test_a_whole_request_that_waits_for_a_busy_server_is_not_late(
    kind: type, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the server cut the connection if its time was over just before its transport was made, or just before its
    request's handler ran.
    """
    limits, take_step = Limits(request_s=0.05), getattr(kind, step)

    def take_step_and_stand_still(*given: object) -> None:
        take_step(*given)
        time.sleep(2 * limits.request_s)

    monkeypatch.setattr(kind, step, take_step_and_stand_still)
    async with RendezvousServer() as server, asyncio.timeout(PATIENCE_S):
        bound = bind("127.0.0.1", 0)
        await server.listen(bound, limits=limits)
        with socket.create_connection(bound.getsockname()) as peer:
            peer.sendall(b"GET /healthz HTTP/1.1\r\nHost: server\r\n\r\n")
            peer.setblocking(False)
            answer = await asyncio.get_running_loop().sock_recv(peer, 100)
    assert answer.startswith(b"HTTP/1.1 200 ")


class OtherLoop:
    """The running event loop without what only asyncio's own has."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> object:
        if name == "_make_socket_transport":
            raise AttributeError(name)
        return getattr(self._loop, name)


def opened(owner: Listener, accepted: socket.socket) -> tuple[HttpConnection, Mock]:
    """Open a connection to its transport. Return it and its HTTP."""
    http = Mock(drops_rest=False)
    connection = HttpConnection(Mock(return_value=http), "peer", owner._bounds, Mock(), owner._gone)
    connection.opening = PendingConnection(accepted, "peer", owner._bounds.turns, Mock(), Mock(), Mock())
    owner._connections.add(connection)
    owner._connect(accepted, connection, b"GET / HTTP/1.1\r\n")
    return connection, http


@pytest.mark.parametrize("is_asyncios", [True, False], ids=["asyncio's event loop", "another event loop"])
async def test_a_connection_opens_and_ends_on_any_event_loop(is_asyncios: bool) -> None:
    closed = Mock()
    with bind("127.0.0.1", 0) as bound, socket.create_connection(bound.getsockname()) as peer:
        owner = Listener(bound, Mock(), Limits(), None, closed)
        if not is_asyncios:
            owner._loop = OtherLoop()
        connection, http = opened(owner, bound.accept()[0])
        await until(lambda: http.connection_made.called)
        peer.close()
        await until(lambda: closed.called)
        assert connection.is_closed
        await owner.close()


async def test_a_connection_closed_before_asyncio_has_announced_it_is_gone() -> None:
    closed = Mock()
    with bind("127.0.0.1", 0) as bound, socket.create_connection(bound.getsockname()) as peer:
        owner = Listener(bound, Mock(), Limits(), None, closed)
        connection, _ = opened(owner, bound.accept()[0])
        connection.close()
        await until(lambda: closed.called)
        assert not owner._connections
        peer.settimeout(PATIENCE_S)
        assert await asyncio.to_thread(_is_ended, peer)
        await owner.close()


def _is_ended(peer: socket.socket) -> bool:
    try:
        return not peer.recv(1)
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("waits_for_peer", [True, False])
async def test_a_request_that_is_late_is_cut_off_unless_it_waits_for_the_server(waits_for_peer: bool) -> None:
    """A slow server must not refuse a complete request, which would then be repeated."""
    with bind("127.0.0.1", 0) as bound:
        owner = Listener(bound, Mock(), Limits(), None, Mock())
        connection = Mock(waits_for_peer=waits_for_peer)
        owner._request_is_late(connection)
    assert connection.close.called is waits_for_peer
    assert (connection not in owner._bounds.arriving._due) is waits_for_peer, "it has as much time again"
    owner._bounds.arriving.stop(connection)
