"""The part of a service manager such as systemd that holds a server's port, starts it and reads its messages."""

import asyncio
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.support.programs import PATIENCE_S, Program, Server

PASS_ON = 'export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@" 3<&0 </dev/null'
"""Shell script that becomes a program, and passes its standard input to it as a socket."""


class Manager:
    """A manager of one program at a time. An async context manager."""

    def __init__(self, folder: Path, *, watchdog_s: float = 0.0) -> None:
        self._watchdog_s = watchdog_s
        self._path = folder / "notify"
        self._heard: asyncio.Queue[str] = asyncio.Queue()
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._port = socket.create_server(("127.0.0.1", 0), backlog=4096)

    async def __aenter__(self) -> Self:
        self._notify.bind(str(self._path))
        asyncio.get_running_loop().add_reader(self._notify, self._hear)
        return self

    async def __aexit__(self, *error: object) -> None:
        asyncio.get_running_loop().remove_reader(self._notify)
        self._notify.close()
        self._port.close()

    @property
    def env(self) -> dict[str, str]:
        """Environment of a program that reports its state."""
        watchdog = {"WATCHDOG_USEC": f"{self._watchdog_s * 1e6:.0f}"} if self._watchdog_s else {}
        return {"NOTIFY_SOCKET": str(self._path), **watchdog}

    async def serve(self, *flags: str, env: Mapping[str, str] | None = None) -> Server:
        """Start a server at the port. Return when it reports that it is ready."""
        program = ("sh", "-c", PASS_ON, "sh", *Server.command(*flags))
        server = await Server.start(*program, env={**self.env, **(env or {})}, stdin=self._port.fileno())
        server.port = self._port.getsockname()[1]
        await self.hears("READY=1")
        return server

    async def hears(self, text: str) -> str:
        """Return the next message with this text, and forget those before it."""
        async with asyncio.timeout(PATIENCE_S):
            while text not in (message := await self._heard.get()):
                pass
            return message

    def messages(self) -> list[str]:
        """Return the messages that have arrived since the last call."""
        return [self._heard.get_nowait() for _ in range(self._heard.qsize())]

    async def misses(self, program: Program) -> None:
        """Return when the program has sent no sign of life for the time limit and has been killed."""
        while True:
            try:
                async with asyncio.timeout(self._watchdog_s):
                    await self._heard.get()
            except TimeoutError:
                break
        program.signal(signal.SIGKILL)
        await program.exit_code()

    def _hear(self) -> None:
        self._heard.put_nowait(self._notify.recv(4096).decode())
