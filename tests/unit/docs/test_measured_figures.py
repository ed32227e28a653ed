"""Figures of pages that people write: those of the page that benchmarks write."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"
SIZING = (DOCS / "reference/sizing.md").read_text()
WARM = " ".join((DOCS / "how-to/warm-workers.md").read_text().split())
ROWS = (DOCS / "explanation/performance/all-rows.md").read_text()


def measured(what: str, of: str = "") -> str:
    """Return the median of a row; with `of`, in the table of all samples."""
    begin = rf"^{re.escape(what)} +{re.escape(of)} {{2,}}" if of else rf"^\| {re.escape(what)} \| \*\*"
    (median,) = re.findall(rf"{begin}([\d.]+ [^ *]+(?: [^ *]+)*?)(?:\*\*|  )", ROWS, re.MULTILINE)
    return str(median)


def cells(begin: str) -> list[str]:
    (line,) = [line for line in SIZING.splitlines() if line.startswith(f"| {begin} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_sizes_are_those_that_were_measured() -> None:
    rounds = {nodes: measured(f"swarm round: {nodes} nodes") for nodes in (256, 1_000, 10_000)}
    *_, small = cells("1 to 256")
    *_, middle = cells("1,000")
    _, cores, memory, _, large = cells("10,000")
    assert (small, middle, large) == (f"{rounds[256]} (256 nodes)", rounds[1_000], rounds[10_000])
    assert cores.endswith(f"{measured('swarm idle: 10000 nodes').removesuffix(' of a core')} of it when idle")
    assert f"adds up to {measured('swarm memory, a node: 256 nodes')}." in SIZING
    assert f"takes {measured('memory of an agent')} of memory" in SIZING
    of_nodes_mb = float(measured("swarm memory, a node: 10000 nodes").removesuffix(" kB")) * 10
    assert abs(float(memory.removesuffix(" MB")) - (40 + of_nodes_mb)) < 5


def test_the_gain_of_warm_workers_is_that_which_was_measured() -> None:
    what = "worker killed, 2 × 2, torch imported"
    warm, cold, torchrun = (measured(what, of) for of in ("node-agent", "node-agent, cold", "torchrun"))
    assert f"was {warm} warm, {cold} cold, and {torchrun} under torchrun" in WARM
