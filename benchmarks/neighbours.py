"""Cost of a run of 10,000 nodes to another run of the same server, and of operators who watch a server of many runs.

`python -m benchmarks.neighbours PORT` is the other run: two nodes that send requests to the server all the time.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import cycle, pairwise
from statistics import median, quantiles
from typing import TypeVar
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

from rdzv_protocol import paths
from rdzv_protocol.messages import Ack, Failure, JoinRequest, PollRequest, Reply, ReportRequest, Request, Start, Stop
from rdzv_protocol.settings import RequestedSettings

from benchmarks.launchers import OURS, NodeAgent, Plan
from benchmarks.machine import cpu_s, on_cpu
from benchmarks.operators import Operators
from benchmarks.results import Row
from benchmarks.stage import Broken, Program, Stage, free_port
from benchmarks.swarm import NODES_CPU, SERVER_CPU, Swarm
from benchmarks.swarm import RUN_ID as SWARM_ID
from node_agent.kernel.transport.http import HttpTransport

RUN_ID = "neighbour"
SMALL_RUN_NODES = 2
BAR_MS = 100.0
QUIET_S = 3.0
MANY_RESTARTS = 1_000_000
BETWEEN_RESTARTS_S = 0.05
"""Pause before the next of the small runs restarts."""
CAP_S = 120.0
REPEAT = 3
WATCHED_RUNS = 200
PAGE_NODES, PAGE_REPEAT = 1_000, 20
PAGE_BAR_MS, SIZE_BAR_KB = 300.0, 1_000.0
PHASES = ("alone", "forming", "assignments", "idle", "restart", "all gone")


@dataclass(frozen=True, slots=True)
class Note:
    """A measurement of the pair, in seconds; `began_s` is CLOCK_MONOTONIC."""

    what: str
    began_s: float
    took_s: float


Phases = dict[str, list[Note]]


class TimedSwarm(Swarm):
    """Swarm with the time of its first node's assignment."""

    first_started_s = 0.0

    def _started(self) -> None:
        self.first_started_s = self.first_started_s or time.monotonic()
        super()._started()


@dataclass(frozen=True, slots=True)
class Beside:
    """Load of the server beside the pair: a run of `nodes` nodes, small runs that keep restarting in turns, and
    operators who watch all runs."""

    nodes: int
    small_runs: int = 0
    is_watched: bool = False

    @property
    def subject(self) -> str:
        runs = f", {self.small_runs} runs" if self.small_runs else ""
        return f"{self.nodes} nodes{runs}{', watched' * self.is_watched}"

    @property
    def small_run_ids(self) -> list[str]:
        return [f"small-{number}" for number in range(self.small_runs)]


@dataclass(frozen=True, slots=True)
class Sample:
    """One pass through the large run's phases: the pair's notes in each, the server's CPU and its answers."""

    phases: Phases
    cpu_percent: float
    """CPU of the server in all phases, in per cent of a core."""
    answers_per_s: float | None
    """Answers a second to the operators; None if there are none."""


def measure(plan: Plan) -> list[Row]:
    """Measure milliseconds: a row for each phase and figure; each sample is of one pass through the phases."""
    return compare(plan, [Beside(plan.nodes)])


def measure_watched(plan: Plan) -> list[Row]:
    """Measure the page of a run of 1,000 nodes; then neighbours beside 200 runs, without operators and with them."""
    cases = [Beside(plan.nodes, WATCHED_RUNS, is_watched) for is_watched in (False, True)]
    return [*_page(min(PAGE_REPEAT, 2 * plan.repeat), min(PAGE_NODES, plan.nodes)), *compare(plan, cases)]


def compare(plan: Plan, cases: Sequence[Beside]) -> list[Row]:
    """Return the rows of all cases, which are measured in turns."""
    taken: dict[Beside, list[Sample]] = {case: [] for case in cases}
    for _ in range(min(plan.repeat, REPEAT)):
        for case, samples in taken.items():
            samples.append(_run(case))
    return [row for case, samples in taken.items() for row in _rows(case, samples)]


def _rows(case: Beside, samples: list[Sample]) -> Iterator[Row]:
    for phase in PHASES:
        yield from _rows_of_phase(f"{phase}, {case.subject}", [sample.phases[phase] for sample in samples])
    cpu_percent = [sample.cpu_percent for sample in samples]
    yield Row(measurement="server's CPU, all phases", subject=case.subject, unit="% of a core", samples=cpu_percent)
    if answers := [sample.answers_per_s for sample in samples if sample.answers_per_s is not None]:
        yield Row(measurement="operators' answers", subject=case.subject, unit="1/s", samples=answers)


def _rows_of_phase(subject: str, samples: list[list[Note]]) -> Iterator[Row]:
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
            yield Row(measurement=f"{name}, median", subject=subject, unit="ms", samples=list(map(median, took_ms)))


