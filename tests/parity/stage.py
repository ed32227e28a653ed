"""A stage for one scenario: programs by the names of their nodes, and the workers' reports."""

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import benchmarks.stage
from benchmarks.stage import Program

WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "worker.py")
START_S = 60.0
"""Seconds that a set-up may take: several imports of torch on a small machine."""
CHECK_INTERVAL_S = 0.05
QUIET = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
"""The workers of every node share this machine."""


class Broken(Exception):
    """The scenario did not reach the point of its observation."""


@dataclass(frozen=True, slots=True)
class Report:
    """Report of a worker. `at_s`: CLOCK_MONOTONIC, for `started` that of the script's first statement."""

    event: str
    node: str
    pid: int
    at_s: float
    rank: int
    group_rank: int
    world_size: int
    restart_count: int
    master_port: int


class Stage(benchmarks.stage.Stage):
    """A context manager that ends all processes started in it, and their descendants."""

    def __enter__(self) -> Self:
        super().__enter__()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(os.path.join(self.folder, "reports"))
        self.reports: list[Report] = []
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()
        super().__exit__(*error)

    def start_node(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Program:
        """Start the agent of this node."""
        return self.start(command, {**QUIET, "TEST_NODE": name, **environment}, name=name)

    def script(self, kind: str) -> list[str]:
        """Return the script that the launchers run, with its arguments."""
        return [WORKER, self.folder, kind]

    def finish(self) -> None:
        """Tell every worker to end with exit code 0, now and later."""
        with open(os.path.join(self.folder, "finish"), "w", encoding="ascii"):
            pass

    def heard(self, event: str, since_s: float = 0.0) -> list[Report]:
        return [report for report in self.reports if report.event == event and report.at_s > since_s]

    def until(self, condition: Callable[[], object], within_s: float) -> bool:
        """Listen to the workers until the condition holds. Return whether it does."""
        deadline_s = time.monotonic() + within_s
        while not condition():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            self._socket.settimeout(min(CHECK_INTERVAL_S, left_s))
            with suppress(TimeoutError):
                self.reports.append(Report(**json.loads(self._socket.recv(4096))))
        return True

    def expect(self, condition: Callable[[], object], what: str) -> None:
        """Do the same as `until`, for a condition that a scenario relies on. Raises `Broken`."""
        self.until(lambda: condition() or self._ended(), START_S)
        if not condition():
            print(self.log_tails(), file=sys.stderr)
            raise Broken(f"{what}: {self._ended() or f'not within {START_S:g} s'}")

    def _ended(self) -> str:
        """Return the programs that have ended, and how."""
        ended = {name: code for name, program in self.programs.items() if (code := program.exit_code) is not None}
        return ", ".join(f"{name} ended with {code}" for name, code in ended.items())
