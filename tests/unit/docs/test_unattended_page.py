"""README.md: its figures of a year of faults are those of docs/explanation/unattended.md."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/explanation/unattended.md").read_text()
README = " ".join((ROOT / "README.md").read_text().split())


def row(begin: str) -> list[str]:
    """Cells of the line of a table that begins so."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith(begin)]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_simulated_year() -> None:
    _, _, _, faults, persons, ettr, _, below, _ = row("| 1,024 | node-agent, 2 % spares, checks | 348 |")
    assert persons == "0"
    assert f"{faults} faults hit the run, no person was needed, and it trained for {ettr} of the time" in README
    assert f"{below.removeprefix('-')} points below the ideal" in README
    _, _, _, _, persons, ettr, *_ = row("| 1,024 | torchrun, retry loop, 10 min time-out |")
    times = persons.partition(",")[0]
    assert f"torchrun in a retry loop needed a person {times} times, and trained for {ettr}" in README


def test_the_real_processes() -> None:
    injected, survived = (row(f"| faults {what} |")[1] for what in ("injected", "survived before a person was needed"))
    assert f"survived {survived} of {injected} faults" in README
    named, of = re.fullmatch(r"(\d+) of (\d+)", row("| root cause named right |")[1]).groups()  # type: ignore[union-attr]
    assert named == of, "it named each"
