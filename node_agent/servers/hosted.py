"""An rdzv-server on this node, so that a torchrun command line for several nodes works without a started server.

The server is a separate process in its own session, because the other nodes need it: losing this agent must not end the
run. It exits when it is idle (`rdzv-server --exit-when-idle`). The agent binds the port, so that only one of several
agents hosts, and can connect before the server is up. If a program already listens there, the agent takes it for a
server.
"""

import asyncio
import errno
import os
import socket
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from rdzv_protocol.credentials import Credentials
from rdzv_protocol.errors import ProtocolError, RunFailed, RunSucceeded
from rdzv_protocol.messages import Ack, Finish, Reply, Request

from node_agent import words
from node_agent.kernel.core.backoff import ServerLost, Unreachable
from node_agent.kernel.core.effects import Level
from node_agent.kernel.output.console import ERR, Console
from node_agent.kernel.processes.helper import Helper
from node_agent.kernel.processes.orphans_helper import MARK
from node_agent.kernel.processes.process import DEVNULL, ChildProcess, OutlivingProcess, to_handle
from node_agent.kernel.transport.http import HttpTransport

IDLE_S = 10
"""Seconds that a server stays without agents: the lease, after which all would be lost anyway."""
BACKLOG = 4096
PATIENCE_S = 1.0
"""Seconds after which an agent logs what it waits for."""
STARTS = 3
"""Failed starts, before any answer, after which the agent stops trying."""


class HostedServer:
    """Hosts the server at a port of this node whenever no program listens there and the run continues.

    `is_for_this_machine`: whether it listens only on `host`, a loopback address, instead of every address.
    """

    def __init__(
        self, host: str, port: int, credentials: Credentials, console: Console, *, is_for_this_machine: bool = False
    ) -> None:
        self._host, self._port = host, port
        self._is_for_this_machine = is_for_this_machine
        self._credentials = credentials
        self._console = console
        self._process: Helper | None = None
        """The server that this node hosts. Its log comes over the socket, and goes to the console."""
        self._gone = asyncio.Event()
        """Set when the server has exited or was released."""
        self._failures = 0
        self._has_answered = False
        self._run_has_ended = False

    def transport(self) -> "HostedTransport":
        """Return a transport to the server, on any node."""
        return HostedTransport(self, self._host, self._port, self._credentials)

    def ensure(self) -> None:
        """Host the server, unless a program listens at its port or the run is over.

        Raises `OSError` if the port is not available, and `ServerLost` if the server fails repeatedly.
        """
        if self._run_has_ended or self.is_here:
            return
        has_failed = self._process and self._process.exit_code and not self._has_answered
        self._failures = self._failures + 1 if has_failed else 0
        if self._failures == STARTS:
            raise ServerLost(words.hosting.hosting_fails(self._port))
        try:
            listener = _listen(self._host if self._is_for_this_machine else "", self._port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return
        with listener:
            self._process, self._has_answered = Helper(partial(self._start, listener), self._ended), False
        self._gone.clear()
        asyncio.get_running_loop().add_reader(self._process.socket, self._relay, self._process)
        message = words.hosting.hosting(self._port, self._process.pid, self._is_for_this_machine)
        self._console.log(message, Level.NOTICE)

    @property
    def is_here(self) -> bool:
        """Whether the server runs on this node, hosted by this agent."""
        return self._process is not None and self._process.exit_code is None

    def observe(self, answer: Reply | Ack | ProtocolError) -> None:
        """Take note of an answer of the server, on any node."""
        self._has_answered = True
        finish = isinstance(answer, Reply) and isinstance(answer.directive, Finish)
        if finish or isinstance(answer, RunSucceeded | RunFailed):
            self._run_has_ended = True

    async def wait_for_agents(self, timeout_s: float, signals: Iterable[str]) -> None:
        """After the end of the run, wait until the server has informed the other nodes and exited.

        When this agent exits, its container may end, and the server with it. Any of the signals ends the wait.
        """
        if self._process is None:
            return
        for signum in to_handle(signals):
            asyncio.get_running_loop().add_signal_handler(signum, self._release)
        if self._run_has_ended and not await self._is_gone(PATIENCE_S):
            self._console.log(words.hosting.WAITING_FOR_OTHER_NODES, Level.NOTICE)
            if not await self._is_gone(timeout_s):
                self._console.log(words.hosting.server_left_running(timeout_s))
        self._release()

    async def _is_gone(self, within_s: float) -> bool:
        """Return whether the server exits in time or was released."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._gone.wait()
        return self._gone.is_set()

    def _release(self) -> None:
        """Let the server continue by itself if it still runs."""
        if self._process and not self._gone.is_set():
            self._process.release()
            self._gone.set()

    def _ended(self, process: Helper) -> None:
        while self._relay(process):
            pass
        self._gone.set()

    def _relay(self, process: Helper) -> bool:
        """Pass the server's log on as it comes, in whole lines. Return whether there was any."""
        try:
            chunk = process.socket.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        if chunk:
            self._console.write(ERR, chunk)
        else:
            asyncio.get_running_loop().remove_reader(process.socket)
        return bool(chunk)

    def _command(self, listener: socket.socket) -> list[str]:
        flags = ["--listen-fd", str(listener.fileno()), "--exit-when-idle", str(IDLE_S)]
        flags += ["--log-format", "json"] if self._console.is_json else []
        if self._credentials.token_file:
            flags += ["--token-file", self._credentials.token_file]
        return [sys.executable, "-P", "-m", "rdzv_server", *flags]

    def _start(self, listener: socket.socket, log: int) -> ChildProcess:
        # without a mark, or a supervisor would end it as a worker's stray process
        environment = {MARK: "", **os.environ}
        return OutlivingProcess(
            self._command(listener), environment, DEVNULL, log, stdin=DEVNULL, pass_fds=[listener.fileno()]
        )


class HostedTransport(HttpTransport):
    """Transport to a server that this node hosts if no other node does."""

    def __init__(self, server: HostedServer, host: str, port: int, credentials: Credentials) -> None:
        super().__init__(host, port, credentials)
        self._server = server

    async def connect(self) -> str:
        try:
            self._server.ensure()
        except OSError as error:
            raise Unreachable("connect", words.hosting.port_unusable(error.strerror or str(error))) from None
        try:
            return await super().connect()
        except Unreachable as error:
            if error.stage == "connect" and self._server.is_here:
                raise Unreachable("host", error.detail, error.sooner) from None
            raise

    async def exchange(self, request: Request) -> Reply | Ack:
        try:
            answer = await super().exchange(request)
        except ProtocolError as refusal:
            self._server.observe(refusal)
            raise
        except Unreachable as error:
            if error.stage == "another program" and not self._server.is_here:
                raise Unreachable("port", error.detail, is_final=True) from None
            raise
        self._server.observe(answer)
        return answer


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket at this loopback address, or for an empty host at every address, IPv4 and IPv6. Raises
    `OSError`.
    """
    if host:
        address, family = ("::1", socket.AF_INET6) if host == "::1" else (host, socket.AF_INET)
        return socket.create_server((address, port), family=family, backlog=BACKLOG)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
    return socket.create_server(("", port), backlog=BACKLOG)
