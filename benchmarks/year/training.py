"""Real training with all ways to detect a hang, but without a hang: all alarms are wrong.

The training is `examples/train_digits.py` with DistributedDataParallel over gloo, on two nodes of two workers each.
"""

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.stage import Broken, Stage, free_port
from benchmarks.year.contenders import ask, events
from benchmarks.year.network import LOOPBACK

SCRIPT = os.path.join(os.path.dirname(__file__), "..", "..", "examples", "train_digits.py")
RUN_ID, NODES, WORKERS = "training", 2, 2
FLAGS = (
    *("--progress-timeout", "auto", "--silence-timeout", "60", "--max-restarts", "0", "--on-hang", "report"),
    *("--log-rule", "every=60: epoch=", "--log-rule", r"most=10,points=2: loss=(\S+)", "--log-rule", "fault: Error"),
)
STEP_DELAY_MS = 100
ALARMS = ("hang_suspected", "hang_found")
START_TIMEOUT_S = 240.0
CHECK_INTERVAL_S = 15.0
"""Time between two checks that the training continues."""


@dataclass(frozen=True, slots=True)
class Watched:
    """Result of the training: hours, steps of all workers, and alarms as the server's sentences."""

    hours: float
    steps: int
    alarms: tuple[str, ...]
    flags: str = " ".join(FLAGS)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def watch(minutes: float, note: Callable[[str], None]) -> Watched:
    """Train for this number of minutes. Raises `Broken` if the training does not continue."""
    with Stage() as stage:
        port = free_port()
        stage.start([sys.executable, "-m", "rdzv_server", "--host", LOOPBACK, "--port", str(port), "--store", "memory"])
        stage.wait_for_port(port)
        began_s = time.monotonic()
        agents = [stage.start(_agent(port, node, stage.folder), {"OMP_NUM_THREADS": "1"}) for node in range(NODES)]
        steps, ends_s = 0, None
        while ends_s is None or time.monotonic() < ends_s:
            time.sleep(CHECK_INTERVAL_S)
            now_steps = _steps(port)
            if ends_s is None and now_steps:
                ends_s = time.monotonic() + 60 * minutes
                note("training: trains")
            stands_still = now_steps <= steps and (ends_s is not None or time.monotonic() > began_s + START_TIMEOUT_S)
            if stands_still or any(agent.exit_code is not None for agent in agents):
                raise Broken(f"the training stands still after {now_steps} steps\n{stage.log_tails()[-1500:]}")
            steps = now_steps
        alarms = tuple(each["reason"] for each in events(f"{LOOPBACK}:{port}", RUN_ID) if each["kind"] in ALARMS)
        return Watched(round((time.monotonic() - began_s) / 3600, 3), steps, alarms)


def _agent(port: int, node: int, folder: str) -> list[str]:
    where = ("--endpoint", f"{LOOPBACK}:{port}", "--run-id", RUN_ID, "--node-id", f"node{node}", "--nnodes", str(NODES))
    training = ("--epochs", "1000000", "--step-delay-ms", str(STEP_DELAY_MS), "--checkpoint", f"{folder}/digits.pt")
    return [sys.executable, "-m", "node_agent", *where, "--nproc", str(WORKERS), *FLAGS, SCRIPT, *training]


def _steps(port: int) -> int:
    """Return the lowest step that a node has reported; 0 before the first report."""
    runs: list[dict[str, Any]] = []
    with suppress(OSError):  # the run does not exist yet
        runs = ask(f"{LOOPBACK}:{port}", f"/v1/status?run_id={RUN_ID}")["runs"]
    told = [node.get("progress") or {} for run in runs for node in run["nodes"]]
    return min((progress.get("lowest_step") or 0 for progress in told), default=0)
