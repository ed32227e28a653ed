"""From the SIGKILL of a worker to all new workers with torch imported: warm, cold, and under torchrun."""

from benchmarks.launchers import Launcher, NodeAgent, Torchrun, WarmNodeAgent, torch_is_installed
from benchmarks.plan import Plan
from benchmarks.recovery import CAP_S, KILLS_OF_A_RUN, kills
from benchmarks.results import Row
from benchmarks.stage import TORCH_WORKER

BAR_MS = 250


def measure(plan: Plan) -> list[Row]:
    """As `recovery`, with workers that import torch. Nothing if torch is not there."""
    launchers: list[Launcher] = [WarmNodeAgent(), NodeAgent()]
    launchers += [Torchrun()] if plan.torchrun else []
    samples: dict[str, list[float]] = {launcher.name: [] for launcher in launchers}
    while torch_is_installed() and any(len(taken) < plan.repeat for taken in samples.values()):
        for launcher in launchers:
            taken = samples[launcher.name]
            taken += kills(launcher, min(KILLS_OF_A_RUN, plan.repeat - len(taken)), TORCH_WORKER)
    bars = {WarmNodeAgent.name: BAR_MS}
    return [
        Row(measurement="warm", subject=name, unit="ms", samples=taken, bar=bars.get(name), cap=1e3 * CAP_S)
        for name, taken in samples.items()
        if taken
    ]
