"""Output of a command: tables and colours on a terminal, plain aligned lines in a pipe, JSON for scripts."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TextIO

from rdzv_protocol import words as protocol_words
from rdzv_protocol.states import TONE_OF, Tone

from rdzvctl import words
from rdzvctl.views.tables import Table

GAP = "  "
RICH_GAP = "   "
"""Space between two columns of a table that rich draws."""
LEAST = 12
"""Fewest characters for the first and the last column of a table on a terminal, unless their cells are shorter."""
COMMANDS = ("rdzvctl", "node-agent")
"""Programs whose commands are next steps."""
HEADING_LINES = 2
"""Lines of a table above its rows."""
MOST_FOLDED = 5
"""Most lines of a cell in the last column for which a table is not replaced by shorter records."""
COLOURS: Mapping[Tone, str] = {
    "bad": "red",
    "busy": "yellow",
    "calm": "cyan",
    "none": "",
    "done": "green",
    "good": "green",
}
ANSI = {"red": 31, "green": 32, "yellow": 33, "cyan": 36}
"""Codes of the colours."""
MOST_KEPT = 24
"""Most characters of a cell that a flat table keeps on any terminal; the last column is shortened first."""


class ReaderGone(BaseException):
    """The reader of stdout is gone. It is no `OSError`: that would count as a broken connection to a server."""


class OutputFailed(BaseException):
    """A write to stdout failed, for example because its disk is full. It is no `OSError`, as above."""


@contextmanager
def writing() -> Iterator[None]:
    """Raise `OutputFailed` if the block cannot write to stdout, or `BrokenPipeError` if the reader is gone."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputFailed(protocol_words.flags.cannot_write(str(error.strerror))) from None


def write(text: str, *, at_once: bool = False) -> None:
    """Write one line, or several, to stdout. `at_once`: whether to flush them."""
    with writing():
        print(text, flush=at_once)


def flush() -> None:
    """Write what stdout still buffers."""
    with writing():
        sys.stdout.flush()


class Output:
    """Destination of a command's output. `is_json`: whether it writes only documents and streams of JSON."""

    def __init__(self, environment: Mapping[str, str], *, is_json: bool = False) -> None:
        self.is_json = is_json
        self.is_terminal = sys.stdout.isatty()
        is_dumb = environment.get("TERM", "") in ("", "dumb")
        self.has_colours = self.is_terminal and not is_dumb and not environment.get("NO_COLOR")
        self.can_redraw = self.is_terminal and not is_dumb
        self._frame: list[str] | None = None
        """Lines of a screen that is not shown yet."""

    @property
    def has_blocks(self) -> bool:
        """Whether stdout can show characters that draw bars."""
        return (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")

    def end_with_reader(self) -> None:
        """Raise `ReaderGone` in the main thread when the reader of stdout is gone, even if nothing is written.

        Writing would find that out, but a command that follows something may have nothing to write for hours.
        """
        import select
        import signal
        import threading

        def reader_gone(*_: object) -> NoReturn:
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            raise ReaderGone

        def wait() -> None:
            if stdout.poll():
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGPIPE)

        if self.is_terminal:
            return
        signal.signal(signal.SIGPIPE, reader_gone)
        stdout = select.poll()
        stdout.register(sys.stdout.fileno(), 0)  # errors are reported even so, and a file has none
        threading.Thread(target=wait, daemon=True).start()

    def size(self) -> os.terminal_size:
        """Return the columns and lines of the terminal."""
        from shutil import get_terminal_size

        return get_terminal_size()

    def line(self, text: str = "", *, at_once: bool = False) -> None:
        """Write one line, or several. `at_once`: whether to flush them, for a reader of a stream."""
        if self._frame is None:
            write(text, at_once=at_once)
        else:
            self._frame += text.split("\n")

    def note(self, text: str) -> None:
        """Write one line for people to stderr, beside the output."""
        print(f"rdzvctl: {text}", file=sys.stderr)

    def progress(self, text: str) -> None:
        """Show what is in progress, as one line on a terminal that replaces the previous one; "" clears it."""
        if sys.stderr.isatty():
            shown = text[: max(0, self.size().columns - 1)]
            print(f"\r\x1b[K{shown}", end="", file=sys.stderr, flush=True)

    def paragraph(self, text: str) -> None:
        """Write the text, wrapped to the terminal's width; in a pipe on one line."""
        self.line(self._wrapped(text))

    def step(self, text: str) -> None:
        """Write a paragraph that may end with a command.

        The command is not broken, so that people can copy it, except on a screen that is redrawn.
        """
        before, command = _without_command(text)
        if command and self._frame is None and "\n" in self._wrapped(text):
            self.line(self._wrapped(before))
            self.line(f"{GAP}{command}")
        else:
            self.paragraph(text)

    def _wrapped(self, text: str) -> str:
        if not self.is_terminal:
            return text
        from textwrap import fill

        return fill(text, min(self.size().columns, 120), break_on_hyphens=False)

    def json(self, value: Any, *, in_one_line: bool = False) -> None:
        """Write a document, or one line of a stream, in ASCII, so that no text of a run moves a cursor."""
        import json

        write(json.dumps(value, indent=None if in_one_line else 2), at_once=in_one_line)

    def table(self, table: Table) -> None:
        self.line(self.drawn(table))

    def drawn(self, table: Table, *, is_flat: bool = False) -> str:
        """Return the table as text, by rich on a terminal if rich is installed.

        `is_flat`: whether each row is one line.
        """
        width = self.size().columns
        if is_flat:
            return self._flat(_shortened(table, width), width)
        if self.is_terminal and _is_too_wide(table, width):
            return as_records(table, width, self.has_colours)
        if self.is_terminal:
            with suppress(ImportError):
                return by_rich(table, width, self.has_colours)
        return aligned(table)

    def _flat(self, table: Table, width: int) -> str:
        """Return a table with one line for each row. On a narrow terminal the lines are cut at their end."""
        if self.is_terminal and sum(_widths(table)) + len(RICH_GAP) * (len(table.headings) - 1) <= width:
            with suppress(ImportError):
                return by_rich(table, width, self.has_colours)
        return "\n".join(_cut(line, width) for line in aligned(table).split("\n"))

    @property
    def room(self) -> int | None:
        """Number of lines left on the screen; None if there is no screen, and so room for everything."""
        return None if self._frame is None else max(1, self.size().lines - len(self._frame))

    # A screen that is redrawn.

    @contextmanager
    def screen(self) -> Iterator[None]:
        """Use the whole terminal until the block ends; then the last content is left below the command."""
        self._frame = []
        print("\x1b[?1049h\x1b[?25l", end="")
        try:
            yield
        finally:
            last, self._frame = self._frame, None
            print("\x1b[?25h\x1b[?1049l", *last, sep="\n", flush=True)

    def show(self, draw: Callable[[], None]) -> None:
        """Show what `draw` writes in place of the previous content, as much as the terminal has lines for."""
        self._frame = []
        draw()
        height = self.size().lines
        shown, more = self._frame, len(self._frame) - (height - 1)
        if more > 1:
            shown = [*self._frame[: height - 1], words.runs.more_lines(more)]
        print("\x1b[H" + "\n".join(f"{line}\x1b[K" for line in shown), end="\x1b[J", flush=True)


