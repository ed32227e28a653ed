"""A disk that hangs or fails: a FUSE file system with the files of another folder, which does not answer requests while
it hangs.

As a program it runs a command that sees the disk, in a separate mount namespace, and exits with the command's code:

    python hanging_disk.py [--no-locks] FOLDER MOUNT_POINT CONTROL COMMAND...

CONTROL is a named pipe: after `h` the disk hangs, after `r` reads fail, after `q` the quota is used up, and after `a`
it answers again. The program prints "held" as soon as a process waits for a hanging disk. Nothing is cached, so every
system call about a file waits. With --no-locks, no file can be locked, as on a network disk without a lock service.
"""

import ctypes
import errno
import os
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNS, _PR_SET_PDEATHSIG = 0x20000, 1
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18
_LARGEST_REQUEST = 1 << 20
_MAX_WRITE = 1 << 17
_DIRECT_IO = 1
_POSIX_LOCKS = 1 << 1
_FAILURES = {b"r": (15, errno.EIO), b"q": (16, errno.EDQUOT)}
"""Requests that fail after a byte of CONTROL, READ or WRITE, and with which error."""
_ROOT = 1
_SIZE, _MODE = 1 << 3, 1
"""Attributes of SETATTR that are supported."""
Reply = Callable[[int, bytes], bytes]


