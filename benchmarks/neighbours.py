"""Cost of a run of 10,000 nodes to another run of the same server.

`python -m benchmarks.neighbours PORT` is that other run: two nodes that ask the server for something all the time.
"""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from statistics import quantiles
from typing import TypeVar

from rdzv_protocol.messages import Ack, Failure, JoinRequest, PollRequest, Reply, ReportRequest, Request, Start, Stop
from rdzv_protocol.settings import RequestedSettings

from benchmarks.launchers import NodeAgent, Plan
from benchmarks.machine import on_cpu
from benchmarks.results import Row
from benchmarks.stage import Broken, Stage, free_port
from benchmarks.swarm import NODES_CPU, SERVER_CPU, Swarm
from benchmarks.swarm import RUN_ID as SWARM_ID
from node_agent.transport.http import HttpTransport

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
    """A swarm that knows when its first node was assigned."""

    first_started_s = 0.0

    def _started(self) -> None:
        self.first_started_s = self.first_started_s or time.monotonic()
        super()._started()


def measure(plan: Plan, watchers: int = 0) -> list[Row]:
    """Milliseconds: one row for each phase and figure; a sample is the worst of a phase.

    `watchers`: how many watch the server meanwhile.
    """
    runs = [_run(watchers > 0) for _ in range(min(plan.repeat, REPEAT))]
    beside = f", {watchers} watch" if watchers else ""
    return [row for phase in PHASES for row in _rows(f"{phase}{beside}", [run[phase] for run in runs])]


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


def _run(is_watched: bool) -> Phases:
    """One swarm's life, and what the pair has noted in each phase of it."""
    with Stage() as stage:
        port, notes_path = free_port(), os.path.join(stage.folder, "notes")
        with on_cpu(SERVER_CPU):
            stage.start(NodeAgent().server(port, stage.folder))
        stage.wait_for_port(port)
        with on_cpu(NODES_CPU), open(notes_path, "wb") as notes:
            stage.start([sys.executable, "-m", "benchmarks.neighbours", str(port)], stdout=notes.fileno())
            if is_watched:
                stage.start([sys.executable, "-m", "benchmarks.watchers", str(port), SWARM_ID])
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


REQUEST, RECOVERY, LATE = "request", "recovery", "late"
PAUSE_S = 0.003
TURNS_A_RECOVERY = 10
RUN_ID = "neighbour"
SETTINGS = RequestedSettings(min_nodes=2, max_nodes=2, max_restarts=1_000_000, lease_s=600.0)

Kind = TypeVar("Kind", Reply, Ack)


class Node:
    """An agent without workers. Its side line is for reports, as agents have one."""

    def __init__(self, name: str, port: int) -> None:
        self._name = name
        self._line, self._side_line = HttpTransport("127.0.0.1", port, None), HttpTransport("127.0.0.1", port, None)
        self._round = self._revision = 0

    async def join(self) -> None:
        """Return with the assignment of the next round."""
        join = JoinRequest(
            run_id=RUN_ID, agent_id=self._name, node_id=self._name, after_round=self._round, addr="127.0.0.1", port=1,
            local_world_size=1, settings=SETTINGS,
        )  # fmt: skip
        reply = await self._ask(join)
        while not isinstance(reply.directive, Start):
            reply = await self._ask(self._poll(hold=True))
        self._round = reply.directive.assignment.round

    async def poll(self) -> None:
        """An answer at once."""
        began_s = time.monotonic()
        await self._ask(self._poll(hold=False))
        note(REQUEST, began_s)

    async def fail(self) -> None:
        """Report that a worker has failed."""
        failure = Failure(
            node_id=self._name, rank=0, local_rank=0, pid=4711, exit_code=1, cause="exit code 1", error="boom"
        )
        began_s = time.monotonic()
        await _exchange(
            Ack, self._side_line, ReportRequest(run_id=RUN_ID, agent_id=self._name, round=self._round, failure=failure)
        )
        note(REQUEST, began_s)

    async def recover(self) -> None:
        """Wait to be told to stop, and be assigned again."""
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
    """Ask, until the process is ended."""
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
    with suppress(PermissionError):  # then `late` tells
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    asyncio.run(main(int(sys.argv[1])))
