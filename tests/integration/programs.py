"""The real programs under test: `rdzv-server` and `node-agent`, as processes whose output can be waited for."""

import asyncio
import json
import os
import re
import signal
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WORKER = str(HERE / "worker.py")
TORCH_WORKER = str(HERE / "torch_worker.py")
PATIENCE_S = 30.0
"""How long a test waits for what must happen. It never sleeps: this is only reached by a failure."""


class Program:
    """A started process. Its lines are collected as they come."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.pid = process.pid
        self.out: list[str] = []
        self.err: list[str] = []
        self._news = asyncio.Condition()
        self._readers = [
            asyncio.create_task(self._collect(process.stdout, self.out)),
            asyncio.create_task(self._collect(process.stderr, self.err)),
        ]

    @classmethod
    async def start(cls, *command: str, env: Mapping[str, str] | None = None, cwd: str | None = None) -> "Program":
        return cls(
            await asyncio.create_subprocess_exec(
                *command,
                env={**os.environ, **(env or {})},
                cwd=cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        )

    async def line(self, pattern: str) -> re.Match[str]:
        """The first line, written or yet to be written, on stderr or stdout that matches."""
        async with asyncio.timeout(PATIENCE_S), self._news:
            while True:
                for line in [*self.err, *self.out]:
                    if match := re.search(pattern, line):
                        return match
                await self._news.wait()

    async def exit_code(self, within_s: float = PATIENCE_S) -> int:
        """The exit code; every line has been collected by then."""
        async with asyncio.timeout(within_s):
            code = await self.process.wait()
        await asyncio.gather(*self._readers)
        return code

    def signal(self, signum: signal.Signals) -> None:
        self.process.send_signal(signum)

    async def end(self) -> None:
        """Kill it if it still runs."""
        if self.process.returncode is None:
            self.process.kill()
        await self.exit_code()

    async def _collect(self, stream: asyncio.StreamReader | None, lines: list[str]) -> None:
        assert stream
        async for line in stream:
            async with self._news:
                lines.append(line.decode(errors="replace").rstrip("\n"))
                self._news.notify_all()


class Server(Program):
    """An `rdzv-server` on loopback."""

    port: int

    @classmethod
    async def listen(cls, *flags: str, port: int = 0) -> "Server":
        server = await cls.start(*cls.command(*flags, port=port))
        assert isinstance(server, Server)
        server.port = int((await server.line(r"listening on https?://127\.0\.0\.1:(\d+)"))[1])
        return server

    @staticmethod
    def command(*flags: str, port: int = 0) -> tuple[str, ...]:
        return (sys.executable, "-m", "rdzv_server", "--host", "127.0.0.1", "--port", str(port), *flags)

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def get(self, path: str) -> str:
        return await asyncio.to_thread(_get, f"http://{self.endpoint}{path}")

    async def run(self) -> dict[str, Any]:
        """The only run of the server, as operators see it."""
        (run,) = json.loads(await self.get("/v1/status"))["runs"]
        return dict(run)


async def start_agent(
    *flags: str, env: Mapping[str, str] | None = None, cwd: str | None = None, script: str = WORKER
) -> Program:
    return await Program.start(sys.executable, "-m", "node_agent", *flags, script, env=env, cwd=cwd)


def _get(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())
