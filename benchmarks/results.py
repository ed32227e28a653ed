"""Rows of measurements, as a table and as JSON."""

import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from benchmarks.launchers import OURS, STOCK, TORCHRUN_ETCD, TORCHRUN_LEAST_TIMERS, TORCHRUN_OWN_STORE

NEVER = math.inf
"""Sample of an event that did not happen before the cap."""
FLOOR = "floor: "
"""Beginning of the subject of a row that is a lower bound for every launcher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Samples of one subject.

    `bar`: most that the median should be; with `at_least`, the least. `cap`: time after which a sample is not awaited
    any more. `trouble`: why there are no samples, or no more; `is_absent`: this machine lacks what the measurement
    needs.
    """

    measurement: str
    subject: str
    unit: str
    samples: Sequence[float]
    bar: float | None = None
    at_least: bool = False
    cap: float | None = None
    trouble: str = ""
    is_absent: bool = False

    @property
    def is_met(self) -> bool | None:
        """Whether the median meets the bar; None without a bar or samples."""
        if self.bar is None or not self.samples:
            return None
        middle = median(self.samples)
        return middle >= self.bar if self.at_least else middle <= self.bar

    @property
    def median(self) -> str:
        """Median as text; empty without samples."""
        return self._said(median)

    @property
    def said_bar(self) -> str:
        return "" if self.bar is None else f"{'≥' if self.at_least else '≤'} {figure(self.bar, self.unit)}"

    @property
    def verdict(self) -> str:
        return {None: "", True: "met", False: "MISSED"}[self.is_met]

    @property
    def short_trouble(self) -> str:
        """First line of the trouble."""
        return self.trouble.partition("\n")[0]

    def as_json(self) -> dict[str, Any]:
        """Return plain values; None for an event that did not happen before the cap."""
        figures = {name: _finite(of(self.samples)) if self.samples else None for name, of in _FIGURES.items()}
        samples = [_finite(sample) for sample in self.samples]
        return {**asdict(self), **figures, "n": len(samples), "met": self.is_met, "samples": samples}

    def cells(self) -> list[str]:
        figures = [self._said(of) for of in _FIGURES.values()]
        verdict = self.short_trouble or self.verdict
        return [self.measurement, self.subject, *figures, str(len(self.samples)), self.said_bar, verdict]

    def _said(self, of: Callable[[Sequence[float]], float]) -> str:
        if not self.samples:
            return ""
        value = of(self.samples)
        return f"> {figure(self.cap or value, self.unit)}" if value == NEVER else figure(value, self.unit)


def times(samples: Sequence[float], floor: Sequence[float]) -> list[float]:
    """Return each sample as a multiple of the floor of the same turn, which a busy moment affects as well."""
    return [each / least for each, least in zip(samples, floor, strict=False)]


def note(text: str) -> None:
    """Print the progress of a benchmark on stderr."""
    print(f"benchmarks: {text}", file=sys.stderr, flush=True)


def write_json(path: str | None, **found: Any) -> None:
    """Write the results as JSON, if a path is given."""
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=2)
            file.write("\n")


def table(rows: Iterable[Row]) -> str:
    """Return the rows as text in columns, with figures aligned on the right."""
    heading = ["measurement", "subject", "median", "min", "max", "n", "bar", ""]
    lines = [heading, *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_line(cells, widths) for cells in lines)


def figure(value: float, unit: str) -> str:
    """Return a figure with about three digits and its unit: `84 ms` for 0.084 s."""
    for factor, smaller in _SMALLER.get(unit, ()):
        if 0 < value < 1:
            value, unit = value * factor, smaller
    is_whole = value >= 100 or math.isclose(value, round(value))
    return f"{value:.0f} {unit}" if is_whole else f"{value:.2f} {unit}" if value < 10 else f"{value:.1f} {unit}"


_SMALLER = {"s": ((1e3, "ms"), (1e3, "µs"))}
_FIGURES: dict[str, Callable[[Sequence[float]], float]] = {"median": median, "min": min, "max": max}


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    to_the_right = range(2, 6)
    padded = (
        cell.rjust(width) if index in to_the_right else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join(padded).rstrip()


def _finite(value: float) -> float | None:
    return None if value == NEVER else value


TORCHRUNS = tuple(form.name for form in (STOCK, TORCHRUN_OWN_STORE, TORCHRUN_ETCD, TORCHRUN_LEAST_TIMERS))


@dataclass(slots=True)
class Line:
    """Rows of one measurement. `rows`: by subject."""

    title: str
    rows: dict[str, Row] = field(default_factory=dict)
    floor: Row | None = None

    @property
    def ours(self) -> Row | None:
        return self.rows.get(OURS)

    @property
    def is_compared(self) -> bool:
        """Whether ours stands beside a bar, torchrun or the floor."""
        return bool(self.floor or self.torchruns or (self.ours and self.ours.bar is not None))

    @property
    def torchruns(self) -> list[Row]:
        return [self.rows[name] for name in TORCHRUNS if name in self.rows]


def lines(rows: Iterable[Row]) -> list[Line]:
    """Return the table's lines. A subject without a column of its own has a separate line, as if it were ours."""
    found: dict[str, Line] = {}
    for row in rows:
        if row.subject.startswith(FLOOR):
            found.setdefault(row.measurement, Line(row.measurement)).floor = row
        elif row.subject in (OURS, *TORCHRUNS):
            found.setdefault(row.measurement, Line(row.measurement)).rows[row.subject] = row
        else:
            title = f"{row.measurement}: {row.subject}"
            found.setdefault(title, Line(title)).rows[OURS] = row
    return list(found.values())
