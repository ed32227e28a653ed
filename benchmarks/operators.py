"""Operators of a busy server: streams of status and of events, pages of events, web pages, and Prometheus.

`python -m benchmarks.operators PORT LARGE_RUN SMALL_RUN ...` runs all of them in one process, which reads the answers
and discards them. It has the lowest priority, since operators on other machines take no CPU time from agents. A
refusal, or a stream that ends, ends the process with a message. Once all streams are open, it prints each second how
many answers it has received.
"""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import cycle
from urllib.parse import quote

import aiohttp
from rdzv_protocol import paths

from benchmarks.stage import LOG_TAIL, Broken, Program, Stage
from rdzv_server.http.events_endpoint import MOST_STREAMS
from rdzv_server.service.watch import MOST_WATCHERS

WATCH_ALL, WATCH_LARGE, WATCH_SMALL = 20, 20, 80
"""Number of streams of the list of runs, of the large run, and of small runs (one each)."""
FOLLOW_LARGE = 20
"""Number of streams of the large run's events; each small run has one."""
ADDRESSES = 8
"""Number of the operators' addresses: a server accepts at most half of all watchers from one address."""
PAUSE_S = 0.1
"""Seconds from an answer to the next request, for pages and for events: nearly ten a second of each kind."""
SCRAPE_EVERY_S = 1.0
TIMEOUT_S = 60.0
COMMAND = [sys.executable, "-m", "benchmarks.operators"]
HTML = {"Accept": "text/html"}


@dataclass(frozen=True, slots=True)
class Report:
    """Number of answers to all operators until `at_s` (CLOCK_MONOTONIC), by kind; pieces of streams count too."""

    at_s: float
    answers: dict[str, int]


class Operators:
    """The operators' process, for a measurement."""

    def __init__(self, stage: Stage, port: int, large: str, small: Sequence[str]) -> None:
        self._program: Program = stage.start([*COMMAND, str(port), large, *small], name="operators")
        self._first: Report | None = None

    async def are_there(self) -> None:
        """Return once every stream is open, and every kind of request was answered. Raises `Broken`."""
        self._first = await self._report(lambda report: all(report.answers.values()))

    async def answers_per_s(self) -> float:
        """Return the answers a second since `are_there` returned. Raises `Broken`, also if the process has ended."""
        assert self._first
        now_s = time.monotonic()
        last = await self._report(lambda report: report.at_s > now_s)
        answered = sum(last.answers.values()) - sum(self._first.answers.values())
        return answered / (last.at_s - self._first.at_s)

    async def _report(self, is_wanted: Callable[[Report], bool]) -> Report:
        deadline_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline_s:
            for report in self._reports():
                if is_wanted(report):
                    return report
            await asyncio.sleep(0.05)
        raise Broken(f"the operators were not answered within {TIMEOUT_S:g} s: {self._program.text()[-LOG_TAIL:]}")

    def _reports(self) -> list[Report]:
        text = self._program.text()
        if self._program.exit_code is not None:
            raise Broken(f"the operators' process has ended with {self._program.exit_code}:\n{text}")
        lines = text.rpartition("\n")[0].splitlines()
        # Other lines are errors, after which the process ends.
        return [Report(**json.loads(line)) for line in lines if line.startswith("{")]


class Refused(Exception):
    """Error: an operator was refused, or a stream ended."""


