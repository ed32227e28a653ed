"""Workers that write much output: to a console that is read, to one that blocks, and to files."""

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from statistics import median

from benchmarks.launchers import OURS, STOCK, NodeAgent, Plan, Torchrun
from benchmarks.results import FLOOR, Row
from benchmarks.scenario import Subject, Taken, once, take_turns
from benchmarks.stage import FOLDER, Broken, Stage

REPEAT = 3
BAR = 500.0
"""Bar in MB/s for all workers together; the rate of the disk, if that is less."""
WORKERS = (1, 8)
MEGABYTES = 400
"""Megabytes that all workers write together: more than all buffers on the way hold."""
TIMEOUT_S = 60.0
WRITER = os.path.join(FOLDER, "writer.py")


def measure(plan: Plan) -> list[Row]:
    """Measure the megabytes a second that all workers of a node write together. Floor: directly to files."""
    return [row for workers in WORKERS for row in _of_workers(plan, workers)]


def _of_workers(plan: Plan, workers: int) -> list[Row]:
    samples = {FILES: partial(_bare, workers)}
    samples |= {f"{OURS}, {case}": partial(_launched, NodeAgent(), workers, *_CASES[case]) for case in _CASES}
    if plan.torchrun:
        samples |= {f"{STOCK.name}, {case}": partial(_launched, STOCK, workers, *_CASES[case]) for case in _TORCHRUNS}
    subjects = [Subject(name, once(sample), min(plan.repeat, REPEAT)) for name, sample in samples.items()]
    taken = take_turns(subjects)
    files = taken.pop(FILES)
    return [row for case in _CASES for row in _of_case(case, workers, taken, files)]


def _of_case(case: str, workers: int, taken: Mapping[str, Taken], files: Taken) -> Iterator[Row]:
    bars = {OURS: min(BAR, median(files.samples))} if case in _WITH_BAR and workers == max(WORKERS) else {}
    for name in (OURS, STOCK.name):
        if found := taken.get(f"{name}, {case}"):
            yield _row(case, workers, name, found, bars.get(name))
    yield _row(case, workers, f"{FLOOR}{FILES}", files, None)


def _row(case: str, workers: int, subject: str, taken: Taken, bar: float | None) -> Row:
    measurement = f"output of {workers} worker{'s' * (workers > 1)}, {case}"
    return Row(
        measurement=measurement, subject=subject, unit="MB/s", samples=taken.samples, bar=bar, at_least=True,
        trouble=taken.trouble,
    )  # fmt: skip


_CASES: Mapping[str, tuple[tuple[str, ...], bool]] = {
    "plain": ((), True),
    "prefix": (("--log-prefix", "${rank}: "), True),
    "tee": (("-t", "3"), True),
    "tee, console blocked": (("-t", "3"), False),
    "redirect": (("-r", "3"), True),
}
"""Cases by name: flags, and whether the console is read."""
_TORCHRUNS = ("tee", "tee, console blocked", "redirect")
_WITH_BAR = ("tee", "tee, console blocked")
FILES = "bare workers, into files"


class Console:
    """Pipe that is read all the time, or never."""

    def __init__(self, reads: bool) -> None:
        self._end, self.fd = os.pipe()
        if reads:
            threading.Thread(target=self._read, daemon=True).start()

    def close(self) -> None:
        os.close(self.fd)

    def _read(self) -> None:
        while os.read(self._end, 1 << 20):
            pass
        os.close(self._end)


def _launched(launcher: NodeAgent | Torchrun, workers: int, flags: tuple[str, ...], reads: bool) -> float:
    standalone = [*launcher.module, "--standalone", "--nproc-per-node", str(workers)]
    with Stage(WRITER) as stage:
        console = Console(reads)
        try:
            files = ("--log-dir", os.path.join(stage.folder, "logs"))
            stage.start([*standalone, *flags, *files, *stage.worker, _megabytes(workers)], stdout=console.fd)
            return _megabytes_a_second(stage, workers)
        finally:
            console.close()


def _bare(workers: int) -> float:
    with Stage(WRITER) as stage:
        for number in range(workers):
            with open(os.path.join(stage.folder, f"{number}.out"), "ab") as file:
                stage.start([sys.executable, *stage.worker, _megabytes(workers)], stdout=file.fileno())
        return _megabytes_a_second(stage, workers)


def _megabytes(workers: int) -> str:
    return str(MEGABYTES / workers)


def _megabytes_a_second(stage: Stage, workers: int) -> float:
    """Return the rate at which all writers together wrote their output."""
    said: list[tuple[int, ...]] = []
    while len(said) < workers:
        if not (line := stage.arrivals.receive(time.monotonic() + TIMEOUT_S)):
            raise Broken(f"the writers were not done in {TIMEOUT_S:g} s")
        said.append(line)
    return sum(count for count, _ in said) / max(taken_ns for _, taken_ns in said) * 1e3
