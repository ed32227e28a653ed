"""The agent's own temporary folder, for files that workers need only while the agent lives.

If the agent is killed, its guardian removes the folder. If both are killed, the next agent of this user on this machine
removes it when it exits. It recognizes such a folder because no process holds its lock any more.

Nodes may share TMPDIR, and a lock on a network file system may be visible only on its own node. So the folder's name
identifies the machine and its boot. On a local disk, a folder from an earlier boot is certainly left over. On other
disks such folders remain, because they may belong to another machine.
"""

import fcntl
import os
import re
import threading
from contextlib import suppress
from zlib import crc32

from node_agent import words

REMOVED_WITHIN_S = 2.0
"""Most seconds that an exiting program waits for the removal of its temporary folder."""
PREFIX = "node-agent"
FALLBACK = "/tmp"
_RANDOM_BYTES = 8
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_MOUNTS = "/proc/self/mountinfo"
_OWN_DISKS = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})
"""Types of file systems that only one machine mounts at a time."""


class TempDir:
    """Temporary folder that only this user can access. Its path does not contain a run id or node id.

    `make` and `remove` wait for the disk. Any thread may call them; do not call them in an event loop.
    """

    def __init__(self, *, is_locked: bool = True) -> None:
        """`is_locked`: False for a program that keeps many folders open. Its left-over folders are not removed."""
        self._is_locked = is_locked
        self._making = threading.Lock()
        self.is_made = False
        """Whether the folder has been made. It may have been cleared away since."""
        self.folder = temporary_path(_locked_prefix() if is_locked else f"{PREFIX}-kept")
        """Path of the folder, whether it exists or not."""
        self._lock = -1
        """Descriptor of the folder, whose lock shows that this process lives."""

    def path(self, name: str) -> str:
        """Return a path within the folder, whether the folder exists or not."""
        return os.path.join(self.folder, name)

    def make(self) -> None:
        """Make the folder, again if it was cleared away. Raises `OSError`."""
        with self._making:
            if not (self.is_made and os.path.isdir(self.folder)):
                self._unlock()
                self._make()
                self.is_made = True

    def remove(self) -> None:
        with self._making:
            if not self.is_made:
                return
            try:
                for path, _, _ in os.walk(self.folder, topdown=False):
                    os.rmdir(path)
            except OSError:  # workers have left files; `shutil` is loaded only then, since it loads compression
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
        """Make the folder, and lock it before other processes can find it."""
        if not self._is_locked:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            return
        new = f"{self.folder}.new"
        os.makedirs(new, mode=0o700, exist_ok=True)
        self._lock = os.open(new, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with suppress(OSError):  # a file system without locks: no process can take the folder for left over
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.rename(new, self.folder)


def temporary_path(beginning: str) -> str:
    """Return a unique absolute path for a temporary folder: workers may change their working folder."""
    tmpdir = os.environ.get("TMPDIR")
    parent = FALLBACK if not tmpdir or _why_unusable(tmpdir) else os.path.abspath(tmpdir)
    return os.path.join(parent, f"{beginning}-{os.urandom(_RANDOM_BYTES).hex()}")


def _locked_prefix() -> str:
    """Return the prefix of the names of this boot's locked folders on this machine, where all see the same locks."""
    try:
        with open(_BOOT_ID, "rb") as file:
            machine = file.read()
    except OSError:  # the folder can then never be recognized as left over
        machine = os.urandom(_RANDOM_BYTES)
    return f"{PREFIX}-{crc32(machine):08x}"


def warning() -> str:
    """Return a warning that temporary files are not kept in TMPDIR, empty if they are."""
    tmpdir = os.environ.get("TMPDIR")
    problem = _why_unusable(tmpdir) if tmpdir else ""
    return words.workers.tmpdir_unusable(tmpdir, problem, FALLBACK) if tmpdir and problem else ""


def _why_unusable(tmpdir: str) -> str:
    """Return why temporary files cannot be kept in this folder, empty if they can. Does not make the folder."""
    try:
        disk = os.statvfs(tmpdir)
    except OSError as error:
        return error.strerror or str(error)
    if not os.path.isdir(tmpdir):
        return words.workers.NOT_A_FOLDER
    if not os.access(tmpdir, os.W_OK | os.X_OK):
        return words.workers.NOT_WRITABLE
    return words.workers.DISK_FULL if disk.f_blocks and not disk.f_bavail else ""


def _remove_left_over(parent: str) -> None:
    """Remove the folders of this user's agents on this machine that were killed together with their guardians.

    On a local disk this includes folders from before the last boot.
    """
    with suppress(OSError):
        found = [name for name in os.listdir(parent) if name.startswith(f"{PREFIX}-")]
        if not found:
            return
        is_known = os.access(_BOOT_ID, os.R_OK)  # otherwise no folder can be recognized
        beginning = f"{PREFIX}-[0-9a-f]{{8}}" if is_known and _is_own_disk(parent) else _locked_prefix()
        left_over = re.compile(f"{beginning}-[0-9a-f]{{{2 * _RANDOM_BYTES}}}")
        for name in filter(left_over.fullmatch, found):
            with suppress(OSError):  # it is in use, another user's, or just gone
                _remove_unless_locked(os.path.join(parent, name))


def _is_own_disk(folder: str) -> bool:
    """Return whether no other machine can use the folder: it is on a local disk, not on a shared one."""
    path, kind, longest = f"{os.path.realpath(folder)}/", "", 0
    with suppress(OSError), open(_MOUNTS, "rb") as mounts:
        for line in mounts:  # 36 35 98:0 /root /mount/point rw,noatime master:1 - ext3 /dev/root rw
            before, _, after = line.partition(b" - ")
            point = re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), before.split()[4])
            at = os.fsdecode(point).rstrip("/") + "/"
            # if several are mounted at one place, the last one is visible
            if path.startswith(at) and len(at) >= longest:
                kind, longest = os.fsdecode(after.split()[0]), len(at)
    return kind in _OWN_DISKS


def _remove_unless_locked(path: str) -> None:
    """Remove the folder. Raises `OSError` if a process holds its lock."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(folder).st_uid == os.geteuid():
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            import shutil

            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(folder)
