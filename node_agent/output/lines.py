"""A worker's output on its way to the console, so that its lines and other workers' are never mixed."""

import asyncio

from node_agent.output.console import Console

LONGEST_LINE = 4 << 20
"""Bytes that are held back until the line's end has come. A longer line is shown in pieces, as is any other..."""
UNFINISHED_S = 1.0
"""... that has had no end for this long: a question, or what is being done just now."""


class AsItComes:
    """Passes every byte on, as if the worker wrote to the console itself: for the only worker that is shown there."""

    def __init__(self, console: Console, target: int, worker: object) -> None:
        self._console = console
        self._target = target
        self._worker = worker

    def take(self, chunk: bytes) -> None:
        self._console.write(self._target, chunk, self._worker)

    def end(self) -> None:
        pass


class Lines:
    """Passes whole lines on, each after `prefix`. A carriage return ends one too: progress bars redraw with it."""

    def __init__(self, prefix: str, console: Console, target: int) -> None:
        self._prefix = prefix.encode(errors="surrogateescape")
        self._console = console
        self._target = target
        self._held: list[bytes] = []
        """The beginning of a line, in pieces."""
        self._held_bytes = 0
        self._returned = False
        """Whether what was shown last ended in a carriage return."""
        self._timer: asyncio.TimerHandle | None = None

    def take(self, chunk: bytes) -> None:
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        if end:
            self._show(b"".join((*self._held, chunk[:end])))
            self._held, self._held_bytes = [], 0
        if end < len(chunk):
            self._hold(chunk[end:])

    def end(self) -> None:
        """A last line without an end gets one."""
        if self._held:
            self._show(b"".join(self._held) + b"\n")
            self._held = []
        if self._timer:
            self._timer.cancel()

    def _hold(self, rest: bytes) -> None:
        self._held.append(rest)
        self._held_bytes += len(rest)
        if self._held_bytes >= LONGEST_LINE:
            self._show_held()
        elif self._timer is None:
            self._wait()

    def _waited(self, waited_for: bytes) -> None:
        """Show what is held, unless it is another line by now: then begin to wait for that."""
        self._timer = None
        if self._held and self._held[0] is waited_for:
            self._show_held()
        elif self._held:
            self._wait()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(UNFINISHED_S, self._waited, self._held[0])

    def _show_held(self) -> None:
        self._show(b"".join(self._held))
        self._held, self._held_bytes = [], 0

    def _show(self, text: bytes) -> None:
        """Show lines, the last of them perhaps unfinished. What goes on with an unfinished one has no prefix."""
        goes_on = self._console.owns_line(self._target, self)
        if self._returned and text.startswith(b"\n"):  # the other half of a line's end
            self._begin(b"\n" if goes_on else b"", text[1:])
        elif goes_on and not self._returned:
            end = _first_end(text)
            self._begin(text[:end], text[end:])
        else:
            self._begin(b"", text)
        self._returned = text.endswith(b"\r")

    def _begin(self, as_is: bytes, lines: bytes) -> None:
        if text := as_is + self._prefixed(lines):
            self._console.write(self._target, text, self)

    def _prefixed(self, lines: bytes) -> bytes:
        if not self._prefix or not lines:
            return lines
        if b"\r" in lines:
            pieces = lines.splitlines(keepends=True)
            return b"".join(self._prefix + piece if piece not in (b"\r", b"\r\n") else piece for piece in pieces)
        return self._prefix + lines[:-1].replace(b"\n", b"\n" + self._prefix) + lines[-1:]


def _first_end(text: bytes) -> int:
    """Offset after the first line's end."""
    ends = [at + 1 for at in (text.find(b"\n"), text.find(b"\r")) if at >= 0]
    return min(ends, default=len(text))
