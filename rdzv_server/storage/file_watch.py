"""Checks that SQLite does not make: whether another program removed or shortened the state file, or it lost changes."""

import fcntl
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from rdzv_server.storage.base import StoreBroken
from rdzv_server.words import storage as words

DIGITS = 20
PROBE_BYTES = 4_096


@dataclass(slots=True)
class OpenFile:
    """File that SQLite has open: its path, and its state when the server last checked. SQLite never shortens it."""

    path: str
    device: int
    inode: int
    size: int

    @classmethod
    def of(cls, path: str) -> Self:
        """Check a file that was just opened. Raises `OSError`."""
        found = os.stat(path)
        return cls(path, found.st_dev, found.st_ino, found.st_size)

    def change(self) -> str:
        """Check the file again. Return a phrase that says what another program did to it; "" if nothing."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return words.WAS_REMOVED
        except OSError as error:
            return words.cannot_be_examined(error.strerror)
        if (found.st_dev, found.st_ino) != (self.device, self.inode):
            return words.WAS_REPLACED
        if found.st_size < self.size:
            return words.was_shortened(self.size, found.st_size)
        self.size = found.st_size
        return ""


def is_mounted(path: str) -> bool:
    """Return whether this file is mounted by itself, as a container's volume can be. Without /proc the answer is no."""
    own = os.fsencode(os.path.realpath(path))
    try:
        with open("/proc/self/mountinfo", "rb") as mounts:
            places = [line.split(b" ")[4] for line in mounts]
    except OSError:
        return False
    return own in (re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), place) for place in places)


class LastRecord:
    """Number of the last record that the state file at `path` took, in a small file beside it.

    The server writes it after each transaction and never flushes it. If the server is killed, nothing of it is lost. A
    power loss loses what the kernel had not written back. So it is ahead of the state file only if the state file lost
    changes.
    """

    def __init__(self, path: str) -> None:
        self.path = f"{path}.last-record"
        self._state = path
        self._fd: int | None = None

    def refuse_empty(self) -> None:
        """Raise `StoreBroken` if the state file is missing or empty although it was not before."""
        if size(self._state) == 0:
            if (number := self._read()) is not None:
                raise self._broken(words.noted_but_empty(number, self.path))
            if size(f"{self._state}-wal"):
                raise self._broken(words.empty_beside_wal(self._state))

    def refuse_behind(self, number: int) -> None:
        """Raise `StoreBroken` if the state file's last record is `number` but it had later ones."""
        if number < (noted := self._read() or 0):
            raise self._broken(words.lost_latest_changes(number, noted, self.path, self._state))

    def write(self, number: int) -> None:
        """Write the number. After a failure, as on a full disk, the number stays behind, which refuses less."""
        try:
            if self._fd is None:
                self._fd = os.open(self.path, os.O_CREAT | os.O_WRONLY, 0o600)
            os.pwrite(self._fd, f"{number:0{DIGITS}d}\n".encode(), 0)
        except OSError:
            pass

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _read(self) -> int | None:
        try:
            with open(self.path, "rb") as file:
                text = file.read(DIGITS + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreBroken(words.cannot_open(self.path, error.strerror)) from None
        return int(text) if text.strip().isdigit() else 0

    def _broken(self, what: str) -> StoreBroken:
        return StoreBroken(words.lost_changes(self._state, what, self.path))


def size(path: str) -> int:
    """Return the size of a file in bytes; 0 if it does not exist."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def refusal(path: str) -> OSError | None:
    """Return the error of the file system if it refuses to lock and write a small file beside `path`, else None.

    SQLite does not report such an error.
    """
    probe = f"{path}-probe"
    try:
        file = os.open(probe, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(file, bytes(PROBE_BYTES))
            os.fsync(file)
        finally:
            os.close(file)
    except OSError as error:
        return error
    finally:
        with suppress(OSError):
            os.unlink(probe)
    return None
