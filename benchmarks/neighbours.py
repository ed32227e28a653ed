"""What other runs notice while one of 10,000 nodes forms, restarts and goes: a run of two beside it, on one server.

The worst latency in each phase counts, of every request, and of a whole recovery: a failure's report to both nodes'
next assignment. `late` is how late the measuring process was itself, which no server is to blame for.
"""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from statistics import quantiles

from benchmarks.pair import LATE, RECOVERY, REQUEST
from benchmarks.plan import Plan
from benchmarks.results import Row
from benchmarks.stage import Broken, Stage, free_port
from benchmarks.swarm import NODES_CPU, SERVER_CPU, Swarm

NODES = 10_000
BAR_MS = 100.0
QUIET_S = 3.0
CAP_S = 120.0
REPEAT = 3
PHASES = ("alone", "forming", "assignments", "idle", "restart", "all gone")


@dataclass(frozen=True, slots=True)
class Note:
    """Something that the pair has measured. Seconds; `began_s` by CLOCK_MONOTONIC."""

    what: str
    began_s: float
    took_s: float


Phases = dict[str, list[Note]]


class TimedSwarm(Swarm):
    """It knows when its first node was assigned."""

    first_started_s = 0.0

    def _started(self) -> None:
        self.first_started_s = self.first_started_s or time.monotonic()
        super()._started()


def measure(plan: Plan) -> list[Row]:
    """Milliseconds: one row for each phase and figure; a sample is the worst of a phase."""
    runs = [_run() for _ in range(min(plan.repeat, REPEAT))]
    return [row for phase in PHASES for row in _rows(phase, [run[phase] for run in runs])]


def _rows(phase: str, samples: list[list[Note]]) -> Iterator[Row]:
    subject = f"{phase}, {NODES} nodes"
    for what, bar in ((REQUEST, BAR_MS), (RECOVERY, None), (LATE, None)):
        took_ms = [[1e3 * note.took_s for note in notes if note.what == what] for notes in samples]
        if all(took_ms):
            name = f"neighbour's {what}"
            yield Row(
                measurement=f"{name}, worst", subject=subject, unit="ms", samples=list(map(max, took_ms)), bar=bar
            )
        if what == REQUEST and all(len(each) > 1 for each in took_ms):
            percentile = [quantiles(each, n=100, method="inclusive")[98] for each in took_ms]
            yield Row(measurement=f"{name}, 99 of 100", subject=subject, unit="ms", samples=percentile)


def _run() -> Phases:
    """One swarm's life, and what the pair has noted in each phase of it."""
    with Stage() as stage:
        port, notes_path = free_port(), os.path.join(stage.folder, "notes")
        store = f"sqlite:{os.path.join(stage.folder, 'state.db')}"
        flags = ("--host", "127.0.0.1", "--port", str(port), "--store", store)
        with _on_cpu(SERVER_CPU):
            stage.start([sys.executable, "-m", "rdzv_server", *flags])
        stage.wait_for_port(port)
        with _on_cpu(NODES_CPU), open(notes_path, "wb") as notes:
            stage.start([sys.executable, "-m", "benchmarks.pair", str(port)], stdout=notes.fileno())
            begins_s = asyncio.run(_live(TimedSwarm(NODES, port)))
            notes_of_all = _read_until(notes_path, begins_s[-1])
    return _sorted(notes_of_all, begins_s)


async def _live(swarm: TimedSwarm) -> list[float]:
    """When each phase began, and when the last one ended."""
    begins_s = [time.monotonic()]
    await asyncio.sleep(QUIET_S)
    begins_s.append(time.monotonic())
    await _within_cap(swarm.join(), "form")
    begins_s += (swarm.first_started_s, time.monotonic())
    await asyncio.sleep(QUIET_S)
    begins_s.append(time.monotonic())
    await _within_cap(swarm.restart(), "restart")
    begins_s.append(time.monotonic())
    swarm.close()
    await asyncio.sleep(QUIET_S)
    return [*begins_s, time.monotonic()]


async def _within_cap(work: Awaitable[None], what: str) -> None:
    try:
        async with asyncio.timeout(CAP_S):
            await work
    except TimeoutError:
        raise Broken(f"{NODES} nodes did not {what} within {CAP_S:g} s") from None


def _read_until(path: str, end_s: float) -> list[Note]:
    """The notes, once there is one of a recovery that began later: what began before has come to its end, too."""
    deadline_s = time.monotonic() + CAP_S
    while time.monotonic() < deadline_s:
        notes = _read(path)
        if any(note.what == RECOVERY and note.began_s > end_s for note in notes):
            return notes
        time.sleep(0.1)
    raise Broken(f"the pair was not answered within {CAP_S:g} s")


def _read(path: str) -> list[Note]:
    """The whole lines."""
    with open(path, encoding="ascii") as file:
        lines = file.read().rpartition("\n")[0].splitlines()
    return [Note(what, float(began_s), float(took_s)) for what, began_s, took_s in map(str.split, lines)]


def _sorted(notes: list[Note], begins_s: list[float]) -> Phases:
    """Each note in every phase in which it was under way."""
    phases: Phases = {}
    for phase, (begin_s, end_s) in zip(PHASES, pairwise(begins_s), strict=True):
        phases[phase] = [note for note in notes if note.began_s < end_s and begin_s < note.began_s + note.took_s]
    return phases


@contextmanager
def _on_cpu(cpu: int) -> Iterator[None]:
    """On machines that have several; also what is started meanwhile, and its threads."""
    all_cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu} & all_cpus or all_cpus)
    yield
    os.sched_setaffinity(0, all_cpus)