def _run(case: Beside) -> Sample:
    """Play the large run, and return the pair's notes in each of its phases."""
    with Stage() as stage:
        port, notes_path = free_port(), os.path.join(stage.folder, "notes")
        with on_cpu(SERVER_CPU):
            server = stage.start(NodeAgent().server(port, stage.folder))
        stage.wait_for_port(port)
        with on_cpu(NODES_CPU), open(notes_path, "wb") as notes:
            stage.start([sys.executable, "-m", "benchmarks.neighbours", str(port)], stdout=notes.fileno())
            begins_s, took_s, answers_per_s = asyncio.run(_live(case, stage, port, server))
        notes_of_all = _read_until(notes_path, begins_s[-1])
    return Sample(_sorted(notes_of_all, begins_s), 100 * took_s / (begins_s[-1] - begins_s[0]), answers_per_s)


async def _live(case: Beside, stage: Stage, port: int, server: Program) -> tuple[list[float], float, float | None]:
    """Return the times at which each phase began and the last one ended, the server's CPU, and answers a second.

    CPU is in seconds; the answers are those to the operators.
    """
    async with _small_runs(case, port):
        operators = Operators(stage, port, SWARM_ID, case.small_run_ids) if case.is_watched else None
        if operators:
            await operators.are_there()
        before_s = cpu_s(server.pid)
        begins_s = await _live_large(case, TimedSwarm(case.nodes, port))
        took_s = cpu_s(server.pid) - before_s
        return begins_s, took_s, await operators.answers_per_s() if operators else None


@asynccontextmanager
async def _small_runs(case: Beside, port: int) -> AsyncIterator[None]:
    """Keep small runs, which restart one after another."""
    swarms = [Swarm(SMALL_RUN_NODES, port, run_id, MANY_RESTARTS) for run_id in case.small_run_ids]
    await asyncio.gather(*(swarm.join() for swarm in swarms))
    restarting = asyncio.create_task(_restart_in_turns(swarms))
    yield
    if not restarting.cancel():
        await restarting  # the server refused a node
    for swarm in swarms:
        swarm.close()


async def _restart_in_turns(swarms: Sequence[Swarm]) -> None:
    for swarm in cycle(swarms):
        await swarm.restart()
        await asyncio.sleep(BETWEEN_RESTARTS_S)


async def _live_large(case: Beside, swarm: TimedSwarm) -> list[float]:
    begins_s = [time.monotonic()]
    await asyncio.sleep(QUIET_S)
    begins_s.append(time.monotonic())
    await _within_cap(swarm.join(), case, "form")
    begins_s += (swarm.first_started_s, time.monotonic())
    await asyncio.sleep(QUIET_S)
    begins_s.append(time.monotonic())
    await _within_cap(swarm.restart(), case, "restart")
    begins_s.append(time.monotonic())
    swarm.close()
    await asyncio.sleep(QUIET_S)
    return [*begins_s, time.monotonic()]


async def _within_cap(work: Awaitable[None], case: Beside, what: str) -> None:
    try:
        async with asyncio.timeout(CAP_S):
            await work
    except TimeoutError:
        raise Broken(f"{case.nodes} nodes did not {what} within {CAP_S:g} s") from None


def _read_until(path: str, end_s: float) -> list[Note]:
    """Return the notes once a recovery has begun after `end_s`: everything that began before has then ended."""
    deadline_s = time.monotonic() + CAP_S
    while time.monotonic() < deadline_s:
        notes = _read(path)
        if any(note.what == RECOVERY and note.began_s > end_s for note in notes):
            return notes
        time.sleep(0.1)
    raise Broken(f"the pair was not answered within {CAP_S:g} s")


def _read(path: str) -> list[Note]:
    """Return the notes in the complete lines of the file."""
    with open(path, encoding="ascii") as file:
        lines = file.read().rpartition("\n")[0].splitlines()
    return [Note(what, float(began_s), float(took_s)) for what, began_s, took_s in map(str.split, lines)]


def _sorted(notes: list[Note], begins_s: list[float]) -> Phases:
    """Return the notes by phase: each note in every phase during which it lasted."""
    phases: Phases = {}
    for phase, (begin_s, end_s) in zip(PHASES, pairwise(begins_s), strict=True):
        phases[phase] = [note for note in notes if note.began_s < end_s and begin_s < note.began_s + note.took_s]
    return phases


# The page, as an operator opens it.


def _page(repeat: int, nodes: int) -> Iterator[Row]:
    """Yield the rows about the page: milliseconds and kilobytes."""
    with Stage() as stage:
        port = free_port()
        with on_cpu(SERVER_CPU):
            stage.start(NodeAgent().server(port, stage.folder))
        stage.wait_for_port(port)
        with on_cpu(NODES_CPU):
            pages, documents = asyncio.run(_open_pages(port, repeat, nodes))
    subject = f"{OURS}, {nodes} nodes"
    yield Row(
        measurement="page, HTML", subject=subject, unit="ms", samples=[took for took, _ in pages], bar=PAGE_BAR_MS
    )
    took_ms, kilobytes = (
        [took for took, _ in documents],
        [page[1] + each[1] for page, each in zip(pages, documents, strict=True)],
    )
    yield Row(measurement="page, all nodes", subject=subject, unit="ms", samples=took_ms, bar=PAGE_BAR_MS)
    yield Row(measurement="page, size", subject=subject, unit="kB", samples=kilobytes, bar=SIZE_BAR_KB)


