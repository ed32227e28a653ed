"""A run over time as text: a lane of characters for each thing that its time went into, its events and its pace."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from time import localtime, strftime
from typing import NamedTuple

from rdzv_protocol.text import age, printable

from rdzvctl import words
from rdzvctl.answers import Fields
from rdzvctl.views.tables import Table

BARS, PLAIN_BARS = " ▁▂▃▄▅▆▇█", " ..:-=+*#"
"""Characters for shares of a column's time, from none to all; the second for terminals without the first."""
EVENTS = {"fault": "x", "action": "a", "notice": "n", "warning": "!", "server": "s", "node": "+"}
"""Marks of events, the most important first: a column has room for one."""
LANES = ("forming", "running", "checkpointing", "standing still", "lost work")
PACE, HAPPENED = "steps a second", "events"
LABEL = max(map(len, (*LANES, PACE, HAPPENED))) + 2
TOTAL = 12
"""Characters for what stands behind a lane."""
NARROWEST = 20
"""Fewest columns of the lanes, however narrow the terminal is."""
BETWEEN_TIMES = 4
"""Fewest blanks between two times below the lanes."""


class Span(NamedTuple):
    """Part of the time that went into one thing: all of it, or a share."""

    begin: float
    end: float
    share: float = 1.0


class Picture(NamedTuple):
    """The time of a run in columns of equal length."""

    begin: float
    end: float
    columns: int

    def lane(self, spans: Iterable[Span], bars: str) -> str:
        """Return a character for each column, for the share of its time that is in the spans."""
        shares = [0.0] * self.columns
        width = (self.end - self.begin) / self.columns
        for span in spans:
            first, last = self.column(span.begin), self.column(span.end)
            for column in range(first, last + 1):
                begin, end = self.begin + column * width, self.begin + (column + 1) * width
                shares[column] += max(0.0, min(end, span.end) - max(begin, span.begin)) * span.share / width
        return "".join(_bar(share, bars) for share in shares)

    def column(self, at: float) -> int:
        share = (at - self.begin) / (self.end - self.begin)
        return min(self.columns - 1, max(0, int(share * self.columns)))


def _bar(share: float, bars: str) -> str:
    """Return the character for a share. The smallest share is visible, and rounding does not hide a gap."""
    if share <= 1e-9:
        return bars[0]
    return bars[min(len(bars) - 1, max(1, int(share * (len(bars) - 1) + 1e-6)))]


def lines(run: Fields, width: int, *, is_plain: bool = False) -> Iterator[str]:
    """Yield the picture, at most `width` characters wide. `is_plain`: whether it has only characters of ASCII."""
    bars = PLAIN_BARS if is_plain else BARS
    begin, end = run["created_at"], max(run["ended_at"] or run["now"], run["created_at"] + 1e-3)
    picture = Picture(begin, end, max(NARROWEST, width - LABEL - TOTAL))
    spent = {lane: [*_spans(run, lane, end)] for lane in LANES}
    samples = _timed(run["samples"])
    for lane, spans in spent.items():
        seconds = sum((span.end - span.begin) * span.share for span in spans)
        yield _row(lane, picture.lane(spans, bars), age(seconds) if seconds >= 0.5 else "-")
    yield _row(HAPPENED, _events(run["marks"], picture))
    if fastest := max((sample["steps_per_s"] or 0.0 for sample in samples), default=0.0):
        paces = (span._replace(share=span.share / fastest) for span in _paces(samples))
        yield _row(PACE, picture.lane(paces, bars), words.events.up_to(fastest))
    yield _row("", _times(picture))


def _timed(things: Iterable[Fields]) -> list[Fields]:
    """Return the samples, or marks, that have a time."""
    return [each for each in things if each["at"] is not None]


def _row(label: str, text: str, total: str = "") -> str:
    return f"{label:{LABEL}}{text}  {total}".rstrip()


def _spans(run: Fields, lane: str, now: float) -> Iterator[Span]:
    """Yield the parts of the run's time that went into a lane."""
    for each in run["rounds"]:
        begin, end, started_at = each["opened_at"], each["ended_at"] or now, each["started_at"]
        if each["first"] != each["last"]:  # merged rounds have only their seconds in each lane
            yield Span(begin, end, _seconds(each)[lane] / max(end - begin, 1e-3))
        elif started_at is None:
            yield from [Span(begin, end)] if lane == "forming" else []
        elif lane == "checkpointing":
            saved = (sample for sample in _timed(run["samples"]) if sample["round"] == each["first"])
            yield from (Span(one["at"] - one["checkpointing_s"], one["at"]) for one in saved)
        else:
            stood_at = end - each["detecting_s"]
            parts = {
                "forming": Span(begin, started_at), "running": Span(started_at, end),
                "standing still": Span(stood_at, end), "lost work": Span(stood_at - each["lost_s"], stood_at),
            }  # fmt: skip
            yield parts[lane]


def _seconds(each: Fields) -> Mapping[str, float]:
    return {
        "forming": each["forming_s"] + each["waiting_s"], "running": each["running_s"],
        "checkpointing": each["checkpointing_s"], "standing still": each["detecting_s"], "lost work": each["lost_s"],
    }  # fmt: skip


def _paces(samples: Sequence[Fields]) -> Iterator[Span]:
    """Yield the steps a second between neighbouring samples of a round."""
    for before, sample in pairwise(samples):
        if sample["steps_per_s"] is not None:
            yield Span(before["at"], sample["at"], sample["steps_per_s"])


def _events(marks: Iterable[Fields], picture: Picture) -> str:
    order, shown = [*EVENTS], [" "] * picture.columns
    for mark in sorted(_timed(marks), key=lambda mark: -order.index(mark["lane"])):
        shown[picture.column(mark["at"])] = EVENTS[mark["lane"]]
    return "".join(shown)


def _times(picture: Picture) -> str:
    """Return the times of some columns, each beginning at its column."""
    sample, text = _time(picture.begin), ""
    count = max(1, picture.columns // (len(sample) + BETWEEN_TIMES))
    for index in range(count):
        column = index * picture.columns // count
        at = picture.begin + column * (picture.end - picture.begin) / picture.columns
        text = f"{text:{column}}{_time(at)}"
    return text


def _time(at: float) -> str:
    return strftime("%H:%M:%S", localtime(at))


def stamp(at: float) -> str:
    return strftime("%Y-%m-%d %H:%M:%S", localtime(at))


def events_table(marks: Iterable[Fields]) -> Table:
    """Return the table of the marks in order: time, mark in the picture, and event."""
    return Table(("WHEN", "MARK", "EVENT", "NODE"), [
        (stamp(mark["at"]), EVENTS[mark["lane"]], _sentence(mark), _node(mark)) for mark in _timed(marks)
    ])  # fmt: skip


def _sentence(mark: Fields) -> str:
    until = _time(mark["until"]) if mark["until"] - mark["at"] >= 1 else ""
    return words.events.mark(mark["kind"].replace("_", " "), mark["count"], until)


def _node(mark: Fields) -> str:
    if mark["node_id"] is None:
        return "-"
    return printable(words.events.first_node(mark["node_id"]) if mark["count"] > 1 else mark["node_id"])
