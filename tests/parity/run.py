"""A run of one launcher on a stage: its agents, and what can be done to them."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from benchmarks.machine import is_running
from tests.parity.launchers import Launcher
from tests.parity.observation import codes
from tests.parity.stage import Program, Report, Stage

EXIT_S = 60.0
MAX_RESTARTS = "5"


class Run:
    """Agents are named by letters, as nodes are. `flags` are those that both launchers have."""

    def __init__(
        self, stage: Stage, launcher: Launcher, *flags: str, nnodes: str, nproc: int = 1, kind: str = "idle",
        last_call_s: float = 1.0, token_file: str | None = None,
    ) -> None:  # fmt: skip
        self.stage = stage
        self.launcher = launcher
        self.endpoint = launcher.open(stage, token_file)
        self.agents: dict[str, Program] = {}
        self._nproc = nproc
        self._last_call_s = last_call_s
        self._rest = [
            *("--nnodes", nnodes, nproc_flag(launcher), str(nproc), "--max-restarts", MAX_RESTARTS),
            *(*flags, *stage.worker(kind)),
        ]

    def start(self, names: str) -> None:
        """Start an agent for each letter. Under torchrun the first agent of a run hosts its store."""
        for name in names:
            command = self.endpoint.agent(not self.agents, self._last_call_s)
            self.agents[name] = self.stage.start(name, [*command, *self._rest], self.launcher.environment)

    def form(self, names: str, event: str = "started") -> list[Report]:
        """Start agents, and wait until a round of them all has got to this event."""
        began_s = time.monotonic()
        self.start(names)
        self.stage.expect(lambda: self.round(names, event, began_s), f"a round of {len(names)} nodes")
        return self.round(names, event, began_s)

    def round(self, names: str, event: str, since_s: float) -> list[Report]:
        """The latest report since then of each rank, if it is of a world of these nodes; else nothing."""
        size = len(names) * self._nproc
        latest = {report.rank: report for report in self.stage.heard(event, since_s) if report.world_size == size}
        reports = list(latest.values())
        is_whole = set(latest) == set(range(size)) and {report.node for report in reports} == set(names)
        return reports if is_whole else []

    def lose(self, name: str) -> float:
        """Kill an agent and its workers, as the loss of their machine does; when that was."""
        at_s = time.monotonic()
        self.agents[name].signal(signal.SIGKILL)
        for pid in self.workers(name):
            kill(pid)
        return at_s

    def workers(self, name: str) -> list[int]:
        """The workers of a node that are there."""
        pids = {report.pid for report in self.stage.heard("started") if report.node == name}
        return [pid for pid in pids if is_running(pid)]

    def exit_codes(self, names: str, within_s: float = EXIT_S) -> list[int | None]:
        """Wait for these agents; None for one that is still running then."""
        self.stage.until(lambda: self.have_ended(names), within_s)
        return [self.agents[name].exit_code for name in names]

    def have_ended(self, names: str) -> bool:
        return all(self.agents[name].exit_code is not None for name in names)

    def finish(self, names: str) -> tuple[bool, str]:
        """Let the workers end well. Whether every one of these agents did so too, and its words for it."""
        self.stage.finish()
        ended = self.exit_codes(names)
        return ended == [0] * len(names), f"agents exit {codes(ended)}"


def nproc_flag(launcher: Launcher) -> str:
    return "--nproc" if launcher.is_ours else "--nproc-per-node"


def alone(
    stage: Stage, launcher: Launcher, *flags: str, nproc: int = 1, kind: str = "idle",
    environment: Mapping[str, str] | None = None, command: Sequence[str] | None = None,
) -> Program:  # fmt: skip
    """Start one node's agent that needs no other."""
    start = launcher.standalone if command is None else command
    return stage.start(
        "a",
        [*start, nproc_flag(launcher), str(nproc), *flags, *stage.worker(kind)],
        {**launcher.environment, **(environment or {})},
    )


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
