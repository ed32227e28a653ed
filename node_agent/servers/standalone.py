"""`--standalone`: a server within the agent's own process, for a run of one node.

The agent calls it without HTTP, so that nothing is imported or bound before the workers run. The status page gets an
address when they have started. It is loaded on the first connection, because most runs need neither it nor its memory.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from importlib import import_module

from msgspec.structs import replace
from rdzv_protocol.messages import Ack, Reply, Request, Start

from node_agent import words
from node_agent.kernel.core.effects import Level
from node_agent.kernel.output.console import Console
from node_agent.kernel.tasks import spawn
from node_agent.kernel.threads import in_thread
from rdzv_server.server import RendezvousServer, bind
from rdzv_server.service.rendezvous import Rendezvous

ADDRESS = "127.0.0.1"
SERVER_LOG = logging.getLogger("rdzv_server")


class InProcessTransport:
    """Transport to a server in the same process. For the server it is a connection."""

    server_addr = ADDRESS
    is_scoped = False
    is_closed = False

    def __init__(self, rendezvous: Rendezvous, answered: Callable[[Reply | Ack], None]) -> None:
        self._rendezvous = rendezvous
        self._answered = answered

    def held(self, seconds: float) -> None:
        """Do nothing: the time of an answer is not measured."""

    async def connect(self) -> str:
        return ADDRESS

    async def exchange(self, request: Request) -> Reply | Ack:
        answer = await self._rendezvous.ask(replace(request, secret=""), self)  # the page refuses requests of agents
        assert isinstance(answer, Reply | Ack)
        self._answered(answer)
        return answer

    async def close(self) -> None:
        self._rendezvous.lost(self)


class _Warnings(logging.Handler):
    """Handler of the server's log: passes warnings on. The agent itself logs the run's events."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._warn = warn

    def emit(self, record: logging.LogRecord) -> None:
        if not hasattr(record, "about"):
            self._warn(words.hosting.server_warns(self.format(record)))


class Standalone:
    """The embedded server, as an async context manager. Its page, if it has one, has an address when workers run."""

    def __init__(self, console: Console, *, has_page: bool) -> None:
        """Embed a server. The console shows warnings of its log, unless the program has a log of its own."""
        self._console = console
        self._warnings = None if SERVER_LOG.hasHandlers() else _Warnings(console.log)
        self._has_page = has_page
        self._server = RendezvousServer()
        self._page: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Standalone":
        if self._warnings:
            SERVER_LOG.addHandler(self._warnings)
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._page:
            self._page.cancel()
            await asyncio.gather(self._page, return_exceptions=True)
        await self._server.__aexit__(None, None, None)
        if self._warnings:
            SERVER_LOG.removeHandler(self._warnings)

    def transport(self) -> "InProcessTransport":
        return InProcessTransport(self._server.rendezvous, self._answered)

    def _answered(self, answer: Reply | Ack) -> None:
        """Open the status page when the assignment has been returned."""
        if self._has_page and self._page is None and isinstance(answer, Reply) and isinstance(answer.directive, Start):
            self._page = spawn(self._open_page())

    async def _open_page(self) -> None:
        """Open the status page. The run does not need it, so a failure is only logged.

        It is imported when it is first asked for. If the package was upgraded or removed meanwhile, the import fails.
        """
        try:
            with bind(ADDRESS, 0) as listener:
                url = f"http://{ADDRESS}:{listener.getsockname()[1]}/"
                self._console.log(words.progress.status_page(url), Level.ROUTINE)
                await _connection_at(listener)
                await in_thread(partial(import_module, "rdzv_server.http.routes"))
                await self._server.listen(listener.dup(), read_only=True)  # every user of this machine can reach it
        except Exception as error:
            self._console.log(words.progress.no_status_page(f"{type(error).__name__}: {error}"))


async def _connection_at(listener: socket.socket) -> None:
    """Return when a client connects."""
    loop, came = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(listener, came.set)
    try:
        await came.wait()
    finally:
        loop.remove_reader(listener)
