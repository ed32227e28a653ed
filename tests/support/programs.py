"""The real programs under test: `rdzv-server` and `node-agent`, as processes whose output can be waited for."""

import asyncio
import io
import json
import os
import re
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Self

from rdzv_protocol.exit_codes import ExitCode

from node_agent.kernel.leave_signals import ONE_REQUEST_S
from tests.support import forked
from tests.support.process_info import tree

WORKERS = Path(__file__).with_name("workers")
WORKER, TORCH_WORKER = str(WORKERS / "worker.py"), str(WORKERS / "torch_worker.py")
STRAGGLING_WORKER = str(WORKERS / "straggling_worker.py")
STORE_WORKER, PRYING_WORKER = str(WORKERS / "store_worker.py"), str(WORKERS / "prying_worker.py")
PATIENCE_S = 30.0
"""Seconds that a test waits for an event. Only a failing test waits that long."""
PACE_S = 0.03
"""Seconds between two requests for one path: each takes both sides some milliseconds of processor time."""

AGENT = ("-m", "node_agent")
"""Arguments with which the interpreter becomes an agent."""
OWN_TIME = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?=node-agent: )")

_started: list["Program"] = []
"""Programs that the innermost `ended_programs` must end."""


class Program:
    """A started process. It collects its lines as they come."""

    def __init__(self, process: asyncio.subprocess.Process | forked.ForkedProcess) -> None:
        self.process = process
        self.pid = process.pid
        self.out: list[str] = []
        self.err: list[str] = []
        self._changed = asyncio.Condition()
        self._open_streams = 2
        self._readers = [
            asyncio.create_task(self._collect(process.stdout, self.out)),
            asyncio.create_task(self._collect(process.stderr, self.err)),
        ]

    @classmethod
    async def start(
        cls, *command: str, env: Mapping[str, str] | None = None, cwd: str | Path | None = None,
        stdin: int = asyncio.subprocess.DEVNULL,
    ) -> Self:  # fmt: skip
        """Start a command in a separate session, with `env` in addition to the test's own environment."""
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            stdin=stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        return cls._of(process)

    @classmethod
    async def torchrun(
        cls, *words: str, env: Mapping[str, str] | None = None, cwd: str | Path | None = None, legacy: bool = False
    ) -> Self:
        """Start stock torchrun with these words, or `torch.distributed.launch`. It works like `start`, but faster."""
        return await cls.python(forked.TORCHRUN, forked.TORCHRUN[legacy], *words, env=env, cwd=cwd)

    @classmethod
    async def python(
        cls, modules: tuple[str, ...], module: str, *words: str, env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
    ) -> Self:  # fmt: skip
        """Start `python -m module words`, if possible as a fork of a process that has imported `modules`."""
        if forked.can_fork(words, env or {}):
            return cls._of(await forked.fork(modules, module, words, {**os.environ, **(env or {})}, cwd))
        return await cls.start(sys.executable, "-m", module, *words, env=env, cwd=cwd)

    @classmethod
    def _of(cls, process: asyncio.subprocess.Process | forked.ForkedProcess) -> Self:
        program = cls(process)
        _started.append(program)
        return program

    @property
    def said(self) -> list[str]:
        """Return the lines that the program has written to stderr, without the time in its own lines."""
        return [OWN_TIME.sub("", line) for line in self.err]

    @property
    def is_running(self) -> bool:
        return self.process.returncode is None

    async def line(self, pattern: str, within_s: float = PATIENCE_S, nth: int = 1) -> re.Match[str]:
        """Return the first line (or the `nth`) on stderr or stdout, past or future, that matches.

        Raises `AssertionError` if both streams end without it.
        """
        async with asyncio.timeout(within_s), self._changed:
            while True:
                found = filter(None, (re.search(pattern, line) for line in [*self.err, *self.out]))
                if match := next(islice(found, nth - 1, None), None):
                    return match
                assert self._open_streams, f"nothing it has written matches {pattern!r}; see its output below"
                await self._changed.wait()

    async def exit_code(self, within_s: float = PATIENCE_S) -> int:
        """Return the exit code, once every line has been collected. If it does not end in time, print its processes."""
        try:
            async with asyncio.timeout(within_s):
                code = await self.process.wait()
                await asyncio.gather(*self._readers)
                return code
        except TimeoutError:
            print(f"{type(self).__name__} {self.pid} has not ended:", *tree(self.pid), sep="\n", file=sys.stderr)
            raise

    async def signal_again(self, signum: int) -> None:
        """Send an agent the signal as another request to leave."""
        await asyncio.sleep(ONE_REQUEST_S)
        self.signal(signum)

    def signal(self, signum: signal.Signals) -> None:
        self.process.send_signal(signum)

    async def signal_until_ended(self, signum: int) -> None:
        """Send the signal again and again, also in the last moments of the program."""
        with suppress(ProcessLookupError):
            while self.is_running:
                os.kill(self.pid, signum)  # `Process.send_signal` may reap the program, and its exit code would be lost
                await asyncio.sleep(0.001)

    async def kill(self) -> None:
        """Send SIGKILL to a running program, and return when it has ended."""
        self.signal(signal.SIGKILL)
        assert await self.exit_code() == -signal.SIGKILL

    async def end(self) -> None:
        """Kill the program if it still runs."""
        if self.is_running:
            self.process.kill()
        await self.exit_code()

    def show(self) -> None:
        """Print the program's output. pytest shows it if the test fails."""
        for stream, lines in (("out", self.out), ("err", self.err)):
            print(*(f"{type(self).__name__} {self.pid} {stream}: {line}" for line in lines), sep="\n", file=sys.stderr)

    async def _collect(self, stream: asyncio.StreamReader | None, lines: list[str]) -> None:
        assert stream
        async for line in stream:
            async with self._changed:
                lines.append(line.decode(errors="replace").rstrip("\n"))
                self._changed.notify_all()
        async with self._changed:
            self._open_streams -= 1
            self._changed.notify_all()