class _Process:
    """All operators, on one event loop."""

    def __init__(self, port: int, large: str, small: Sequence[str]) -> None:
        self._base, self._large, self._small = f"http://127.0.0.1:{port}", large, small
        self._answers: Counter[str] = Counter()
        self._opening = asyncio.Semaphore(ADDRESSES)

    async def run(self) -> None:
        """Watch until the process is ended. Raises `Refused`."""
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(_client(number)) for number in range(ADDRESSES)]
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            client = cycle(clients)
            opened = []
            for kind, path in self._streams():
                opened.append(asyncio.Event())
                tasks.create_task(self._follow(next(client), kind, path, opened[-1]))
            for kind, addresses, pause_s in self._questions():
                tasks.create_task(self._ask(next(client), kind, addresses, pause_s))
            tasks.create_task(self._follow_large(tasks, clients))
            for each in opened:
                await each.wait()
            tasks.create_task(self._report())

    def _streams(self) -> list[tuple[str, str]]:
        """Return the kind and path of each stream that can be opened at once."""
        watched = [self._large] * WATCH_LARGE + list(self._small[:WATCH_SMALL])
        return [
            *[("watch", paths.WATCH)] * WATCH_ALL,
            *[("watch", f"{paths.WATCH}?run_id={quote(run_id, safe='')}") for run_id in watched],
            *[("events", paths.events_of(run_id)) for run_id in self._small],
        ]

    def _questions(self) -> list[tuple[str, list[str], float]]:
        """Return kind, paths to ask in turns, and the pause before the next request."""
        large, *small = (f"{paths.RUN_PAGE}{quote(run_id, safe='')}" for run_id in (self._large, *self._small))
        pages = [path for each in small for path in (paths.ROOT, large, each)]
        return [
            ("page", pages, PAUSE_S),
            ("plain page", [f"{path}?plain=0" for path in pages], PAUSE_S),
            ("page of events", [f"{paths.events_of(run_id)}?limit=100" for run_id in self._small], PAUSE_S),
            ("metrics", [paths.METRICS], SCRAPE_EVERY_S),
        ]

    async def _follow_large(self, tasks: asyncio.TaskGroup, clients: Sequence[aiohttp.ClientSession]) -> None:
        """Open the streams of the large run's events once the run exists."""
        while await self._status_of(clients[0], paths.events_of(self._large)) == 404:  # noqa: ASYNC110 - asks a server
            await asyncio.sleep(PAUSE_S)
        for _, client in zip(range(FOLLOW_LARGE), cycle(clients), strict=False):
            tasks.create_task(self._follow(client, "events", paths.events_of(self._large), asyncio.Event()))

    async def _status_of(self, client: aiohttp.ClientSession, path: str) -> int:
        async with client.get(self._base + path) as answer:
            return answer.status

    async def _follow(self, client: aiohttp.ClientSession, kind: str, path: str, opened: asyncio.Event) -> None:
        async with AsyncExitStack() as stack:
            async with self._opening:
                answer = await stack.enter_async_context(self._answered(client, path, {"Accept": paths.STREAM_TYPE}))
            opened.set()
            async for _ in answer.content.iter_any():
                self._answers[f"stream of {kind}"] += 1
        raise Refused(f"the stream {path} has ended")

    async def _ask(self, client: aiohttp.ClientSession, kind: str, addresses: Sequence[str], pause_s: float) -> None:
        for path in cycle(addresses):
            async with self._answered(client, path, HTML) as answer:
                await answer.read()
            self._answers[kind] += 1
            await asyncio.sleep(pause_s)

    @asynccontextmanager
    async def _answered(
        self, client: aiohttp.ClientSession, path: str, headers: dict[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        async with client.get(self._base + path, headers=headers, allow_redirects=False) as answer:
            if answer.status != 200:
                raise Refused(f"{path}: {answer.status} {(await answer.text())[:200]}")
            yield answer

    async def _report(self) -> None:
        kinds = ["stream of watch", "stream of events", *(kind for kind, _, _ in self._questions())]
        while True:
            print(
                json.dumps(asdict(Report(time.monotonic(), {kind: self._answers[kind] for kind in kinds}))), flush=True
            )
            await asyncio.sleep(1.0)


def _client(number: int) -> aiohttp.ClientSession:
    """Return a client with an address of its own and no limit of streams."""
    connector = aiohttp.TCPConnector(limit=0, local_addr=(f"127.0.3.{number + 1}", 0))
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))


def _check(small: Sequence[str]) -> None:
    """Raise `Refused` if the server cannot accept all streams of the operators."""
    watchers, followers = WATCH_ALL + WATCH_LARGE + min(WATCH_SMALL, len(small)), FOLLOW_LARGE + len(small)
    if watchers > MOST_WATCHERS or watchers > ADDRESSES * (MOST_WATCHERS // 2):
        raise Refused(f"{watchers} would watch, and a server lets {MOST_WATCHERS}, half of them from one address")
    if followers > MOST_STREAMS:
        raise Refused(f"{followers} would follow events, and a server lets {MOST_STREAMS}")


async def main(port: int, large: str, small: Sequence[str]) -> None:
    """Watch until the process is ended. Raises `Refused`, or an error of the connection to the server."""
    _check(small)
    await _Process(port, large, small).run()


if __name__ == "__main__":
    os.nice(19)
    try:
        asyncio.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
    except* (Refused, aiohttp.ClientError, OSError) as troubles:
        sys.exit(f"operators: {troubles.exceptions[0]}")
