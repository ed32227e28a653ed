"""A terminal for one program, and what a person sees on it."""

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
    """A program in the foreground of a terminal of its own, `columns` wide, which is its controlling terminal.

    An async context manager that ends the program.
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
        """Return the first match in the whole output, once there is one."""
        async with asyncio.timeout(PATIENCE_S):
            while not (match := re.search(pattern, self.written)):
                self._changed.clear()
                await self._changed.wait()
        return match

    async def shows(self, pattern: str, after: int = 0) -> int:
        """Wait until the text contains this after the offset `after`. Return the offset behind it."""
        async with asyncio.timeout(PATIENCE_S):
            while not (match := re.compile(pattern).search(self.text, after)):
                self._changed.clear()
                await self._changed.wait()
        return match.end()

    async def exit_code(self) -> int:
        """Return the program's exit code, once all of its output has been read."""
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
        """Return the whole output, without escapes and carriage returns."""
        return ESCAPES.sub("", self.written).replace("\r", "")

    @property
    def screen(self) -> list[str]:
        """Return the lines that a person sees: text after a carriage return overwrites the line."""
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
