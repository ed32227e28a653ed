"""What becomes of a worker that writes a lot: to a console that is read, to one that blocks, to files."""

import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial

from benchmarks.launchers import NodeAgent, Torchrun
from benchmarks.plan import Plan, interleaved
from benchmarks.results import Row
from benchmarks.stage import Broken, Stage

REPEAT = 3
WORKERS = (1, 8)
MEGABYTES = 400
"""In all: more than any buffer on the way."""
TIMEOUT_S = 60.0
WRITER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "writer.py")

Command = list[str]


def measure(plan: Plan) -> list[Row]:
    """Megabytes a second that the workers of a node get rid of, all together. Beside it: straight into a file."""
    rows: list[Row] = []
    for workers in WORKERS:
        samples = interleaved(_subjects(plan, workers), min(plan.repeat, REPEAT))
        measurement = f"logs, {workers} worker" + "s" * (workers > 1)
        rows += [
            Row(measurement=measurement, subject=name, unit="MB/s", samples=taken) for name, taken in samples.items()
        ]
    return rows


def _subjects(plan: Plan, workers: int) -> dict[str, Callable[[], float]]:
    cases = [(NodeAgent(), name) for name in _CASES] + [(Torchrun(), name) for name in _TORCHRUNS if plan.torchrun]
    launched = {
        f"{launcher.name}, {name}": partial(_launched, launcher, workers, *_CASES[name]) for launcher, name in cases
    }
    return {"bare workers, into files": partial(_bare, workers), **launched}


_CASES: Mapping[str, tuple[tuple[str, ...], bool]] = {
    "plain": ((), True),
    "prefix": (("--log-prefix", "${rank}: "), True),
    "tee": (("-t", "3"), True),
    "tee, console blocked": (("-t", "3"), False),
    "redirect": (("-r", "3"), True),
}
"""Flags, and whether anybody reads the console."""
_TORCHRUNS = ("tee", "tee, console blocked", "redirect")


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
