"""Sinks for the bytes that a worker writes: they show them, copy them to a file, or keep them for a report."""

import asyncio
import os
import re
import time
from collections.abc import Callable, Sequence
from itertools import takewhile

from rdzv_protocol.text import printable

from node_agent.kernel.output.console import Console

LONGEST_LINE = 4 << 20
"""Most bytes of a line that wait for the line's end. A longer line is shown in pieces."""
UNFINISHED_S = 1.0
"""Seconds after which an unfinished line is shown anyway: it may be a question, or a progress line."""
LONGEST_COPY = 1 << 20
"""Most bytes of one line that are searched together for a filter's texts."""
TAIL_BYTES = 1 << 16
TAIL_LINES = 400
TAIL_LINE_CHARACTERS = 500
_TAIL_LINE_BYTES = 4 * TAIL_LINE_CHARACTERS
_MARK, _UNCAUGHT = b"[rank", b"]: Traceback (most recent call last):"
"""Beginning of the lines of an exception that torch has seen end a script, and of the first one after the rank."""
_MARK_BYTES = 16
"""Most bytes of a mark, which contains the rank."""
_AFTER_MARKED = re.compile(rb"\n(?!\[rank|\r?\n|\Z)")
"""End of a line after which one follows that torch has not marked. Torch marks no blank lines."""
_TRACEBACK = b"Traceback (most recent call last):"
_MARKED = re.compile(rb"\[rank\d+\]: (?:  \+ Exception Group )?" + re.escape(_TRACEBACK))
"""That line of a traceback or of an exception group's."""
_MARKED_BYTES = 128
"""Most bytes of that line which a piece of the output may have cut."""
_EXCEPTION_BYTES = 1 << 14
"""Most bytes of an older uncaught exception in a report."""

Copy = Callable[[str, int, Callable[[], object]], None]


