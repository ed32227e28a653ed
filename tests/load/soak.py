"""Two hundred runs at once, each followed by the next one, as long as it is wanted."""

import asyncio
import json
import random
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from rdzv_protocol import paths

from tests.load.plans import Plan, draw
from tests.load.play import PATIENCE_S, Play
from tests.support.footprint import Footprint
from tests.support.programs import Server

RUNS = 200
RETENTION_S = 1.0
"""And at least a lease."""
POLL_S = 0.05
LAST = "the last run"


class Soak:
    """Runs on the server at this port. Every other one is the same run again, in one attempt after another."""

    def __init__(self, port: int, *, runs: int = RUNS, seed: int = 0) -> None:
        self.played = 0
        self._port = port
        self._runs = runs
        self._rng = random.Random(seed)

    async def play(self, times: int = 1, seconds: float = 0.0) -> None:
        """So many runs at once, so often and for so long, and to their ends. Raises `Unplanned`."""
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as lanes:
            for lane in range(self._runs):
                lanes.create_task(self._lane(lane, times, until))

    async def _lane(self, lane: int, times: int, until: float) -> None:
        while times > 0 or time.monotonic() < until:
            name = f"run-{lane}" if lane % 2 else f"run-{lane}-{self.played}"
            await Play(self._port, name, draw(self._rng)).run()
            self.played += 1
            times -= 1


async def settled(server: Server, descriptors: int | None = None) -> Footprint:
    """What the server holds once it has forgotten every run and, if given, has so many descriptors open."""
    async with asyncio.timeout(PATIENCE_S):
        while await _runs(server) or descriptors not in (None, Footprint.of(server.pid).descriptors):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
    return Footprint.of(server.pid)


async def _runs(server: Server) -> int:
    return len(json.loads(await server.get(paths.STATUS))["runs"])


async def serve(folder: Path, *flags: str) -> Server:
    """A server that writes to a file there, and soon forgets what has ended."""
    return await Server.listen("--store", f"sqlite:{folder}/server.db", "--retention", str(RETENTION_S), *flags)


async def forgotten(server: Server) -> None:
    """Return once the file, too, holds nothing of the runs that were over: what comes in takes its turn after that."""
    await Play(server.port, LAST, Plan(nodes=2, deeds=(), succeeds=True)).run()


def records(folder: Path) -> int:
    """How many records of other runs the file has. The server must have ended."""
    with closing(sqlite3.connect(folder / "server.db")) as file:
        (count,) = file.execute("SELECT count(*) FROM records WHERE run_id != ?", (LAST,)).fetchone()
        return int(count)