@asynccontextmanager
async def ended_programs() -> AsyncIterator[None]:
    """End every program that is started in this block, and show its output."""
    global _started
    outer, _started = _started, []
    try:
        yield
    finally:
        programs, _started = _started, outer
        ends = await asyncio.gather(*(program.end() for program in programs), return_exceptions=True)
        for program in programs:
            program.show()
        if failed := [each for each in ends if isinstance(each, Exception)]:
            raise ExceptionGroup("programs that have not ended, or whose output somebody keeps open", failed)


class Server(Program):
    """An `rdzv-server` on loopback."""

    port: int

    def __init__(self, process: asyncio.subprocess.Process | forked.ForkedProcess) -> None:
        super().__init__(process)
        self._next_at: dict[str, float] = {}
        """Earliest start of the next request, by path."""

    @classmethod
    async def listen(
        cls, *flags: str, port: int = 0, env: Mapping[str, str] | None = None, is_forked: bool = True
    ) -> Self:
        """Start a server.

        `is_forked`: False for a process that has its own command line and memory, and imports what the server imports.
        """
        if is_forked:
            server = await cls.python(forked.SERVER, *forked.SERVER[:1], *cls.words(*flags, port=port), env=env)
        else:
            server = await cls.start(*cls.command(*flags, port=port), env=env)
        server.port = int((await server.line(r"listening on https?://127\.0\.0\.1:(\d+)"))[1])
        return server

    @staticmethod
    def words(*flags: str, port: int = 0) -> tuple[str, ...]:
        return ("--host", "127.0.0.1", "--port", str(port), *flags)

    @classmethod
    def command(cls, *flags: str, port: int = 0) -> tuple[str, ...]:
        return (sys.executable, "-m", "rdzv_server", *cls.words(*flags, port=port))

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def get(self, path: str) -> str:
        """Return the server's answer for a path. Requests for one path start at least `PACE_S` apart, even from
        several tasks.
        """
        now = asyncio.get_running_loop().time()
        start = max(now, self._next_at.get(path, now))
        self._next_at[path] = start + PACE_S
        await asyncio.sleep(start - now)
        return await get(f"http://{self.endpoint}{path}")

    async def status(self) -> dict[str, Any]:
        """Return the server and its runs, as operators see them."""
        return dict(json.loads(await self.get("/v1/status")))

    async def run(self) -> dict[str, Any]:
        """Return the only run of the server, as operators see it."""
        (run,) = (await self.status())["runs"]
        return dict(run)

    async def parks(self, polls: int) -> None:
        """Wait until exactly this number of polls is parked. A closed connection then shows that its agent is gone."""
        async with asyncio.timeout(PATIENCE_S):
            while f"\nrdzv_long_polls {polls}.0\n" not in await self.get("/metrics"):
                pass  # `get` pauses between two requests


async def start_agent(
    *flags: str,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    script: str | Path = WORKER,
    python: Sequence[str] = AGENT,
    is_forked: bool = True,
) -> Program:
    """Start an agent. `python`: arguments with which the interpreter becomes one. `is_forked`: see `Server.listen`."""
    if is_forked and python == AGENT:
        return await Program.python(forked.AGENT, forked.AGENT[0], *flags, str(script), env=env, cwd=cwd)
    return await Program.start(sys.executable, *python, *flags, str(script), env=env, cwd=cwd)


async def refuses(program: Program, *says: str, code: ExitCode = ExitCode.BAD_INPUT) -> None:
    """Assert that the program ends with this exit code, and that its last line says what to do."""
    assert await program.exit_code() == code
    last = program.err[-1]
    for text in says:
        assert text in last, program.err
    assert not any("Traceback" in line for line in program.err)
    assert "error: " in last


async def get(url: str) -> str:
    """Return the answer of a server on loopback."""
    return await asyncio.to_thread(_get, url)


def _get(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as refusal:
        with refusal:  # the test may keep the answer, but not its connection
            told = io.BytesIO(refusal.read())
        raise urllib.error.HTTPError(url, refusal.code, refusal.reason, refusal.headers, told) from None