async def _open_pages(
    port: int, repeat: int, nodes: int
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Return milliseconds and kilobytes of each load of the page, and of each load of the first document it shows."""
    swarm = Swarm(nodes, port)
    await swarm.join()
    ask = [
        f"http://127.0.0.1:{port}{path}" for path in (f"{paths.RUN_PAGE}{SWARM_ID}", f"{paths.WATCH}?run_id={SWARM_ID}")
    ]
    # The first load of each is dropped, since it imports jinja2.
    opened = [[await asyncio.to_thread(_read_page, url) for url in ask] for _ in range(repeat + 1)][1:]
    swarm.close()
    return [page for page, _ in opened], [document for _, document in opened]


def _read_page(url: str) -> tuple[float, float]:
    """Return the milliseconds until the answer is complete, and its kilobytes.

    The answer of a stream counts as complete at its first number.
    """
    began_s, size = time.monotonic(), 0
    with urlopen(HttpRequest(url, headers={"Accept": "text/html"}), timeout=60) as answer:
        for line in answer:
            size += len(line)
            if line.startswith(b"id: "):
                break
    return 1e3 * (time.monotonic() - began_s), size / 1e3


# The pair.

REQUEST, RECOVERY, LATE = "request", "recovery", "late"
PAUSE_S = 0.003
TURNS_A_RECOVERY = 10
SETTINGS = RequestedSettings(min_nodes=2, max_nodes=2, max_restarts=MANY_RESTARTS, lease_s=600.0)

Kind = TypeVar("Kind", Reply, Ack)


class Node:
    """Agent without workers. It sends reports on a second connection, as agents do."""

    def __init__(self, name: str, port: int) -> None:
        self._name = name
        self._line, self._side_line = HttpTransport("127.0.0.1", port, None), HttpTransport("127.0.0.1", port, None)
        self._round = self._revision = self._rank = 0

    async def join(self) -> None:
        """Join, and return once the node has its assignment of the next round."""
        join = JoinRequest(
            run_id=RUN_ID, agent_id=self._name, node_id=self._name, after_round=self._round, addr="127.0.0.1", port=1,
            local_world_size=1, settings=SETTINGS,
        )  # fmt: skip
        reply = await self._ask(join)
        while not isinstance(reply.directive, Start):
            reply = await self._ask(self._poll(hold=True))
        self._round, self._rank = reply.directive.assignment.round, reply.directive.assignment.first_rank

    async def poll(self) -> None:
        """Poll without waiting for changes."""
        began_s = time.monotonic()
        await self._ask(self._poll(hold=False))
        note(REQUEST, began_s)

    async def fail(self) -> None:
        """Report a failed worker."""
        failure = Failure(
            node_id=self._name, rank=self._rank, local_rank=0, pid=4711, exit_code=1, cause="exit code 1", error="boom"
        )
        began_s = time.monotonic()
        await _exchange(
            Ack, self._side_line, ReportRequest(run_id=RUN_ID, agent_id=self._name, round=self._round, failure=failure)
        )
        note(REQUEST, began_s)

    async def recover(self) -> None:
        """Wait for the directive to stop, and for the next assignment."""
        while not isinstance((await self._ask(self._poll(hold=True))).directive, Stop):
            pass
        await self.join()

    def _poll(self, hold: bool) -> PollRequest:
        return PollRequest(run_id=RUN_ID, agent_id=self._name, revision=self._revision, hold=hold)

    async def _ask(self, request: Request) -> Reply:
        reply = await _exchange(Reply, self._line, request)
        self._revision = reply.revision
        return reply


async def _exchange(kind: type[Kind], line: HttpTransport, request: Request) -> Kind:
    await line.connect()
    answer = await line.exchange(request)
    assert isinstance(answer, kind)
    return answer


def note(what: str, began_s: float, floor_s: float = 0.0) -> None:
    print(what, began_s, time.monotonic() - began_s - floor_s, flush=True)


async def main(port: int) -> None:
    """Send requests until the process is ended."""
    nodes = [Node("a", port), Node("b", port)]
    await asyncio.gather(*(node.join() for node in nodes))
    while True:
        for _ in range(TURNS_A_RECOVERY):
            began_s = time.monotonic()
            await asyncio.sleep(PAUSE_S)
            note(LATE, began_s, PAUSE_S)
            for node in nodes:
                await node.poll()
        began_s = time.monotonic()
        await asyncio.gather(nodes[0].fail(), *(node.recover() for node in nodes))
        note(RECOVERY, began_s)


if __name__ == "__main__":
    with suppress(PermissionError):  # then `late` shows it
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    asyncio.run(main(int(sys.argv[1])))
