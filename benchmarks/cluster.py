"""Agents on this machine, with two workers each."""

import os
import signal
import time
from contextlib import suppress

from benchmarks.launchers import NPROC, Launcher
from benchmarks.stage import FirstLine, Program, Stage, free_port
from tests.support.process_info import children

AGENTS = 2


class Cluster:
    """Run of `launcher` whose workers have reached their first line. `last_call_s`: None for the default."""

    def __init__(
        self, stage: Stage, launcher: Launcher, nnodes: str, agents: int = AGENTS, last_call_s: int | None = None
    ) -> None:
        self._stage, self._launcher = stage, launcher
        self._nnodes, self._last_call_s = nnodes, last_call_s
        self.port = free_port()
        self.server = self.start_server()
        self.began_s = time.monotonic()
        self.agents: list[Program] = [self.start_agent(number) for number in range(agents)]
        self.workers: dict[int, FirstLine] = stage.first_lines(agents * NPROC, self.began_s)

    def start_server(self) -> Program | None:
        """Start the server, and return it once it listens; None if the launcher has none."""
        command = self._launcher.server(self.port, self._stage.folder)
        if command is None:
            return None
        server = self._stage.start(command)
        self._stage.wait_for_port(self.port)
        return server

    def start_agent(self, number: int) -> Program:
        command = self._launcher.agent(number, self._nnodes, self.port, self._last_call_s)
        return self._stage.start([*command, *self._stage.worker], self._launcher.environment)

    def lose(self, number: int, signum: signal.Signals = signal.SIGKILL) -> float:
        """Signal an agent and all its children, as if their machine had failed, and return the time.

        Helpers are among them: one that survived would compute on this machine, where the other node recovers.
        """
        pids = [agent := self.agents[number].pid, *children(agent)]
        at_s = time.monotonic()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signum)
        return at_s