class HangingDisk:
    """Answers requests of the kernel, by `fuse_kernel.h` 7.31, with files below a folder."""

    def __init__(self, folder: str, *, has_locks: bool) -> None:
        self.failure = 0, 0
        """Kind of the requests that fail now, and their error; 0, 0 for none."""
        flags = 0 if has_locks else _POSIX_LOCKS  # with this flag, the kernel asks for locks here
        self._paths = {_ROOT: folder}
        self._nodes = {folder: _ROOT}
        self._answers: dict[int, Reply] = {
            1: lambda node, body: self._entry(self._child(node, body)),  # LOOKUP
            3: self._getattr, 4: self._setattr, 8: self._mknod, 9: self._mkdir,
            10: lambda node, body: self._done(os.unlink, self._child(node, body)),  # UNLINK
            11: lambda node, body: self._done(os.rmdir, self._child(node, body)),  # RMDIR
            12: lambda node, body: self._rename(node, body, 8),  # RENAME
            45: lambda node, body: self._rename(node, body, 16),  # RENAME2
            14: self._open, 35: self._create, 15: self._read, 16: self._write, 28: self._readdir, 17: self._statfs,
            18: lambda node, body: self._done(os.close, *struct.unpack_from("Q", body)),  # RELEASE
            20: lambda node, body: b"",  # FSYNC; there is no FLUSH, because the end of a process would wait for it
            27: lambda node, body: bytes(16), 29: lambda node, body: b"",  # OPENDIR, RELEASEDIR
            26: lambda node, body: struct.pack("IIIIHHIIHHI28x", 7, 31, 1 << 17, flags, 12, 9, _MAX_WRITE, 1, 0, 0, 0),
        }  # fmt: skip

    def answer(self, request: bytes) -> bytes | None:
        """Return the answer to one request, None if the kernel expects none."""
        _, opcode, unique, node = struct.unpack_from("IIQQ", request)
        if opcode in (2, 36, 42):  # FORGET, INTERRUPT, BATCH_FORGET
            return None
        try:
            if opcode in (31, 32, 33):  # GETLK, SETLK, SETLKW
                raise OSError(errno.ENOLCK, "")
            if opcode == self.failure[0]:
                raise OSError(self.failure[1], "")
            answer = self._answers.get(opcode)
            if answer is None:
                raise OSError(errno.ENOSYS, "")
            body = answer(node, request[40:])
        except OSError as error:
            return struct.pack("IiQ", 16, -(error.errno or errno.EIO), unique)
        return struct.pack("IiQ", 16 + len(body), 0, unique) + body

    def _done(self, call: Callable[..., object], *args: object) -> bytes:
        call(*args)
        return b""

    def _child(self, node: int, name: bytes) -> str:
        return f"{self._paths[node]}/{os.fsdecode(name.partition(bytes(1))[0])}"

    def _entry(self, path: str) -> bytes:
        status = os.lstat(path)
        node = self._nodes.setdefault(path, len(self._paths) + 1)
        self._paths[node] = path
        return struct.pack("QQQQII", node, 0, 0, 0, 0, 0) + _attributes(status)

    def _getattr(self, node: int, body: bytes) -> bytes:
        return bytes(16) + _attributes(os.lstat(self._paths[node]))

    def _setattr(self, node: int, body: bytes) -> bytes:
        valid, _, _, size = struct.unpack_from("IIQQ", body)
        if valid & _SIZE:
            os.truncate(self._paths[node], size)
        if valid & _MODE:
            os.chmod(self._paths[node], struct.unpack_from("I", body, 68)[0] & 0o7777)
        return self._getattr(node, body)

    def _mknod(self, node: int, body: bytes) -> bytes:
        path = self._child(node, body[16:])
        os.mknod(path, struct.unpack_from("I", body)[0])
        return self._entry(path)

    def _mkdir(self, node: int, body: bytes) -> bytes:
        path = self._child(node, body[8:])
        os.mkdir(path, struct.unpack_from("I", body)[0])
        return self._entry(path)

    def _rename(self, node: int, body: bytes, names_at: int) -> bytes:
        (to,) = struct.unpack_from("Q", body)
        old, new, *_ = body[names_at:].split(bytes(1))
        source, target = self._child(node, old), self._child(to, new)
        os.rename(source, target)
        for path, number in list(self._nodes.items()):
            if path == source or path.startswith(f"{source}/"):
                del self._nodes[path]
                moved = target + path[len(source) :]
                self._nodes[moved] = number
                self._paths[number] = moved
        return b""

    def _open(self, node: int, body: bytes) -> bytes:
        flags = struct.unpack_from("I", body)[0] & ~(os.O_APPEND | os.O_DIRECT)
        return struct.pack("QII", os.open(self._paths[node], flags), _DIRECT_IO, 0)

    def _create(self, node: int, body: bytes) -> bytes:
        flags, mode = struct.unpack_from("II", body)
        path = self._child(node, body[16:])
        file = os.open(path, (flags & ~(os.O_APPEND | os.O_DIRECT)) | os.O_CREAT, mode)
        return self._entry(path) + struct.pack("QII", file, _DIRECT_IO, 0)

    def _read(self, node: int, body: bytes) -> bytes:
        file, offset, size = struct.unpack_from("QQI", body)
        return os.pread(file, size, offset)

    def _write(self, node: int, body: bytes) -> bytes:
        file, offset, size = struct.unpack_from("QQI", body)
        return struct.pack("II", os.pwrite(file, body[40 : 40 + size], offset), 0)

    def _readdir(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("QQI", body)
        entries, names = b"", sorted(os.listdir(self._paths[node]))
        for at in range(offset, len(names)):
            name = os.fsencode(names[at])
            entry = struct.pack("QQII", 1, at + 1, len(name), 0) + name
            entry += bytes(-len(entry) % 8)
            if len(entries) + len(entry) > size:
                break
            entries += entry
        return entries

    def _statfs(self, node: int, body: bytes) -> bytes:
        disk = os.statvfs(self._paths[node])
        return struct.pack(
            "QQQQQIIII24x", disk.f_blocks, disk.f_bfree, disk.f_bavail, disk.f_files, disk.f_ffree, disk.f_bsize, 255,
            disk.f_frsize, 0,
        )  # fmt: skip


def _attributes(status: os.stat_result) -> bytes:
    times = (int(status.st_atime), int(status.st_mtime), int(status.st_ctime))
    owner = (status.st_mode, status.st_nlink, status.st_uid, status.st_gid)
    return struct.pack(
        "QQQQQQIIIIIIIIII", status.st_ino, status.st_size, status.st_blocks, *times, 0, 0, 0, *owner, 0, 4096, 0
    )


@cache
def why_no_fuse() -> str:
    """Return why no such disk can be mounted here, empty if one can."""
    if os.geteuid() or not os.path.exists("/dev/fuse"):
        return "needs root and /dev/fuse"
    tried = subprocess.run([sys.executable, __file__, "/tmp", "/mnt", "/dev/null", "true"], capture_output=True)
    return tried.stderr.decode().strip().rpartition("\n")[2]


def main(*arguments: str) -> int:
    """Mount the disk, run the command, and serve the disk until the command has ended."""
    has_locks = arguments[0] != "--no-locks"
    folder, mount_point, control, *command = arguments[not has_locks :]
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    _checked(_libc.unshare(_CLONE_NEWNS))
    _checked(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    _checked(_libc.mount(b"hanging", mount_point.encode(), b"fuse", 0, options))
    child = os.fork()
    if child == 0:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.execvp(command[0], command)
    ended, told = os.pidfd_open(child), os.open(control, os.O_RDWR | os.O_NONBLOCK)
    disk, hangs, is_held = HangingDisk(folder, has_locks=has_locks), False, False
    while True:
        ready, _, _ = select.select([ended, told, *([] if hangs and is_held else [device])], [], [])
        if ended in ready:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if told in ready:
            byte = os.read(told, 1)
            hangs, is_held, disk.failure = byte == b"h", False, _FAILURES.get(byte, (0, 0))
            print("hangs" if hangs else "answers", flush=True)
        elif hangs:
            is_held = True
            print("held", flush=True)
        else:
            with suppress(FileNotFoundError, InterruptedError):  # the request was abandoned
                answer = disk.answer(os.read(device, _LARGEST_REQUEST))
                if answer:
                    os.write(device, answer)


def _checked(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class Disk:
    """Folder of a test that programs see as such a disk."""

    def __init__(self, folder: Path, *, has_locks: bool = True) -> None:
        self._flags = () if has_locks else ("--no-locks",)
        self.path = folder / "disk"
        """Path of the disk, for the program that sees it."""
        self.files = folder / "files"
        """Files of the disk, for all other processes."""
        self._control = folder / "control"
        for each in (self.path, self.files):
            each.mkdir()
        os.mkfifo(self._control)

    def command(self, *command: str) -> tuple[str, ...]:
        """Return the command of a program that sees the disk."""
        disk = (str(self.files), str(self.path), str(self._control))
        return (sys.executable, __file__, *self._flags, *disk, *command)

    def hang(self) -> None:
        self._control.write_text("h")

    def fail_to_read(self) -> None:
        self._control.write_text("r")

    def use_up_quota(self) -> None:
        self._control.write_text("q")

    def answer(self) -> None:
        self._control.write_text("a")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
