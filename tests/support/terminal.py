"""A terminal of its own for a program, and what a person would see on it."""

import asyncio
import os
import pty
import re
import select
import struct
import sys
import termios
from collections.abc import Mapping
from fcntl import ioctl

from tests.support.programs import PATIENCE_S

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""Escape sequences that move the cursor, clear and colour."""


class Terminal:
    """A program that has this terminal, so many columns wide, as its controlling one, and runs in its foreground.

    An async context manager: the program is gone in the end.
    """

    def __init__(self, *command: str, env: Mapping[str, str], columns: int = 100) -> None:
        self._command = command
        inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self._env = {**inherited, "TERM": "xterm", **env}
        self._end, self._program_end = pty.openpty()
        ioctl(self._program_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._changed = asyncio.Event()
        self.written = ""

    async def __aenter__(self) -> "Terminal":
        self.process = await asyncio.create_subprocess_exec(
            "setsid", "--ctty", *self._command, env=self._env, stdin=self._program_end, stdout=self._program_end,
            stderr=self._program_end,
        )  # fmt: skip
        asyncio.get_running_loop().add_reader(self._end, self._read)
        return self

    async def __aexit__(self, *error: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        self._stop()
        os.close(self._program_end)
        os.close(self._end)
        print(self.written, file=sys.stderr)

    async def until(self, pattern: str) -> re.Match[str]:
        """The first match in all that was written, once there is one."""
        async with asyncio.timeout(PATIENCE_S):
            while not (match := re.search(pattern, self.written)):
                self._changed.clear()
                await self._changed.wait()
        return match

    async def shows(self, pattern: str, after: int = 0) -> int:
        """Return when the text has this, behind so many characters; the place behind it."""
        async with asyncio.timeout(PATIENCE_S):
            while not (match := re.compile(pattern).search(self.text, after)):
                self._changed.clear()
                await self._changed.wait()
        return match.end()

    async def exit_code(self) -> int:
        """The program's; all that it wrote has been read by then."""
        async with asyncio.timeout(PATIENCE_S):
            code = await self.process.wait()
        while select.select([self._end], [], [], 0)[0]:
            self._read()
        return code

    def type(self, text: str) -> None:
        """Write what a person types."""
        os.write(self._end, text.encode())

    @property
    def text(self) -> str:
        """All that was written, without escapes and carriage returns."""
        return ESCAPES.sub("", self.written).replace("\r", "")

    @property
    def screen(self) -> list[str]:
        """Lines that a person sees: what a carriage return goes back over is written over."""
        return [_shown(line) for line in self.written.split("\n")]

    def _read(self) -> None:
        self.written += os.read(self._end, 1 << 16).decode(errors="replace")
        self._changed.set()

    def _stop(self) -> None:
        asyncio.get_running_loop().remove_reader(self._end)


def _shown(line: str) -> str:
    seen = ""
    for piece in line.split("\r"):
        seen = piece + seen[len(piece) :]
    return seen.rstrip()
