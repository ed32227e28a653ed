"""Where one scenario takes place: its processes, what its workers say, and an end that leaves nothing behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from benchmarks import machine
from benchmarks.stage import end_all_children
from tests.parity.observation import Broken

WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "worker.py")
START_S = 60.0
"""How long a set-up may take: several imports of torch on a small machine."""
LOOK_S = 0.05
LOG_TAIL = 1_500
QUIET = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
"""The workers of every node share this machine."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker said. `at_s` is CLOCK_MONOTONIC: for `started`, the script's first statement."""

    event: str
    node: str
    pid: int
    at_s: float
    rank: int
    group_rank: int
    world_size: int
    restart_count: int
    master_port: int


class Program:
    """A started process and what it has written."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], log: str) -> None:
        self.name = name
        self._log = log
        with open(log, "wb") as file:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def signal(self, signum: signal.Signals) -> None:
        self._process.send_signal(signum)

    def text(self) -> str:
        """All that it has written, and its workers with it."""
        with open(self._log, encoding="utf-8", errors="replace") as file:
            return file.read()

    def reap(self) -> None:
        self._process.wait()


class Stage:
    """A context manager; every process that was started in it, and all below that, end with it."""

    def __enter__(self) -> "Stage":
        machine.adopt_orphans()
        self._folder = tempfile.TemporaryDirectory(prefix="torchrun-defects-", ignore_cleanup_errors=True)
        self.path = self._folder.name
        self._desk = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._desk.bind(os.path.join(self.path, "desk"))
        self.reports: list[Report] = []
        self.programs: list[Program] = []
        return self

    def __exit__(self, *error: object) -> None:
        end_all_children()
        for program in self.programs:
            program.reap()
        self._desk.close()
        self._folder.cleanup()

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> Program:
        """Start a program in a session of its own, so that Ctrl-C reaches only the benchmark."""
        env = {**os.environ, **QUIET, "TMPDIR": self.path, "DEFECTS_NODE": name, **(environment or {})}
        program = Program(name, command, env, os.path.join(self.path, f"{len(self.programs)}-{name}.log"))
        self.programs.append(program)
        return program

    def worker(self, kind: str) -> list[str]:
        """The script that the launchers run, with its arguments."""
        return [WORKER, self.path, kind]

    def finish(self) -> None:
        """Tell every worker to end with exit code 0, now and later."""
        with open(os.path.join(self.path, "finish"), "w", encoding="ascii"):
            pass

    def heard(self, event: str, since_s: float = 0.0) -> list[Report]:
        return [report for report in self.reports if report.event == event and report.at_s > since_s]

    def until(self, condition: Callable[[], object], within_s: float) -> bool:
        """Listen to the workers until the condition holds; whether it came to that."""
        deadline_s = time.monotonic() + within_s
        while not condition():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            self._listen(min(LOOK_S, left_s))
        return True

    def expect(self, condition: Callable[[], object], what: str, within_s: float = START_S) -> None:
        """As `until`, for what a scenario takes for granted. Raises `Broken`."""
        self.until(lambda: condition() or self._ended(), within_s)
        if not condition():
            why = self._ended() or f"not within {within_s:g} s"
            tails = "\n".join(f"--- {program.name}:\n{program.text()[-LOG_TAIL:]}" for program in self.programs)
            print(tails, file=sys.stderr)
            raise Broken(f"{what}: {why}")

    def _ended(self) -> str:
        """The programs that have, and how."""
        ended = [program for program in self.programs if program.exit_code is not None]
        return ", ".join(f"{program.name} ended with {program.exit_code}" for program in ended)

    def _listen(self, timeout_s: float) -> None:
        self._desk.settimeout(timeout_s)
        with suppress(TimeoutError):
            said = json.loads(self._desk.recv(4096))
            self.reports.append(
                Report(
                    event=said["event"],
                    node=said["node"],
                    pid=said["pid"],
                    at_s=said["at_s"],
                    rank=said["RANK"],
                    group_rank=said["GROUP_RANK"],
                    world_size=said["WORLD_SIZE"],
                    restart_count=said["TORCHELASTIC_RESTART_COUNT"],
                    master_port=said["MASTER_PORT"],
                )
            )
