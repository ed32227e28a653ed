"""Reads log files while workers write to them. A worker never waits: what the console cannot take yet is there.

All files of an agent are looked at together, ever more seldom while nothing is written: a writer that is not watched
pays nothing, and an idle agent next to nothing.
"""

import asyncio
import os
from collections.abc import Callable, Sequence

from node_agent.output.console import PATIENCE_S, Console
from node_agent.output.pipe import READ_BYTES, Sink

SHORTEST_S, LONGEST_S = 0.02, 1.5
"""Between two looks."""
SHARE = 4
"""Output that comes after a silence is late by no more than this part of the silence."""
DRAIN_TIMEOUT_S = 30.0
"""Longest time for which an exiting agent goes on showing what is in the files anyway."""


def interval_s(silence_s: float) -> float:
    """Wait before the next look after so long a silence."""
    return min(max(silence_s / SHARE, SHORTEST_S), LONGEST_S)


class FileTail:
    """Follows an open file, which becomes its own, from where it ends now.

    After `finish` it reads on to where the file ended then, at the console's pace.
    """

    def __init__(self, file: int, sinks: Sequence[Sink], console: Console | None, tails: "FileTails") -> None:
        self._file = file
        self._sinks = sinks
        self._console = console
        self._tails = tails
        self._offset = os.fstat(file).st_size
        self._last: int | None = None
        """Offset at which to stop; None while the worker is there."""
        self._awaits_console = False

    @property
    def behind(self) -> int:
        """Bytes that the worker wrote and nobody has taken; only after `finish`."""
        return max(0, self._last - self._offset) if self._file >= 0 and self._last is not None else 0

    def start(self) -> None:
        self._tails.follow(self)

    def finish(self) -> None:
        """Read what the console can take now: the worker is gone."""
        if self._file >= 0 and self._last is None:
            self._last = os.fstat(self._file).st_size
            self._read_to_end()

    def close(self) -> None:
        """Read no more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            for sink in self._sinks:
                sink.end()
            self._tails.forget(self)

    def look(self) -> int:
        """Read a piece of what is new; how many bytes that were."""
        return 0 if self._last is not None or self._is_held_up() else self._read()

    def _read_to_end(self) -> None:
        while self._file >= 0 and not self._is_held_up():
            self._read()

    def _read(self) -> int:
        wanted = READ_BYTES if self._last is None else min(READ_BYTES, max(0, self._last - self._offset))
        try:
            chunk = os.pread(self._file, wanted, self._offset)
            if not chunk and os.fstat(self._file).st_size < self._offset:
                self._offset = 0  # somebody has emptied it; the worker goes on at its new end
                chunk = os.pread(self._file, READ_BYTES, 0)
        except OSError as error:
            self._tails.on_error(error)
            self.close()
            return 0
        self._offset += len(chunk)
        if chunk:
            for sink in self._sinks:
                sink.take(chunk)
        if self._last is not None and (not chunk or self._offset >= self._last):
            self.close()
        return len(chunk)

    def _is_held_up(self) -> bool:
        """Whether the console takes nothing now. It calls when it does."""
        if self._console is None or self._file < 0 or not self._console.is_full:
            return False
        if not self._awaits_console:
            self._awaits_console = True
            self._console.when_drained(self._resume)
        return True

    def _resume(self) -> None:
        self._awaits_console = False
        if self._last is None:
            self._tails.look()
        else:
            self._read_to_end()


class FileTails:
    """All tails of an agent, also those whose worker is gone while the console is not yet done with its output."""

    def __init__(self, console: Console, on_error: Callable[[OSError], None]) -> None:
        self.on_error = on_error
        self._console = console
        self._loop = asyncio.get_running_loop()
        self._open: set[FileTail] = set()
        self._followed: set[FileTail] = set()
        self._wrote_at = 0.0
        self._timer: asyncio.Handle | None = None
        self._changed = asyncio.Event()

    def open(self, file: int, sinks: Sequence[Sink], *, shown: bool) -> FileTail:
        """A tail of this open file, which becomes its own. `shown`: the console is among the sinks."""
        tail = FileTail(file, sinks, self._console if shown else None, self)
        self._open.add(tail)
        return tail

    def follow(self, tail: FileTail) -> None:
        """Look at its file from now on."""
        self._followed.add(tail)
        self._wrote_at = self._loop.time()
        self._look_in(SHORTEST_S)

    def forget(self, tail: FileTail) -> None:
        """Leave out a tail that has been closed."""
        self._open.discard(tail)
        self._followed.discard(tail)
        self._changed.set()

    def look(self) -> None:
        """Look at all files, and again when it is time."""
        most = max([tail.look() for tail in list(self._followed)], default=0)
        if most:
            self._wrote_at = self._loop.time()
        if self._followed:
            self._look_in(0.0 if most == READ_BYTES else interval_s(self._loop.time() - self._wrote_at))

    async def drain(self) -> int:
        """Wait for those whose worker is gone, as long as the console takes something. How many bytes are left."""
        give_up_at = self._loop.time() + DRAIN_TIMEOUT_S
        left = -1
        while (behind := self._behind()) and behind + self._console.pending != left and self._loop.time() < give_up_at:
            left = behind + self._console.pending
            self._changed.clear()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._changed.wait()
            except TimeoutError:
                pass
        return behind

    def close(self) -> None:
        for tail in list(self._open):
            tail.close()
        if self._timer:
            self._timer.cancel()

    def _behind(self) -> int:
        return sum(tail.behind for tail in self._open)

    def _look_in(self, delay_s: float) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, self.look)
