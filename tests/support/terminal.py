"""A terminal of its own for a program, and what a person would see on it."""

import asyncio
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import Mapping
from fcntl import ioctl

from tests.support.programs import PATIENCE_S


class Terminal:
    """A program that has this terminal, so many columns wide, as its controlling one, and runs in its foreground.

    An async context manager: the program is gone in the end.
    """

    def __init__(self, *command: str, env: Mapping[str, str], columns: int) -> None:
        self._command = command
        self._env = {**os.environ, "TERM": "xterm", **env}
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

    def type(self, text: str) -> None:
        """Write what a person types."""
        os.write(self._end, text.encode())

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
