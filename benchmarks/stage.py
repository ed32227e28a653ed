"""Stage of one measurement: its processes, their folder, and an end that leaves nothing behind."""

import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from benchmarks.machine import adopt_orphans
from tests.support.process_info import children


@dataclass(frozen=True, slots=True)
class FirstLine:
    """First statement of a worker."""

    rank: int
    pid: int
    at_ns: int
    """Time of the statement, CLOCK_MONOTONIC in nanoseconds."""

    @property
    def at_s(self) -> float:
        return self.at_ns / 1e9


class Arrivals:
    """Datagram socket in `folder`. Its `path` is the argument of every worker."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, "arrivals")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)

    def close(self) -> None:
        self._socket.close()

    def gather(self, ranks: int, since_s: float, timeout_s: float, settle_s: float = 0.0) -> dict[int, FirstLine]:
        """Return the newest first line of each rank after `since_s`, once none has followed for `settle_s`.

        So a launcher that restarts its workers twice is measured to the workers that remain. Raises `TimeoutError`.
        """
        found: dict[int, FirstLine] = {}
        deadline_s = since_s + timeout_s
        while True:
            complete = len(found) == ranks
            numbers = self.receive(time.monotonic() + settle_s if complete else deadline_s)
            if numbers and (line := FirstLine(*numbers)).at_s > since_s:
                found[line.rank] = line
            elif not numbers and complete:
                return found
            elif not numbers:
                raise TimeoutError(f"{len(found)} of {ranks} workers came to their first line in {timeout_s:g} s")

    def receive(self, until_s: float) -> tuple[int, ...]:
        """Return the numbers that a worker has sent; empty if none comes in time."""
        self._socket.settimeout(max(until_s - time.monotonic(), 1e-6))
        try:
            return tuple(map(int, self._socket.recv(64).split()))
        except TimeoutError:
            return ()


def last(lines: dict[int, FirstLine]) -> float:
    """Return the time of the latest of these lines, CLOCK_MONOTONIC in seconds."""
    return max(line.at_s for line in lines.values())


FOLDER = os.path.dirname(os.path.abspath(__file__))
WORKER, TORCH_WORKER, NOTICING_WORKER = (
    os.path.join(FOLDER, name) for name in ("worker.py", "torch_worker.py", "noticing_worker.py")
)
START_TIMEOUT_S = 90.0
"""Longest start: torchrun's last call of 30 s, and an import of torch for each agent."""
LOG_TAIL = 2_000
AS_INSTALLED = {"PYTHONDONTWRITEBYTECODE": ""}
"""Variables of every program. It uses bytecode files, as installed programs do; otherwise compilation would count."""


class Broken(Exception):
    """Error: the measured event did not happen; with the end of what the processes wrote."""


class Program:
    """Started process and what it has written. `started_s` (CLOCK_MONOTONIC) is just before its start."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: str, stdout: int | None) -> None:
        self._log = log
        with open(log, "ab") as file:
            self.started_s = time.monotonic()
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=file if stdout is None else stdout,
                stderr=file, start_new_session=True,
            )  # fmt: skip
        self.pid = self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code; None while the program runs."""
        return self._process.poll()

    def wait(self) -> None:
        self._process.wait()

    def text(self) -> str:
        """Return the text that the program and its workers have written."""
        with open(self._log, encoding="utf-8", errors="replace") as file:
            return file.read()


class Stage:
    """Context manager. All processes that were started in it, and all their descendants, end with it."""

    def __init__(self, script: str = WORKER) -> None:
        self._script = script
        self.programs: dict[str, Program] = {}
        """Programs by name, which is a number if `start` gets none."""

    def __enter__(self) -> Self:
        self._others = children(os.getpid())
        adopt_orphans()
        self._folder = tempfile.TemporaryDirectory(prefix="benchmarks-", ignore_cleanup_errors=True)
        self.arrivals = Arrivals(self._folder.name)
        return self

    def __exit__(self, *error: object) -> None:
        end_children(besides=self._others)
        for program in self.programs.values():
            program.wait()
        self.arrivals.close()
        self._folder.cleanup()

    @property
    def folder(self) -> str:
        """Folder for files, which is deleted with the stage."""
        return self._folder.name

    def start(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, stdout: int | None = None,
        name: str = "",
    ) -> Program:  # fmt: skip
        """Start a program in a session of its own, so that Ctrl-C reaches only the benchmark."""
        name = name or str(len(self.programs))
        env = {**os.environ, **AS_INSTALLED, "TMPDIR": self.folder, **(environment or {})}
        program = self.programs[name] = Program(command, env, os.path.join(self.folder, f"{name}.log"), stdout)
        return program

    @property
    def worker(self) -> list[str]:
        """Script that the launchers run, with its argument."""
        return [self._script, self.arrivals.path]

    def first_lines(self, ranks: int, since_s: float) -> dict[int, FirstLine]:
        """Return the first line of each worker that is started. Raises `Broken`."""
        try:
            return self.arrivals.gather(ranks, since_s, START_TIMEOUT_S)
        except TimeoutError as error:
            raise Broken(f"{error}\n{self.log_tails()}") from None

    def new_lines(self, ranks: int, since_s: float, timeout_s: float, settle_s: float) -> dict[int, FirstLine]:
        """Return the first lines of a restart's workers: see `Arrivals.gather`. Raises `TimeoutError`."""
        return self.arrivals.gather(ranks, since_s, timeout_s, settle_s)

    def wait_for_port(self, port: int, host: str = "127.0.0.1") -> None:
        """Return once a program listens on the port. Raises `Broken`."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            with suppress(OSError):
                socket.create_connection((host, port), timeout=1).close()
                return
            time.sleep(0.01)
        raise Broken(f"nothing listens on port {port}\n{self.log_tails()}")

    def log_tails(self) -> str:
        """Return the end of what each program has written."""
        return "\n".join(f"--- {name}:\n{program.text()[-LOG_TAIL:]}" for name, program in self.programs.items())


PORTS = range(20_000, 32_768)
"""Ports below those that the kernel gives to clients. A client that connects too early to a port among those may get
that port itself, and is then connected to itself."""
_held: list[socket.socket] = []


def free_port() -> int:
    """Return a free port. While this process runs, only programs that set SO_REUSEADDR, as servers do, can use it."""
    while True:
        held = socket.socket()
        try:
            held.bind(("127.0.0.1", port := secrets.choice(PORTS)))
        except OSError:
            held.close()
            continue
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _held.append(held)
        return port


def end_children(besides: Collection[int]) -> None:
    """Kill the children, and the orphans that become children by that, until only those of `besides` are left."""
    while pids := children(os.getpid()).difference(besides):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
