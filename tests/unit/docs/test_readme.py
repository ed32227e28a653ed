"""README.md: short, and its figures are those of the pages that benchmarks write."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "README.md").read_text()
README = " ".join(TEXT.split())
YEAR = (ROOT / "docs/explanation/unattended.md").read_text()
PERFORMANCE = (ROOT / "docs/explanation/performance.md").read_text()


def row(page: str, begin: str) -> list[str]:
    """Cells of the line of a table that begins so."""
    (line,) = [line for line in page.splitlines() if line.startswith(begin)]
    return [cell.strip(" *").replace("&gt; ", "") for cell in line.strip("|").split("|")]


def test_the_readme_is_short() -> None:
    assert len(TEXT.splitlines()) < 120


def test_the_rows_beside_torchrun() -> None:
    rows = {
        "| A worker is killed": "| worker killed, 2 × 2 |",
        "| A node is killed": "| node killed, 1:2, workers notice |",
        "| A new node takes": "| lost node replaced, 2:2 |",
        "| The rendezvous server": "| coordinator killed, workers that end |",
    }
    for shown, measured in rows.items():
        _, ours, torchruns = row(TEXT, shown)
        _, our_median, as_it_comes, at_its_best, _ = row(PERFORMANCE, measured)
        assert ours == our_median
        figures = re.findall(r"[\d.]+ (?:ms|s|of \d)(?= |;|$)", torchruns)
        assert figures in ([as_it_comes], [as_it_comes, at_its_best]), shown


def test_the_simulated_year() -> None:
    _, _, _, _, persons, ettr, *_ = row(YEAR, "| 1,024 | node-agent, 2 % spares, checks | 348 |")
    assert persons == "0"
    assert f"on 1,024 nodes, node-agent trained for {ettr} of the time and needed no person" in README
    _, _, _, _, persons, ettr, *_ = row(YEAR, "| 1,024 | torchrun, retry loop, 10 min time-out |")
    times = persons.partition(",")[0]
    assert f"torchrun in a retry loop trained for {ettr} and needed a person {times} times" in README


def test_the_readmes_survived_faults_match_the_page() -> None:
    injected = row(YEAR, "| faults injected |")
    survived = row(YEAR, "| faults survived before a person was needed |")
    _, ours, torchruns = row(TEXT, "| [Real processes")
    assert ours == f"{survived[1]} of {injected[1]}"
    assert torchruns == f"{survived[2]} of {injected[2]} in a retry loop"
