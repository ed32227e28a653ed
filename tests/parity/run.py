"""A run of one launcher on a stage: its agents, and what can be done to them."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from benchmarks.launchers import Launcher, NodeAgent, Torchrun
from benchmarks.stage import Program, free_port
from tests.parity.stage import Report, Stage
from tests.support.process_info import is_running

EXIT_S = 60.0
MAX_RESTARTS = "5"
OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Variable that, set to 1, keeps torchrun from using the previous round's store in the next one."""
KEEP_ALIVE_S, KEEP_ALIVES = 1, 3
"""torchrun's own values are 5 s and 3, with which it would need 15 s to miss a node."""
LOGS = {"TORCH_LOGS": "+torch.distributed.elastic.rendezvous.dynamic_rendezvous"}
CONF = {"keep_alive_interval": KEEP_ALIVE_S, "keep_alive_max_attempt": KEEP_ALIVES}

OURS = NodeAgent()
AS_IT_COMES = Torchrun("torchrun as it comes", {OWN_STORE: "0", **LOGS}, CONF)
WITH_OWN_STORE = Torchrun(f"torchrun with `{OWN_STORE}=1`", {OWN_STORE: "1", **LOGS}, CONF)


class Run:
    """A run whose agents are named by letters, like nodes. `flags`: flags that both launchers have."""

    def __init__(
        self, stage: Stage, launcher: Launcher, *flags: str, nnodes: str, nproc: int = 1, kind: str = "idle",
        last_call_s: int = 1, token_file: str | None = None,
    ) -> None:  # fmt: skip
        token = ("--token-file", token_file) if token_file and launcher is OURS else ()
        self.stage = stage
        self.agents: dict[str, Program] = {}
        self.port = free_port()
        self._launcher = replace(
            launcher, flags=("--nproc-per-node", str(nproc), "--max-restarts", MAX_RESTARTS, *token, *flags)
        )
        self._nnodes, self._nproc, self._kind, self._last_call_s = nnodes, nproc, kind, last_call_s
        if server := launcher.server(self.port, stage.folder):
            stage.start([*server, *token], name="server")
            stage.wait_for_port(self.port)

    def start(self, names: str) -> None:
        """Start an agent for each letter. Under torchrun the first agent of a run hosts its store."""
        for name in names:
            command = self._launcher.agent(len(self.agents), self._nnodes, self.port, self._last_call_s)
            worker = self.stage.script(self._kind)
            self.agents[name] = self.stage.start_node(name, [*command, *worker], self._launcher.environment)

    def form(self, names: str, event: str = "started") -> list[Report]:
        """Start agents, and wait until a round of them all has reached this event."""
        began_s = time.monotonic()
        self.start(names)
        self.stage.expect(lambda: self.round(names, event, began_s), f"a round of {len(names)} nodes")
        return self.round(names, event, began_s)

    def round(self, names: str, event: str, since_s: float) -> list[Report]:
        """Return the latest report since then of each rank, if its world has exactly these nodes; otherwise nothing."""
        size = len(names) * self._nproc
        latest = {report.rank: report for report in self.stage.heard(event, since_s) if report.world_size == size}
        reports = list(latest.values())
        is_whole = set(latest) == set(range(size)) and {report.node for report in reports} == set(names)
        return reports if is_whole else []

    def goes_on(self, names: str, since_s: float, within_s: float, event: str = "started") -> list[Report]:
        """Wait for a round of these nodes that began since then. Return nothing if it does not come, or they end
        instead.
        """
        self.stage.until(lambda: self.round(names, event, since_s) or self.have_ended(names), within_s)
        return self.round(names, event, since_s)

    def lose(self, name: str) -> float:
        """Kill an agent and its workers, like the loss of their machine. Return the time."""
        at_s = time.monotonic()
        workers = {report.pid for report in self.stage.heard("started") if report.node == name}
        for pid in (self.agents[name].pid, *filter(is_running, workers)):
            kill(pid)
        return at_s

    def exit_codes(self, names: str, within_s: float = EXIT_S) -> str:
        """Wait for these agents, and return their exit codes in words: `0, 1, still running`."""
        self.stage.until(lambda: self.have_ended(names), within_s)
        return codes([self.agents[name].exit_code for name in names])

    def have_ended(self, names: str) -> bool:
        return all(self.agents[name].exit_code is not None for name in names)

    def finish(self, names: str) -> tuple[bool, str]:
        """Let the workers succeed. Return whether all of these agents did too, and the words for it."""
        self.stage.finish()
        ended = self.exit_codes(names)
        return ended == codes([0] * len(names)), f"agents exit {ended}"


def alone(
    stage: Stage, launcher: Launcher, *flags: str, nproc: int = 1, kind: str = "idle",
    environment: Mapping[str, str] | None = None, standalone: Sequence[str] = ("--standalone",),
) -> Program:  # fmt: skip
    """Start one node's agent that needs no other."""
    command = [*launcher.module, *standalone, "--nproc-per-node", str(nproc), *flags, *stage.script(kind)]
    return stage.start_node("a", command, {**launcher.environment, **(environment or {})})


def codes(values: Sequence[int | None]) -> str:
    return ", ".join("still running" if value is None else str(value) for value in values)


def kill(pid: int) -> float:
    """Send SIGKILL if the process still exists. Return the time."""
    at_s = time.monotonic()
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return at_s
