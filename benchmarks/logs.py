"""What becomes of a worker that writes a lot: to a console that is read, to one that blocks, to files."""

import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from statistics import median

from benchmarks.launchers import OURS, STOCK, NodeAgent, Plan, Torchrun
from benchmarks.results import FLOOR, Row
from benchmarks.scenario import Subject, Taken, once, take_turns
from benchmarks.stage import Broken, Stage

REPEAT = 3
BAR = 500.0
"""In sum, or what the disk takes: whichever is less."""
WORKERS = (1, 8)
MEGABYTES = 400
"""In all: more than any buffer on the way."""
TIMEOUT_S = 60.0
WRITER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "writer.py")

Command = list[str]


def measure(plan: Plan) -> list[Row]:
    """Megabytes a second that the workers of a node get rid of, all together. The floor: straight into files."""
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
"""Flags, and whether anybody reads the console."""
_TORCHRUNS = ("tee", "tee, console blocked", "redirect")
_WITH_BAR = ("tee", "tee, console blocked")
FILES = "bare workers, into files"


class Console:
    """A pipe that is emptied all the time, or never."""

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


class Results:
    """Where the writers say how long it took them."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, "results")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)

    def megabytes_a_second(self, workers: int, timeout_s: float) -> float:
        """Of all workers together. Raises `TimeoutError`."""
        self._socket.settimeout(timeout_s)
        said = [tuple(map(int, self._socket.recv(64).split())) for _ in range(workers)]
        return sum(count for count, _ in said) / max(taken_ns for _, taken_ns in said) * 1e3

    def close(self) -> None:
        self._socket.close()


def _launched(launcher: NodeAgent | Torchrun, workers: int, flags: tuple[str, ...], reads: bool) -> float:
    standalone = [*launcher.module, "--standalone", "--nproc-per-node", str(workers)]
    with Stage() as stage:
        results = Results(stage.folder)
        console = Console(reads)
        try:
            files = ("--log-dir", os.path.join(stage.folder, "logs"))
            stage.start([*standalone, *flags, *files, *_writer(results, workers)], stdout=console.fd)
            return results.megabytes_a_second(workers, TIMEOUT_S)
        except TimeoutError:
            raise Broken(f"the writers were not done in {TIMEOUT_S:g} s") from None
        finally:
            console.close()
            results.close()


def _bare(workers: int) -> float:
    with Stage() as stage:
        results = Results(stage.folder)
        try:
            for number in range(workers):
                with open(os.path.join(stage.folder, f"{number}.log"), "ab") as file:
                    stage.start([sys.executable, *_writer(results, workers)], stdout=file.fileno())
            return results.megabytes_a_second(workers, TIMEOUT_S)
        finally:
            results.close()


def _writer(results: Results, workers: int) -> Command:
    return [WRITER, results.path, str(MEGABYTES / workers)]
