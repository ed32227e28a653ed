"""The rows as a part of a page: what stands between the two markers, and the plots beside it."""

import html
import os
from collections.abc import Iterable, Sequence

from benchmarks import plots
from benchmarks.results import FLOOR, TORCHRUNS, Line, Row, lines, table

BEGIN, END = (f"<!-- benchmarks: {which} -->" for which in ("begin", "end"))
COLUMNS = ("what", "node-agent", "bar", "", *TORCHRUNS, "floor")
PART = """{begin}
<!-- Made by `python -m benchmarks --write`; what is changed here by hand is lost. -->

Measured on {machine}. Medians.

{plots}

{table}

<details><summary>Every row, also those that stand beside nothing, with its least and its most</summary>

<pre>
{rows}
</pre>

</details>
{end}"""


class Unwritable(Exception):
    """The page is not there, or has not the two markers."""


def check(path: str) -> None:
    """Raise `Unwritable` before anything is measured in vain."""
    _split(path)


def write(path: str, rows: Sequence[Row], machine: str) -> None:
    """Replace what stands between the markers, and draw the plots into the folder of the page's name."""
    before, after = _split(path)
    folder = os.path.splitext(path)[0]
    os.makedirs(folder, exist_ok=True)
    drawn = plots.draw(folder, rows)
    with open(path, "w", encoding="utf-8") as file:
        file.write(before + part(rows, machine, [f"{os.path.basename(folder)}/{name}" for name in drawn]) + after)


def part(rows: Sequence[Row], machine: str, images: Iterable[str]) -> str:
    """Markdown, with its markers."""
    return PART.format(
        begin=BEGIN,
        end=END,
        machine=machine,
        plots="\n\n".join(f"![{_alt(image)}]({image})" for image in images),
        table="\n".join(_markdown([line for line in lines(rows) if line.is_compared])),
        rows=html.escape(table(rows), quote=False),
    )


def _split(path: str) -> tuple[str, str]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise Unwritable(f"{path}: {error.strerror}") from None
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise Unwritable(f"{path} needs the lines {BEGIN} and {END}")
    return before, after


def _markdown(compared: Sequence[Line]) -> list[str]:
    rule = ["---" if name in ("what", "") else "---:" for name in COLUMNS]
    return [_line(cells) for cells in (COLUMNS, rule, *map(_cells, compared))]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(html.escape(cell, quote=False).replace('|', '&#124;') for cell in cells)} |"


def _cells(line: Line) -> list[str]:
    theirs = [_figure(line.rows.get(name)) for name in TORCHRUNS]
    return [line.title, _ours(line.ours), *_bar(line.ours), *theirs, _floor(line.floor)]


def _ours(row: Row | None) -> str:
    return f"**{_figure(row)}**" if row else ""


def _figure(row: Row | None) -> str:
    """Also in words, where there is none."""
    return "" if row is None else row.median or f"not measured: {row.short_trouble}"


def _bar(row: Row | None) -> tuple[str, str]:
    return (row.said_bar, row.verdict) if row else ("", "")


def _floor(row: Row | None) -> str:
    return f"{_figure(row)} ({row.subject.removeprefix(FLOOR)})" if row else ""


def _alt(image: str) -> str:
    return os.path.splitext(os.path.basename(image))[0].replace("-", " ")
