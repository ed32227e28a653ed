"""The agent's own temporary folder: what its workers need and nobody asked to keep. Gone when the agent is.

The guardian of an agent that is killed removes it. Where both were killed, the next agent of this user on this machine
does so as it ends: it knows such a folder by its lock, which nobody holds any more. Nodes may share TMPDIR, and a lock
on a network file system may be known to its own node only. So the name of a folder tells which machine has made it,
since it was started last. On a disk of this machine, a folder from before its last start is left over for certain. Of
other disks such folders stay: they may be another machine's.
"""

import fcntl
import os
import re
import threading
from contextlib import suppress
from zlib import crc32

from node_agent import words

REMOVED_WITHIN_S = 2.0
"""Longest time for which a program waits at its end until its temporary folder is removed."""
PREFIX = "node-agent"
FALLBACK = "/tmp"
_RANDOM_BYTES = 8
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_MOUNTS = "/proc/self/mountinfo"
_OWN_DISKS = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})
"""Types of file systems that one machine has mounted at a time."""


class TempDir:
    """Temporary folder for this user alone. No part of its path is of a run id or a node id.

    `make` and `remove` wait for its disk: any thread may call them, and an event loop leaves that to one.
    """

    def __init__(self, *, is_locked: bool = True) -> None:
        """`is_locked` False: for a program that keeps many of them open; nobody removes one that is left over."""
        self._is_locked = is_locked
        self._making = threading.Lock()
        self.is_made = False
        """Whether the folder has been made. Somebody may have cleared it away since."""
        self.folder = temporary_path(_locked_prefix() if is_locked else f"{PREFIX}-kept")
        """Path of the folder, whether it has been made or not."""
        self._lock = -1
        """Descriptor of the folder, whose lock says that this process lives."""

    def path(self, name: str) -> str:
        """A path within the folder, whether that has been made or not."""
        return os.path.join(self.folder, name)

    def make(self) -> None:
        """Make the folder, also anew if somebody cleared it away. Raises `OSError`."""
        with self._making:
            if not (self.is_made and os.path.isdir(self.folder)):
                self._unlock()
                self._make()
                self.is_made = True

    def remove(self) -> None:
        with self._making:
            if not self.is_made:
                return
            import shutil

            shutil.rmtree(self.folder, ignore_errors=True)
            self.is_made = False
            if self._is_locked:
                self._unlock()
                _remove_left_over(os.path.dirname(self.folder))

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _make(self) -> None:
        """Make the folder, and lock it before anybody else can find it."""
        if not self._is_locked:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            return
        new = f"{self.folder}.new"
        os.makedirs(new, mode=0o700, exist_ok=True)
        self._lock = os.open(new, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with suppress(OSError):  # a file system without locks: then nobody can take it for left over
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.rename(new, self.folder)


def temporary_path(beginning: str) -> str:
    """The absolute path of a temporary folder that nobody else has: workers may change their working folder."""
    tmpdir = os.environ.get("TMPDIR")
    parent = FALLBACK if not tmpdir or _why_unusable(tmpdir) else os.path.abspath(tmpdir)
    return os.path.join(parent, f"{beginning}-{os.urandom(_RANDOM_BYTES).hex()}")


def _locked_prefix() -> str:
    """Beginning of the names of all locked folders of this machine, since it was started: all see the same locks."""
    try:
        with open(_BOOT_ID, "rb") as file:
            machine = file.read()
    except OSError:  # nobody can tell that such a folder is left over
        machine = os.urandom(_RANDOM_BYTES)
    return f"{PREFIX}-{crc32(machine):08x}"


def warning() -> str:
    """Warn that temporary files are kept elsewhere than in TMPDIR; empty if they are not."""
    tmpdir = os.environ.get("TMPDIR")
    problem = _why_unusable(tmpdir) if tmpdir else ""
    return words.workers.tmpdir_unusable(tmpdir, problem, FALLBACK) if tmpdir and problem else ""


def _why_unusable(tmpdir: str) -> str:
    """Reason why no temporary files can be kept in this folder; empty if they can. The folder is not made."""
    try:
        is_full = os.statvfs(tmpdir).f_bavail == 0
    except OSError as error:
        return error.strerror or str(error)
    if not os.path.isdir(tmpdir):
        return words.workers.NOT_A_FOLDER
    if not os.access(tmpdir, os.W_OK | os.X_OK):
        return words.workers.NOT_WRITABLE
    return words.workers.DISK_FULL if is_full else ""


def _remove_left_over(parent: str) -> None:
    """Remove the folders of this user's agents on this machine that were killed together with their guardians.

    On a disk of this machine that includes the folders of agents which ran when it was last switched off.
    """
    is_known = os.access(_BOOT_ID, os.R_OK)  # else no folder tells anything
    beginning = f"{PREFIX}-[0-9a-f]{{8}}" if is_known and _is_own_disk(parent) else _locked_prefix()
    left_over = re.compile(f"{beginning}-[0-9a-f]{{{2 * _RANDOM_BYTES}}}")
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if left_over.fullmatch(entry.name):
                with suppress(OSError):  # it is in use, another user's, or just gone
                    _remove_unless_locked(entry.path)


def _is_own_disk(folder: str) -> bool:
    """Whether no other machine can have the folder: it is on a disk that is mounted here, not on a shared one."""
    path, kind, longest = f"{os.path.realpath(folder)}/", "", 0
    with suppress(OSError), open(_MOUNTS, "rb") as mounts:
        for line in mounts:  # 36 35 98:0 /root /mount/point rw,noatime master:1 - ext3 /dev/root rw
            before, _, after = line.partition(b" - ")
            point = re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), before.split()[4])
            at = os.fsdecode(point).rstrip("/") + "/"
            if path.startswith(at) and len(at) >= longest:  # of several at one place the last one is seen
                kind, longest = os.fsdecode(after.split()[0]), len(at)
    return kind in _OWN_DISKS


def _remove_unless_locked(path: str) -> None:
    """Remove the folder. Raises `OSError` if somebody holds its lock."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(folder).st_uid == os.geteuid():
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            import shutil

            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(folder)