class Sink:
    """Takes what a worker writes, in pieces that may end anywhere."""

    def take(self, chunk: bytes) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Called when no more output follows."""


class AsItComes(Sink):
    """Passes every byte on, as if the worker wrote to the console itself. Used if the console shows only one worker."""

    def __init__(self, console: Console, target: int, worker: object) -> None:
        self._console = console
        self._target = target
        self._worker = worker

    def take(self, chunk: bytes) -> None:
        self._console.write(self._target, chunk, self._worker)


class Lines(Sink):
    """Passes whole lines on, each after `prefix`, so that they never mix with other workers' lines.

    A carriage return ends a line too, since progress bars redraw with it.
    """

    def __init__(self, prefix: str, console: Console, target: int) -> None:
        self._prefix = prefix.encode(errors="surrogateescape")
        self._console = console
        self._target = target
        self._held: list[bytes] = []
        """Beginning of a line, in pieces."""
        self._held_bytes = 0
        self._returned = False
        """Whether the output shown last ended in a carriage return."""
        self._timer: asyncio.TimerHandle | None = None

    def take(self, chunk: bytes) -> None:
        end = _end_of_lines(chunk)
        if end:
            self._show_held(chunk[:end])
        if end < len(chunk):
            self._hold(chunk[end:])

    def end(self) -> None:
        """Show what is held. A last line without an end gets one."""
        if self._held:
            self._show_held(b"\n")
        if self._timer:
            self._timer.cancel()

    def _hold(self, rest: bytes) -> None:
        self._held.append(rest)
        self._held_bytes += len(rest)
        if self._held_bytes >= LONGEST_LINE:
            self._show_held()
        elif self._timer is None:
            self._wait()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(UNFINISHED_S, self._waited, self._held[0])

    def _waited(self, waited_for: bytes) -> None:
        """Show what is held if it is still the same line. Otherwise begin to wait for the new line."""
        self._timer = None
        if self._held and self._held[0] is waited_for:
            self._show_held()
        elif self._held:
            self._wait()

    def _show_held(self, rest: bytes = b"") -> None:
        text = b"".join((*self._held, rest))
        self._held, self._held_bytes = [], 0
        self._show(text)

    def _show(self, text: bytes) -> None:
        """Show lines. The last one may be unfinished, and its continuation has no prefix."""
        continues = self._console.owns_line(self._target, self)
        if self._returned and text.startswith(b"\n"):  # the other half of a line's end
            as_is, lines = b"\n" if continues else b"", text[1:]
        elif continues and not self._returned:
            end = len(text.splitlines(keepends=True)[0])
            as_is, lines = text[:end], text[end:]
        else:
            as_is, lines = b"", text
        if shown := as_is + self._prefixed(lines):
            self._console.write(self._target, shown, self)
        self._returned = text.endswith(b"\r")

    def _prefixed(self, lines: bytes) -> bytes:
        if not self._prefix or not lines:
            return lines
        if b"\r" in lines:
            return b"".join(map(self._prefixed_piece, lines.splitlines(keepends=True)))
        if lines.startswith(b"\n") or b"\n\n" in lines:
            return b"".join(line if line == b"\n" else self._prefix + line for line in lines.splitlines(keepends=True))
        return self._prefix + lines[:-1].replace(b"\n", b"\n" + self._prefix) + lines[-1:]

    def _prefixed_piece(self, piece: bytes) -> bytes:
        """Return a piece of a line that is redrawn. A piece of spaces blanks the line, including its prefix."""
        if piece in (b"\n", b"\r", b"\r\n"):
            return piece
        is_blank = piece.endswith(b"\r") and piece.isspace()
        return (b" " * len(self._prefix) if is_blank else self._prefix) + piece


class Filtered(Sink):
    """Copies lines of a worker that contain one of some texts to a file of the node, each after `prefix`, as in
    torchrun.

    All workers share the file, for example `filtered_stdout.log`. `copy` gets its path, a number of bytes and a
    function that writes them. It calls that function later, in order, and handles its `OSError`.
    """

    def __init__(self, path: str, texts: Sequence[str], prefix: str, copy: Copy) -> None:
        self._path = path
        self._texts = [text.encode(errors="surrogateescape") for text in texts]
        self._prefix = prefix.encode(errors="surrogateescape")
        self._copy_later = copy
        self._held = b""
        self._file = -1
        """Descriptor of the file. Only `_open`, `_write` and `_close` use it, perhaps in another thread."""
        self._copy_later(path, 0, self._open)

    def take(self, chunk: bytes) -> None:
        output = self._held + chunk
        end = _end_of_lines(output)
        if not end and len(output) > LONGEST_COPY:
            end = len(output)
        self._held = output[end:]
        self._copy(output[:end])

    def end(self) -> None:
        self._copy(self._held)
        self._copy_later(self._path, 0, self._close)

    def _copy(self, output: bytes) -> None:
        if self._is_wanted(output):  # skip the search of single lines
            lines = b"".join(self._prefix + line + b"\n" for line in output.splitlines() if self._is_wanted(line))
            self._copy_later(self._path, len(lines), lambda: self._write(lines))

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK  # it may be a pipe
        self._file = os.open(self._path, flags, 0o666)

    def _write(self, lines: bytes) -> None:
        if self._file >= 0:
            os.write(self._file, lines)  # in one piece, because other workers write to it too

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _is_wanted(self, output: bytes) -> bool:
        return any(text in output for text in self._texts)


class Tail(Sink):
    """Keeps the end of what a worker writes."""

    def __init__(self) -> None:
        self.marked_at: float | None = None
        """Time, by the monotonic clock, at which the last exception was read that torch has marked; None if there was
        none."""
        self._end = bytearray()

    def take(self, chunk: bytes) -> None:
        before = bytes(self._end[-_MARKED_BYTES:])
        self._end += chunk
        if _begins_marked(before, chunk):
            self.marked_at = time.monotonic()
        if len(self._end) > 2 * TAIL_BYTES:
            self._end = bytearray(last_bytes(self._end))

    def lines(self) -> tuple[str, ...]:
        return report_lines(bytes(self._end))


def _begins_marked(before: bytes, chunk: bytes) -> bool:
    """Return whether the first line of an exception that torch has marked ends in this piece. `before`: what precedes
    it.
    """
    output = before + chunk
    return _TRACEBACK in output and any(found.end() > len(before) for found in _MARKED.finditer(output))


def last_bytes(output: bytes | bytearray) -> bytes:
    """Return about `TAIL_BYTES` of an output, with the lines for a report.

    Long lines are shortened if they would displace the lines before them: the message of an exception may be longer
    than all of these bytes, and the traceback comes before it.
    """
    end = bytes(output[-TAIL_BYTES:])
    if end.count(b"\n") < TAIL_LINES:
        lines = output.rsplit(b"\n", TAIL_LINES)[-TAIL_LINES:]
        if max(map(len, lines)) > _TAIL_LINE_BYTES:
            end = b"\n".join(map(_shortened, lines))[-TAIL_BYTES:]
    if _UNCAUGHT not in end and (first_lines := _uncaught(output, len(output) - TAIL_BYTES)):
        return b"\n".join((*first_lines, end.partition(b"\n")[2]))  # without a part of a line, which has no mark
    return end


def has_enough_lines(end: bytes) -> bool:
    """Return whether a report needs nothing of an output before this end."""
    has_exception = _UNCAUGHT in end or _MARK not in end
    return has_exception and end.count(b"\n") >= TAIL_LINES


def report_lines(data: bytes) -> tuple[str, ...]:
    """Return the lines of an output for a report: the last ones, and the beginning of an exception whose message is so
    long that it ends in them.

    A redrawn line has its last visible content.
    """
    lines = data.removesuffix(b"\n").rsplit(b"\n", TAIL_LINES)[-TAIL_LINES:]
    if not any(_UNCAUGHT in line for line in lines):
        lines = [*_uncaught(data, len(data) - sum(map(len, lines)) - len(lines)), *lines]
    return tuple(map(_readable, lines)) if data else ()


def _uncaught(output: bytes | bytearray, until: int) -> Sequence[bytes]:
    """Return the first lines of the last uncaught exception that torch has marked, if its lines fill the output up to
    the offset `until`.

    Its message may have more lines than a report. If other lines follow it there, the script has continued: the
    exception ended a child of it, which has the same output.
    """
    at = output.rfind(_UNCAUGHT)
    begin = output.rfind(_MARK, max(0, at - _MARK_BYTES), at) if at > 0 else -1
    if begin < 0 or ((other := _AFTER_MARKED.search(output, begin)) and other.start() < until):
        return ()
    lines = bytes(output[begin : begin + _EXCEPTION_BYTES]).split(b"\n")
    return tuple(takewhile(lambda line: line.startswith(_MARK), lines[:-1]))


def _shortened(line: bytes | bytearray) -> bytes:
    """Return the part of a line that a report may show. If the line's end is still to come, it can follow."""
    whole = line.rstrip(b"\r")
    return bytes(whole.rpartition(b"\r")[2][:_TAIL_LINE_BYTES]) + line[len(whole) :][-1:]


def _readable(line: bytes) -> str:
    seen = line.rstrip(b"\r").rpartition(b"\r")[2]
    return printable(seen.decode(errors="replace").rstrip()[:TAIL_LINE_CHARACTERS])


def _end_of_lines(output: bytes) -> int:
    """Return the offset after the last end of a line, 0 if there is none."""
    return max(output.rfind(b"\n"), output.rfind(b"\r")) + 1
