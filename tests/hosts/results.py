"""Recoveries that the tests measure, and the table of them in docs/explanation/failures.md."""

import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

STARTING_S = 5.0
"""Seconds that a busy machine may need to start interpreters, in addition to the rules' time. Only for the tests."""
INTERPRETER_S = 0.15
"""Seconds in which an idle machine starts an interpreter with an agent's imports."""

HEAD = """\
| fault | back at work after | allowed | because | steps again |
|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Recovery:
    """One fault, and how long it took until all expected workers worked."""

    fault: str
    took_s: float
    allowed_s: float
    because: str
    """Parts of the allowed time."""
    steps_again: int | None = None
    """The most steps that were repeated, None if the workers do not count."""

    def check(self) -> None:
        limit_s = self.allowed_s + STARTING_S
        if self.took_s > limit_s:  # how busy is the machine now?
            limit_s = self.allowed_s + STARTING_S * max(1.0, _interpreters_start_s() / INTERPRETER_S)
        assert self.took_s <= limit_s, f"{self.fault}: {self.took_s:.1f} s, allowed {self.allowed_s:g} s"

    def as_property(self) -> dict[str, Any]:
        """Return plain values to pass between pytest's processes."""
        return asdict(self)


def _interpreters_start_s() -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import asyncio, msgspec, ssl"], check=True)
    return time.monotonic() - began


def table(recoveries: Iterable[Recovery]) -> str:
    """Return a Markdown table with a row for each fault, in the order in which they come, over several runs."""
    rows: dict[str, list[Recovery]] = defaultdict(list)
    for recovery in recoveries:
        rows[recovery.fault].append(recovery)
    return HEAD + "".join(_row(runs) for runs in rows.values())


def _row(runs: list[Recovery]) -> str:
    first, took = runs[0], [run.took_s for run in runs]
    steps = [run.steps_again for run in runs if run.steps_again is not None]
    cells = (
        first.fault,
        f"{median(took):.1f} s" + (f", at most {max(took):.1f} s" if len(runs) > 1 else ""),
        f"{first.allowed_s:g} s",
        first.because,
        str(max(steps)) if steps else "",
    )
    return f"| {' | '.join(cells)} |\n"
