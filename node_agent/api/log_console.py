"""The workers' output where this program's own goes, and the agent's own words in its log."""

import codecs
import logging
import os
import sys
from asyncio import AbstractEventLoop
from typing import TextIO

from node_agent.output.console import ERR, OUT, Console

log = logging.getLogger("node_agent")

ROUTINE = ("round ", "run succeeded", "logs: ", "status: ", "OMP_NUM_THREADS")
"""How lines begin that nobody waits for: they are INFO, all others WARNING, which Python shows by default."""


class ApiConsole(Console):
    """Where `print` goes, the workers' output goes: in a notebook that is no descriptor.

    The agent's own lines are log records: a library does not write on its user's stderr.
    """

    def __init__(self, name: str, loop: AbstractEventLoop) -> None:
        pairs = ((OUT, sys.stdout), (ERR, sys.stderr))
        self._streams = {fd: _Text(stream) for fd, stream in pairs if _is_elsewhere(stream, fd)}
        super().__init__(name, loop)

    def say(self, text: str) -> None:
        log.log(logging.INFO if text.startswith(ROUTINE) else logging.WARNING, "%s", text)

    def put(self, fd: int, view: memoryview) -> int:
        return self._streams[fd].put(view) if fd in self._streams else super().put(fd, view)


class _Text:
    """A stream that takes text."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def put(self, view: memoryview) -> int:
        try:
            self._stream.write(self._decoder.decode(view))
            self._stream.flush()
        except (OSError, ValueError):
            pass  # nobody reads any more: the run goes on
        return len(view)


def _is_elsewhere(stream: TextIO | None, fd: int) -> bool:
    """Whether what is printed there does not go to this descriptor, but to a notebook, a file or a test."""
    if stream is None:
        return False
    try:
        return not os.path.sameopenfile(stream.fileno(), fd)
    except (AttributeError, OSError, ValueError):
        return True
