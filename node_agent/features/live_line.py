"""Live line on a terminal: what the agent waits for, with the remaining time, rewritten in place once a second."""

import asyncio
import os
from contextlib import suppress

from msgspec.structs import replace
from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.messages import Reply, Wait

from node_agent.kernel.core.effects import WAITING, Log, OwnEffect
from node_agent.kernel.feature import Feature, Kernel
from node_agent.kernel.output.console import ERR

EVERY_S = 1.0
FEWEST_COLUMNS, USUAL_COLUMNS = 20, 80
MARGIN = 3
"""Columns at the end of a line that stay free: for ^C, and because some terminals wrap at the last column."""


class LiveLine(Feature):
    """The line of an agent that waits. Its timer runs only while the line is shown."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self._console = kernel.console
        self._loop = asyncio.get_running_loop()
        self._wait: Wait | None = None
        self._ends_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def performing(self, effect: OwnEffect) -> bool:
        if isinstance(effect, Log):
            return effect.event == WAITING
        self.clear()
        return False

    def answered(self, answer: Reply | ProtocolError) -> None:
        if isinstance(answer, Reply) and isinstance(answer.directive, Wait):
            self.show(answer.directive)

    async def close(self) -> None:
        self.clear()

    def show(self, wait: Wait) -> None:
        """Show this wait in place of the previous one."""
        self._wait, self._ends_at = wait, self._loop.time() + (wait.remaining_s or 0.0)
        self._tick()

    def clear(self) -> None:
        """Remove the line."""
        if self._wait:
            self._wait = None
            self._console.draw("", 0)
        if self._timer:
            self._timer.cancel()

    def _tick(self) -> None:
        assert self._wait
        if self._timer:
            self._timer.cancel()
        left_s = max(0.0, self._ends_at - self._loop.time())
        if _is_in_foreground():
            begin = f"{self._console.program}: "
            line = begin + fitted(self._wait, left_s, _columns() - len(begin) - MARGIN)
            self._console.draw(line, width(line))
        self._timer = self._loop.call_later(left_s % EVERY_S or EVERY_S, self._tick)


def fitted(wait: Wait, left_s: float, columns: int) -> str:
    """Return the reason and the remaining time on one line of a terminal. A reason that is too long is cut."""
    limited = wait.remaining_s is not None
    whole = (replace(wait, remaining_s=left_s) if limited else wait).sentence
    ending = whole[len(wait.reason) :]
    room = max(columns, FEWEST_COLUMNS) - width(ending)
    return whole if width(wait.reason) <= room else f"{_cut(wait.reason, room - 1)}…{ending}"


def width(text: str) -> int:
    """Return the number of columns in which a terminal shows the text."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(each) else 1 + (east_asian_width(each) in "WF") for each in text)


def _cut(text: str, columns: int) -> str:
    while width(text) > columns and text:
        text = text[:-1]
    return text


def _columns() -> int:
    with suppress(OSError):
        return os.get_terminal_size(ERR).columns or USUAL_COLUMNS
    return USUAL_COLUMNS


def _is_in_foreground() -> bool:
    """Return whether this process is in the terminal's foreground. With `node-agent ... &` the shell's prompt must stay
    intact.
    """
    try:
        return os.tcgetpgrp(ERR) == os.getpgrp()
    except OSError:
        return False
