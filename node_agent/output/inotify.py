"""Linux's inotify: a descriptor that becomes readable when something happens to a file or in a folder."""

import ctypes
import os

IN_MODIFY = 0x2
IN_OPEN = 0x20
_IN_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)


class Watch:
    """Watches one path. Raises `OSError` if the path is not there, or the user's watches are used up."""

    def __init__(self, path: str, mask: int) -> None:
        self._fd = open_queue()
        try:
            add_watch(self._fd, path, mask)
        except OSError:
            self.close()
            raise

    def fileno(self) -> int:
        """Readable when something has happened since `clear`."""
        return self._fd

    def clear(self) -> None:
        """Forget what has happened so far."""
        try:
            while os.read(self._fd, 1 << 16):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        os.close(self._fd)


def open_queue() -> int:
    """A descriptor for watches. Raises `OSError` if the user's are used up: 128, as a rule."""
    return _checked(_libc.inotify_init1(_IN_NONBLOCK_CLOEXEC))


def add_watch(queue: int, path: str, mask: int) -> int:
    """The watch's number. Raises `OSError` if the path is not there, or the user's watches are used up."""
    return _checked(_libc.inotify_add_watch(queue, os.fsencode(path), ctypes.c_uint32(mask)), path)


def remove_watch(queue: int, watch: int) -> None:
    """Also one that is gone already."""
    _libc.inotify_rm_watch(queue, watch)


def _checked(result: int, path: str | None = None) -> int:
    if result < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno), path)
    return result
