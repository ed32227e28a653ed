"""A whole server, put together: what `rdzv-server` runs, and what `node-agent --standalone` embeds."""

import asyncio
import socket
from types import TracebackType
from typing import TYPE_CHECKING

from rdzv_server.core.registry import Registry
from rdzv_server.driver import Driver
from rdzv_server.rendezvous import Rendezvous
from rdzv_server.store import MemoryStore, Store
from rdzv_server.waiters import Waiters

if TYPE_CHECKING:
    from aiohttp import web

RETENTION_S = 3600.0
"""How long an ended run is remembered."""
SHUTDOWN_S = 0.5
"""How long a closing server lets answers under way go out."""


class RendezvousServer:
    """The core with its driver, and HTTP in front of it once `listen` is called.

    An embedding program may use `rendezvous` without HTTP: aiohttp is imported by `listen` alone.
    """

    def __init__(
        self, *, store: Store | None = None, retention_s: float = RETENTION_S, token: str | None = None
    ) -> None:
        waiters = Waiters()
        self._driver = Driver(Registry(retention_s), store or MemoryStore(), waiters)
        self._token = token
        self._runner: web.AppRunner | None = None
        self.rendezvous = Rendezvous(self._driver, waiters)

    async def __aenter__(self) -> "RendezvousServer":
        await self._driver.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.rendezvous.close()
        if self._runner:
            await self._runner.cleanup()
        await self._driver.stop()

    async def listen(self, listener: socket.socket) -> None:
        """Serve HTTP on a bound socket (see `bind`)."""
        from aiohttp import web

        from rdzv_server.app import make_app

        app = make_app(self.rendezvous, self._token)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=SHUTDOWN_S)
        await self._runner.setup()
        self._watch_connections(self._runner)
        await web.SockSite(self._runner, listener, backlog=4096).start()

    def _watch_connections(self, runner: "web.AppRunner") -> None:
        """Hear of every connection that closes, also between two requests, when no handler could be cancelled."""
        manager = runner.server
        assert manager is not None
        forget = manager.connection_lost

        def connection_lost(connection: "web.RequestHandler", error: BaseException | None = None) -> None:
            forget(connection, error)
            self.rendezvous.connections.lost(connection)

        manager.connection_lost = connection_lost  # type: ignore[method-assign, assignment]

    async def crashed(self) -> None:
        """Return never, or raise what the server cannot go on after."""
        await self._driver.crashed()


def bind(host: str | None, port: int) -> socket.socket:
    """A socket for `listen`. `host` None: every address, IPv6 and IPv4. Raises `OSError`.

    A peer that vanishes without a word is found by TCP keep-alive within 9 s, also when nothing is sent.
    """
    if host is None and socket.has_dualstack_ipv6():
        listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=4096)
    else:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host or "", port), family=family, backlog=4096)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 3)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 9_000)
    return listener


async def run_until(server: RendezvousServer, stop: asyncio.Event) -> None:
    """Serve until `stop` is set. Raises what the server cannot go on after."""
    stopped = asyncio.create_task(stop.wait())
    crashed = asyncio.create_task(server.crashed())
    try:
        await asyncio.wait({stopped, crashed}, return_when=asyncio.FIRST_COMPLETED)
        if crashed.done():
            crashed.result()
    finally:
        for task in (stopped, crashed):
            task.cancel()
        await asyncio.gather(stopped, crashed, return_exceptions=True)
