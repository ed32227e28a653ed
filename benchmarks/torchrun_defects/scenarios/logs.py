"""A node arrives, and the workers of the first one start again. What they wrote before should still be there."""

import os
import time

from benchmarks.torchrun_defects.launchers import Launcher
from benchmarks.torchrun_defects.observation import Observation
from benchmarks.torchrun_defects.run import Run
from benchmarks.torchrun_defects.stage import Stage


def observe(stage: Stage, launcher: Launcher) -> Observation:
    folder = os.path.join(stage.path, "logs")
    run = Run(stage, launcher, "--log-dir", folder, "-r", "3", nnodes="1:2")
    (first,) = run.form("a")
    stage.expect(lambda: _is_written(folder, first.pid), "what the first worker said, in its log")
    began_s = time.monotonic()
    run.start("b")
    stage.expect(lambda: run.round("ab", "started", began_s), "a round of both nodes")
    second = [report for report in run.round("ab", "started", began_s) if report.node == "a"]
    well, ended = run.finish("ab")
    kept = {"first": _is_written(folder, first.pid), "second": all(_is_written(folder, w.pid) for w in second)}
    said = ", ".join(f"the {name} worker's log is {'there' if is_kept else 'gone'}" for name, is_kept in kept.items())
    return Observation(well and all(kept.values()), f"on node a {said}; {ended}", figures={"kept": kept})


def _is_written(folder: str, pid: int) -> bool:
    """Whether a log file holds what this worker said."""
    paths = [os.path.join(path, name) for path, _, names in os.walk(folder) for name in names]
    return any(f"worker {pid} speaks" in _read(path) for path in paths)


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
