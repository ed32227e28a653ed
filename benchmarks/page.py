"""Pages of figures in the documentation: ten rows between two markers, and all rows on a page of their own."""

import html
import os
from collections.abc import Iterable, Sequence
from statistics import median

from benchmarks import plots
from benchmarks.results import FLOOR, TORCHRUNS, Line, Row, lines, table

BEGIN, END = (f"<!-- benchmarks: {which} -->" for which in ("begin", "end"))
ALL_ROWS = "all-rows.md"
HEADLINES = (
    "launch, 2 workers",
    "memory of an agent",
    "worker killed, 2 × 2",
    "worker killed, 2 × 2, torch imported",
    "node killed, 1:2, workers notice",
    "host silent, 1:2, --lease 2",
    "scale-up, 1:2",
    "lost node replaced, 2:2",
    "coordinator killed, workers that end",
    "swarm round: 10000 nodes",
)
"""Titles of the rows at the top of the page, if they were measured."""
MADE = "<!-- Made by `python -m benchmarks --write`; what is changed here by hand is lost. -->"
PART = """{begin}
{made}

| what | node-agent | torchrun | torchrun at its best | floor |
| --- | ---: | ---: | ---: | ---: |
{headlines}

Medians, measured on {machine}.
Every row, with its bar, its least and its most: [{folder}/{all_rows}]({folder}/{all_rows}).

{plots}
{end}"""
REST = """{made}

# Every row

Measured on {machine}. Medians; [the page before](../{page}) says what the rows and the columns are.

| {columns} |
| {rule} |
{table}

All samples, also those that stand beside nothing, with their least and their most:

<pre>
{rows}
</pre>
"""
COLUMNS = ("what", "node-agent", "bar", "", *TORCHRUNS, "floor")


class Unwritable(Exception):
    """Error: the page does not exist, or lacks the two markers."""


def check(path: str) -> None:
    """Raise `Unwritable` now rather than after the measurement."""
    split(path, BEGIN, END)


def split(path: str, begin: str, end: str) -> tuple[str, str]:
    """Return the page's text before and after the part between these lines. Raises `Unwritable`."""
    try:
        with open(path, encoding="utf-8") as file:
            before, found, rest = file.read().partition(begin)
    except OSError as error:
        raise Unwritable(f"{path}: {error.strerror}") from None
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise Unwritable(f"{path} needs the lines {begin} and {end}")
    return before, after


def write(path: str, rows: Sequence[Row], machine: str) -> None:
    """Replace the part between the markers. The page of all rows and the plots go to the folder of the page's name."""
    before, after = split(path, BEGIN, END)
    folder = os.path.splitext(path)[0]
    os.makedirs(folder, exist_ok=True)
    drawn = plots.draw(folder, rows)
    with open(os.path.join(folder, ALL_ROWS), "w", encoding="utf-8") as file:
        file.write(_rest(rows, machine, os.path.basename(path)))
    with open(path, "w", encoding="utf-8") as file:
        file.write(before + _part(rows, machine, os.path.basename(folder), drawn) + after)


def _part(rows: Sequence[Row], machine: str, folder: str, images: Iterable[str]) -> str:
    """Return the Markdown of the page's own part, with its markers."""
    by_title = {line.title: line for line in lines(rows)}
    return PART.format(
        begin=BEGIN,
        end=END,
        made=MADE,
        machine=machine,
        folder=folder,
        all_rows=ALL_ROWS,
        headlines="\n".join(_line(_headline(by_title[title])) for title in HEADLINES if title in by_title),
        plots="\n\n".join(f"![{_alt(image)}]({folder}/{image})" for image in images),
    )


def _rest(rows: Sequence[Row], machine: str, page: str) -> str:
    """Return the Markdown of the page of all rows."""
    return REST.format(
        made=MADE,
        machine=machine,
        page=page,
        columns=" | ".join(COLUMNS),
        rule=" | ".join("---" if name in ("what", "") else "---:" for name in COLUMNS),
        table="\n".join(_line(_cells(line)) for line in lines(rows) if line.is_compared),
        rows=html.escape(table(rows), quote=False),
    )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(html.escape(cell, quote=False).replace('|', '&#124;') for cell in cells)} |"


def _headline(line: Line) -> list[str]:
    """Return the cells of a headline: ours, torchrun with its defaults, torchrun at its best, and the floor."""
    stock, *others = (line.rows.get(name) for name in TORCHRUNS)
    best = min((row for row in others if row and row.samples), key=lambda row: median(row.samples), default=None)
    return [line.title, _ours(line.ours), _figure(stock), _figure(best), _figure(line.floor)]


def _cells(line: Line) -> list[str]:
    theirs = [_figure(line.rows.get(name)) for name in TORCHRUNS]
    return [line.title, _ours(line.ours), *_bar(line.ours), *theirs, _floor(line.floor)]


def _ours(row: Row | None) -> str:
    return f"**{_figure(row)}**" if row else ""


def _figure(row: Row | None) -> str:
    """Return the text of a row's figure, or why there is none."""
    return "" if row is None else row.median or f"not measured: {row.short_trouble}"


def _bar(row: Row | None) -> tuple[str, str]:
    return (row.said_bar, row.verdict) if row else ("", "")


def _floor(row: Row | None) -> str:
    return f"{_figure(row)} ({row.subject.removeprefix(FLOOR)})" if row else ""


def _alt(image: str) -> str:
    return os.path.splitext(os.path.basename(image))[0].replace("-", " ")
