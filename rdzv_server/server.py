"""Server of one process: `rdzv-server` runs it, and `node-agent --standalone` embeds it."""

import errno
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from rdzv_protocol.constraints import SEGMENT_BYTES
from rdzv_protocol.timing import LONGEST_PAUSE_S, TCP_RTO_MAX_MS

from rdzv_server import words as sentences
from rdzv_server.core.nodes.exclusion import ExclusionPolicy
from rdzv_server.core.runs.kept_events import MOST_EVENTS
from rdzv_server.core.runs.registry import MOST_AGENTS, MOST_RUNS, RETENTION_S, Registry
from rdzv_server.service.driver import Driver
from rdzv_server.service.interface import Service
from rdzv_server.service.rendezvous import Rendezvous
from rdzv_server.storage.base import MemoryStore, Store
from rdzv_server.words import startup as words

if TYPE_CHECKING:
    import ssl
    from datetime import datetime

    from rdzv_server.auth.authorization import Access
    from rdzv_server.config import Limits
    from rdzv_server.http.agent_protocol import AgentServer
    from rdzv_server.http.listener import Listener
    from rdzv_server.http.metrics import MetricsView
    from rdzv_server.http.peer_limits import Gatekeeper
    from rdzv_server.http.routes import HttpApi

SHUTDOWN_S = 0.5
"""Seconds that a closing server waits for answers that are being sent."""


class HttpServer(ABC):
    """Service with HTTP in front of it. `listen` starts HTTP, and imports what HTTP needs."""

    def __init__(self, service: Service, heard: Callable[[], None] = lambda: None) -> None:
        """Prepare a server that does not serve yet.

        `heard` is called once agents can be heard: imports may outlast a lease.
        """
        self.service = service
        self._heard = heard
        self._gatekeeper: Gatekeeper | None = None
        self._listener: Listener | None = None
        self._api: HttpApi | None = None
        self._http: AgentServer | None = None
        self._metrics: MetricsView | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def stop(self) -> None: ...

    @abstractmethod
    async def crashed(self) -> None:
        """Wait forever, or raise the error after which the server cannot continue."""

    async def listen(
        self,
        bound: socket.socket,
        tls: "ssl.SSLContext | None" = None,
        access: "Access | None" = None,
        limits: "Limits | None" = None,
        *,
        read_only: bool = False,
        expiries: "Callable[[], Mapping[str, datetime]]" = dict,
    ) -> None:
        """Serve HTTP on a socket (see `bind`). `read_only`: refuse agents and operators' actions.

        `expiries`: returns when each certificate expires, by flag, for metrics.
        """
        from rdzv_server.http.aiohttp_version import check

        check()
        from rdzv_server.auth.authorization import Access
        from rdzv_server.config import Limits
        from rdzv_server.http.listener import Listener
        from rdzv_server.http.metrics import MetricsView
        from rdzv_server.http.peer_limits import Gatekeeper
        from rdzv_server.http.routes import HttpApi

        limits = limits or Limits()
        self._gatekeeper = Gatekeeper(access or Access(), limits)
        self._metrics = MetricsView(self.service, limits.listed_runs)
        self._api = HttpApi(self.service, self._gatekeeper, self._metrics, read_only=read_only)
        self._http = self._api.serve(limits.idle_s)
        # A connection may close between two requests, when there is no handler to cancel.
        self._listener = Listener(bound, self._http, limits, tls, self.service.lost)
        self._metrics.listener, self._metrics.expiries = self._listener, expiries
        self._listener.open()
        self._heard()

    def renew(self, access: "Access", tls: "ssl.SSLContext | None") -> None:
        """Replace the tokens for later requests, and the TLS context for new connections."""
        if self._gatekeeper and self._listener:
            self._gatekeeper.access, self._listener.tls = access, tls

    async def renew_for_store(self) -> None:
        """Read the files for the connection to the store again, if there are any. Raises as `EtcdClient.renew` does."""
        return

    async def close_http(self) -> None:
        if self._listener and self._api and self._http and self._metrics:
            self._api.close()
            self._metrics.close()
            await self._listener.close()
            await self._http.shutdown(SHUTDOWN_S)


class RendezvousServer(HttpServer):
    """Single server: the core with its driver, and HTTP in front of it once `listen` is called.

    An embedding program may use `rendezvous` without HTTP.
    """

    def __init__(
        self,
        *,
        store: Store | None = None,
        retention_s: float = RETENTION_S,
        max_runs: int = MOST_RUNS,
        max_agents: int = MOST_AGENTS,
        max_events: int = MOST_EVENTS,
        exclusion: ExclusionPolicy | None = None,
    ) -> None:
        registry = Registry(retention_s, max_runs, max_agents, max_events, exclusion=exclusion)
        self._driver = Driver(registry, store or MemoryStore())
        self.rendezvous = Rendezvous(self._driver)
        super().__init__(self.rendezvous, self._driver.heard)

    async def start(self) -> None:
        await self._driver.start()

    async def stop(self) -> None:
        self.rendezvous.close()
        await self.close_http()
        await self._driver.stop()

    async def crashed(self) -> None:
        await self._driver.crashed()


def import_http() -> None:
    """Import what `HttpServer.listen` needs, for a server that must later listen without delay."""
    from rdzv_server.http.aiohttp_version import check

    check()
    import rdzv_server.http.listener
    import rdzv_server.http.metrics
    import rdzv_server.http.peer_limits
    import rdzv_server.http.routes  # noqa: F401


def import_late() -> None:
    """Import what a running server may need later: its sentences, the summary of a run, and what answers operators.

    A server calls this once it listens: later it may have no file descriptor left, or another version may have been
    installed. Raises `OSError` or `ImportError`.
    """
    sentences.load()
    import rdzv_server.core.views.summary_view
    import rdzv_server.service.operator_requests  # noqa: F401


def bind(host: str | None, port: int) -> socket.socket:
    """Bind a socket for `listen`. If `host` is None: every address, IPv6 and IPv4. Raises `OSError`.

    TCP keep-alive detects within 9 s that a peer has vanished silently, even if nothing is sent. TCP sends lost packets
    again at least every second, if the kernel can do that. No client gets a packet that a path could be too narrow for.
    """
    if host is None and socket.has_dualstack_ipv6():
        listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=4096)
    else:
        name = host.encode() if host and host.isascii() else host  # with a str, Python loads a codec
        family = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host or "", port), family=family, backlog=4096)
    return _watching_peers(listener)


def adopt(descriptor: int) -> socket.socket:
    """Adopt a socket for `listen` that the parent process has bound and listens on. Raises `OSError`."""
    listener = socket.socket(fileno=descriptor)
    if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise OSError(errno.EINVAL, words.NOT_LISTENING)
    return _watching_peers(listener)


def _watching_peers(listener: socket.socket) -> socket.socket:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, 3), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3), (socket.TCP_USER_TIMEOUT, 9_000),
        (socket.TCP_MAXSEG, SEGMENT_BYTES),
    ):  # fmt: skip
        listener.setsockopt(socket.IPPROTO_TCP, option, value)
    with suppress(OSError):  # an older kernel
        listener.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, round(1000 * LONGEST_PAUSE_S))
    return listener
