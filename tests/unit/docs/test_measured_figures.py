"""Figures of pages that people write: those of the page that benchmarks write."""

import re
from math import ceil
from pathlib import Path

import pytest

from rdzv_server.http.listener import AGENT_BYTES, TLS_AGENT_BYTES

DOCS = Path(__file__).parents[3] / "docs"
SIZING = (DOCS / "reference/sizing.md").read_text()
WARM = " ".join((DOCS / "how-to/warm-workers.md").read_text().split())
ROWS = (DOCS / "explanation/performance/all-rows.md").read_text()


def measured(what: str, of: str = "") -> str:
    """Return the median of a row; with `of`, in the table of all samples."""
    begin = rf"^{re.escape(what)} +{re.escape(of)} {{2,}}" if of else rf"^\| {re.escape(what)} \| \*\*"
    (median,) = re.findall(rf"{begin}([\d.]+ [^ *]+(?: [^ *]+)*?)(?:\*\*|  )", ROWS, re.MULTILINE)
    return str(median)


def bar(what: str) -> str:
    """Return the most that the benchmarks allow for a row. The median must not be higher."""
    (row,) = re.findall(rf"^\| {re.escape(what)} \| \*\*[^|]+\*\* \| ≤ ([^|]+) \| (\w+) \|", ROWS, re.MULTILINE)
    most, verdict = row
    assert verdict == "met", what
    return str(most)


def cells(begin: str) -> list[str]:
    (line,) = [line for line in SIZING.splitlines() if line.startswith(f"| {begin} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


SIZES = {256: "1 to 256", 1_000: "1,000", 10_000: "10,000"}


@pytest.mark.parametrize("nodes", SIZES)
def test_the_page_about_sizes_has_what_the_benchmarks_allow_and_what_the_server_counts(nodes: int) -> None:
    *_, plain, tls, _, round_within = cells(SIZES[nodes])
    assert round_within == bar(f"swarm round: {nodes} nodes")
    (empty_mb,) = re.findall(r"without runs the process takes up to (\d+) MB", SIZING)
    for cell, agent_bytes in ((plain, AGENT_BYTES), (tls, TLS_AGENT_BYTES)):
        assert cell == f"{ceil(int(empty_mb) / 10 + nodes * agent_bytes / 1e7) * 10} MB"
    measured_kb = measured(f"swarm memory, a node: {nodes} nodes").removesuffix(" kB")
    assert float(measured_kb) <= AGENT_BYTES / 1_000


def test_the_page_about_sizes_has_what_the_benchmarks_allow_an_agent_and_an_idle_server() -> None:
    assert f"takes up to {bar('memory of an agent')} of memory" in SIZING
    _, cores, *_ = cells(SIZES[10_000])
    assert cores.endswith(f"up to {bar('swarm idle: 10000 nodes').removesuffix(' of a core')} of it when idle")


def test_the_gain_of_warm_workers_is_that_which_was_measured() -> None:
    what = "worker killed, 2 × 2, torch imported"
    warm, cold, torchrun = (measured(what, of) for of in ("node-agent", "node-agent, cold", "torchrun"))
    assert f"was {warm} warm, {cold} cold, and {torchrun} under torchrun" in WARM
