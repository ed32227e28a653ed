"""Cost of what operators look at: to whoever opens a page, and to the agents of a busy server, which should be none."""

import asyncio
import time
from collections.abc import Iterator
from urllib.request import Request, urlopen

from rdzv_protocol import paths

from benchmarks import neighbours
from benchmarks.launchers import OURS, NodeAgent, Plan
from benchmarks.machine import on_cpu
from benchmarks.neighbours import Beside
from benchmarks.results import Row
from benchmarks.stage import Stage, free_port
from benchmarks.swarm import NODES_CPU, RUN_ID, SERVER_CPU, Swarm

NODES = 1_000
SMALL_RUNS = 200
PAGE_BAR_MS, SIZE_BAR_KB = 300.0, 1_000.0
REPEAT = 20


def measure(plan: Plan) -> list[Row]:
    """Measure the page of a run of 1,000 nodes; then neighbours beside 200 runs, without operators and with."""
    cases = [Beside(plan.nodes, SMALL_RUNS, is_watched) for is_watched in (False, True)]
    return [*_page(min(REPEAT, 2 * plan.repeat), min(NODES, plan.nodes)), *neighbours.compare(plan, cases)]


def _page(repeat: int, nodes: int) -> Iterator[Row]:
    """Rows about the page: milliseconds and kilobytes."""
    with Stage() as stage:
        port = free_port()
        with on_cpu(SERVER_CPU):
            stage.start(NodeAgent().server(port, stage.folder))
        stage.wait_for_port(port)
        with on_cpu(NODES_CPU):
            pages, documents = asyncio.run(_open(port, repeat, nodes))
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


async def _open(port: int, repeat: int, nodes: int) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Milliseconds and kilobytes of the page, and of the document that it shows first, as often."""
    swarm = Swarm(nodes, port)
    await swarm.join()
    ask = [f"http://127.0.0.1:{port}{path}" for path in (f"{paths.RUN_PAGE}{RUN_ID}", f"{paths.WATCH}?run_id={RUN_ID}")]
    opened = [[await asyncio.to_thread(_read, url) for url in ask] for _ in range(repeat + 1)][1:]  # jinja2 is there
    swarm.close()
    return [page for page, _ in opened], [document for _, document in opened]


def _read(url: str) -> tuple[float, float]:
    """Milliseconds until all of it is there, which of a stream is until its first number, and kilobytes."""
    began_s, size = time.monotonic(), 0
    with urlopen(Request(url, headers={"Accept": "text/html"}), timeout=60) as answer:
        for line in answer:
            size += len(line)
            if line.startswith(b"id: "):
                break
    return 1e3 * (time.monotonic() - began_s), size / 1e3