def _without_command(text: str) -> tuple[str, str]:
    """Return the text without the command that may follow its last colon, and the command; empty if there is none."""
    for program in COMMANDS:
        before, colon, rest = text.rpartition(f": {program} ")
        if colon:
            return f"{before}:", f"{program} {rest}"
    return text, ""


def _shortened(table: Table, width: int) -> Table:
    """Return the table with cells that leave as much room for the last column as there is within `width`."""
    rows = [tuple(_cut(cell, MOST_KEPT) for cell in row[:-1]) for row in table.rows]
    used = sum(_widths(Table(table.headings[:-1], rows))) + len(RICH_GAP) * len(table.headings[:-1])
    left = max(LEAST, width - used)
    lasts = (_cut(row[-1], left) for row in table.rows)
    return Table(table.headings, [(*row, last) for row, last in zip(rows, lasts, strict=True)])


def _widths(table: Table) -> list[int]:
    return [max(map(len, column)) for column in zip(table.headings, *table.rows, strict=True)]


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 1] + "…"


def aligned(table: Table) -> str:
    """Return the table with two spaces between its columns; the last column is not padded."""
    rows, widths = [table.headings, *table.rows], _widths(table)
    padded = (GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(padded)


def _is_too_wide(table: Table, width: int) -> bool:
    """Return whether the first and the last column, which may be folded, would have too little room.

    They also have too little if a cell of the last column folds into many lines, and records are shorter.
    """
    first, *middle, last = _widths(table)
    room = width - sum(middle) - len(RICH_GAP) * (len(middle) + 1)
    if min(first, LEAST) + min(last, LEAST) > room:
        return True
    left = max(LEAST, room - first)
    if last <= MOST_FOLDED * left:
        return False
    lines = HEADING_LINES + sum(max(1, -(-len(row[-1]) // left)) for row in table.rows)
    return lines > as_records(table, width, has_colours=False).count("\n") + 1


def as_records(table: Table, width: int, has_colours: bool) -> str:
    """Return each row as its first cell, with the other cells and their headings below it, within `width` columns."""
    from textwrap import wrap

    lines = list[str]()
    for name, *cells in table.rows:
        *middle, last = zip(table.headings[1:], cells, strict=True)
        facts = {f"{heading} {cell}": cell for heading, cell in middle if cell not in ("", "-")}
        below = [
            line
            for text in (", ".join(facts), last[1])
            for line in wrap(text, width, initial_indent=GAP, subsequent_indent=GAP, break_on_hyphens=False)
        ]
        lines += [*wrap(name, width), *(_coloured(line, facts) if has_colours else line for line in below)]
    return "\n".join(lines)


def _coloured(line: str, facts: Mapping[str, str]) -> str:
    """Return the line with the colours of the cells that it contains whole. `facts`: cells by their text in it."""
    for fact, cell in facts.items():
        if style := _style_of(cell):
            line = line.replace(fact, f"{fact.removesuffix(cell)}\x1b[{ANSI[style]}m{cell}\x1b[0m", 1)
    return line


def _style_of(cell: str) -> str:
    """Return the colour of a cell; empty for none."""
    return COLOURS[TONE_OF.get(cell.replace(" ", "_"), "none")]


def by_rich(table: Table, width: int, has_colours: bool) -> str:
    """Return the table within `width` columns. Long cells of the first and last column continue in the next line."""
    from io import StringIO

    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for at, heading in enumerate(table.headings):
        drawn.add_column(heading, overflow="fold", no_wrap=at not in (0, len(table.headings) - 1))
    for row in table.rows:
        drawn.add_row(*(Text(cell, _style_of(cell)) for cell in row))
    file = StringIO()
    console = Console(
        file=file, width=width, force_terminal=True, color_system="standard" if has_colours else None, highlight=False,
        legacy_windows=False,
    )  # fmt: skip
    console.print(drawn)
    return "\n".join(line.rstrip() for line in file.getvalue().rstrip("\n").split("\n"))


def confirmed(question: str, stdin: TextIO) -> bool:
    """Return whether a person at the terminal agrees. Pressing only Enter does not count."""
    print(words.actions.asks(question), end=" ", file=sys.stderr, flush=True)
    return stdin.readline().strip().lower() in ("y", "yes")
