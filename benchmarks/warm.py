"""From the SIGKILL of a worker to all new workers with torch imported: warm, cold, and under torchrun."""

from functools import partial

from benchmarks.cluster import AGENTS
from benchmarks.floors import bare_with_torch
from benchmarks.launchers import NPROC, NodeAgent, torch_is_installed
from benchmarks.plan import Plan
from benchmarks.recovery import CAP_S, kills
from benchmarks.results import Row
from benchmarks.scenario import Scenario
from benchmarks.stage import TORCH_WORKER

COLD = NodeAgent("node-agent, cold")

WARM = Scenario(
    measurement="worker killed, 2 × 2, torch imported",
    sample=partial(kills, script=TORCH_WORKER),
    floor=bare_with_torch(AGENTS * NPROC),
    bar=0.25,
    repeat=5,
    ours=NodeAgent(flags=("--preload", "torch")),
    besides=(COLD,),
    torchrun_repeat=2,
    cap=CAP_S,
)


def measure(plan: Plan) -> list[Row]:
    """Nothing if torch is not there."""
    return WARM.measure(plan) if torch_is_installed() else []
