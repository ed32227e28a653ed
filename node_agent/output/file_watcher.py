"""Tells when files are next written to: all files of an agent behind one descriptor, of which a user has 128."""

import os
import struct
from asyncio import AbstractEventLoop
from collections.abc import Callable

from node_agent.output.inotify import IN_MODIFY, add_watch, open_queue, remove_watch

_IN_ONESHOT = 0x8000_0000
_IN_Q_OVERFLOW = 0x4000
_EVENT = struct.Struct("iIII")
_BUFFER_BYTES = 1 << 16

Callback = Callable[[], None]


class Modifications:
    """Each wish to be told is for one time: a writer that is not watched pays nothing."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._fd = -1
        self._wishes: dict[int, list[Callback]] = {}

    def when_modified(self, path: str, tell: Callback) -> None:
        """Call `tell` after the next write. Raises `OSError`, also when the user's watches are used up."""
        if self._fd < 0:
            self._fd = open_queue()
            self._loop.add_reader(self._fd, self._read)
        watch = add_watch(self._fd, path, IN_MODIFY | _IN_ONESHOT)
        self._wishes.setdefault(watch, []).append(tell)  # a file may be watched for several

    def forget(self, tell: Callback) -> None:
        """Do not call it any more."""
        for watch, wishes in list(self._wishes.items()):
            if tell in wishes:
                wishes.remove(tell)
                if not wishes:
                    del self._wishes[watch]
                    remove_watch(self._fd, watch)

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> None:
        data = os.read(self._fd, _BUFFER_BYTES)
        at = 0
        while at < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size + length
            if mask & IN_MODIFY:
                self._tell(watch)
            elif mask & _IN_Q_OVERFLOW:
                for missed in list(self._wishes):
                    self._tell(missed)

    def _tell(self, watch: int) -> None:
        for tell in self._wishes.pop(watch, ()):
            tell()
