"""What a measurement brings, as a table and as JSON."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

NEVER = math.inf
"""A sample that did not come about before the cap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Samples of one subject. `bar`: what the median should stay below. `cap`: where waiting for a sample ends."""

    measurement: str
    subject: str
    unit: str
    samples: Sequence[float]
    bar: float | None = None
    cap: float | None = None

    @property
    def is_met(self) -> bool | None:
        """Whether the median is below the bar; None without one."""
        return None if self.bar is None else median(self.samples) < self.bar

    def as_json(self) -> dict[str, Any]:
        """Plain values; None for a sample that did not come about before the cap."""
        figures = {"median": median(self.samples), "min": min(self.samples), "max": max(self.samples)}
        return {
            "measurement": self.measurement,
            "subject": self.subject,
            "unit": self.unit,
            **{name: _finite(value) for name, value in figures.items()},
            "n": len(self.samples),
            "bar": self.bar,
            "met": self.is_met,
            "cap": self.cap,
            "samples": [_finite(sample) for sample in self.samples],
        }

    def cells(self) -> list[str]:
        figures = (median(self.samples), min(self.samples), max(self.samples))
        bar = "" if self.bar is None else f"< {self.bar:g}"
        met = {None: "", True: "met", False: "MISSED"}[self.is_met]
        return [
            *(self.measurement, self.subject, *map(self._figure, figures)),
            *(self.unit, str(len(self.samples)), bar, met),
        ]

    def _figure(self, value: float) -> str:
        if value == NEVER:
            return f"> {self.cap:g}"
        return f"{value:.0f}" if value >= 100 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def table(rows: Iterable[Row]) -> str:
    """The rows in columns; figures to the right."""
    heading = ["measurement", "subject", "median", "min", "max", "unit", "n", "bar", ""]
    lines = [heading, *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_line(cells, widths) for cells in lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    to_the_right = range(2, 5)
    padded = (
        cell.rjust(width) if index in to_the_right else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join(padded).rstrip()


def _finite(value: float) -> float | None:
    return None if value == NEVER else value
