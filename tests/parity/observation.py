"""What a scenario saw, and the words for it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


class Broken(Exception):
    """The scenario did not come to the point where it looks; with the end of what the programs wrote."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One run of a scenario. `right`: whether it ended as a user may expect; `saw`: in a few words, with figures.

    `took_s` is said where `saw` has `{took}`, so that runs which differ in nothing else can be told together.
    """

    right: bool
    saw: str
    took_s: float | None = None
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """What the runs of one scenario under one launcher came to. `broken`: runs that could not be observed, and why."""

    launcher: str
    variant: str
    is_ours: bool
    runs: Sequence[Observation]
    broken: Sequence[str] = ()
    took_s: float = 0.0

    @property
    def wrong(self) -> int:
        return sum(not run.right for run in self.runs)

    @property
    def verdict(self) -> str:
        if not self.runs:
            return "could not be measured"
        ours, theirs = ("WRONG", "defect shown") if self.wrong else ("right", "not shown")
        words = ours if self.is_ours else theirs
        return words if len(self.runs) == 1 else f"{words} ({self._count()})"

    def _count(self) -> str:
        if self.is_ours and not self.wrong:
            return f"{len(self.runs)} of {len(self.runs)}"
        return f"{self.wrong} of {len(self.runs)}"

    def saw(self) -> list[str]:
        """What was seen; of several runs each once, with how often where that was more than once."""
        seen: dict[str, list[float]] = {}
        for run in self.runs:
            seen.setdefault(run.saw, []).append(run.took_s or 0.0)
        told = [_times(len(taken)) + _told(text, taken) for text, taken in seen.items()]
        return [*told, *(f"{_times(self.broken.count(why))}{why}" for why in dict.fromkeys(self.broken))]

    def as_json(self) -> dict[str, Any]:
        return {
            "launcher": self.launcher,
            "variant": self.variant,
            "verdict": self.verdict,
            "wrong": self.wrong,
            "seconds": round(self.took_s, 1),
            "runs": [{"right": run.right, "saw": told(run), "took_s": run.took_s, **run.figures} for run in self.runs],
            "broken": list(self.broken),
        }


def codes(values: Sequence[int | None]) -> str:
    """Exit codes in words: `0, 1, still running`."""
    return ", ".join("still running" if value is None else str(value) for value in values)


def told(run: Observation) -> str:
    """What one run saw."""
    return _told(run.saw, [run.took_s or 0.0])


def _told(text: str, taken: Sequence[float]) -> str:
    ends = dict.fromkeys(map(_figure, (min(taken), max(taken))))
    return text.replace("{took}", f"{' to '.join(ends)} s")


def _figure(value_s: float) -> str:
    return f"{value_s:.0f}" if value_s >= 20 else f"{value_s:.1f}" if value_s >= 1 else f"{value_s:.2f}"


def _times(count: int) -> str:
    return "" if count == 1 else f"{count} × "
