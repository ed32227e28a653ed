"""Room that a file has to grow: on its disk, and up to the largest size that a file may have."""

import os
import resource
from contextlib import suppress
from errno import EFBIG, EINVAL, ENOSPC

from node_agent import words

FULL_BYTES = 1 << 16
"""Bytes by which a file must be able to grow. With less room, the disk or the file counts as full."""


def is_full(file: int | str) -> bool:
    """Return whether the file's disk is so full that the next lines would make a worker fail. Raises `OSError`."""
    disk = os.statvfs(file)
    free = disk.f_bavail if os.geteuid() else disk.f_bfree
    return disk.f_blocks > 0 and free * disk.f_frsize < FULL_BYTES


def why_full(file: int, pid: int = 0) -> OSError | None:
    """Return the error of a process that writes more to a regular file, ENOSPC or EFBIG; None if there is room.

    `file`: a descriptor that no other code uses to read or write, because this function moves its offset. `pid`: the
    writing process, 0 for this one. Raises `OSError` if the file cannot be examined.
    """
    if is_full(file):
        return OSError(ENOSPC, os.strerror(ENOSPC))
    needed, limit = os.fstat(file).st_size + FULL_BYTES, _largest_file(pid)
    if needed > limit >= 0:
        return OSError(EFBIG, words.output.at_limit(os.strerror(EFBIG), limit))
    try:
        os.lseek(file, needed, os.SEEK_SET)
    except OSError as error:
        if error.errno == EINVAL:  # the file system does not support larger files
            return OSError(EFBIG, words.output.at_limit_of_file_system(os.strerror(EFBIG)))
    return None


def in_words(error: OSError) -> str:
    """Return the error for people, with the limit if a file has reached the largest size."""
    if error.errno == EFBIG and error.strerror == os.strerror(EFBIG) and (limit := _largest_file()) >= 0:
        return words.output.own_limit(error.strerror, limit)
    return error.strerror or str(error)


def _largest_file(pid: int = 0) -> int:
    """Return the largest file size in bytes that the process may write, -1 if there is no limit."""
    with suppress(OSError):  # the process is gone, or another user's
        return resource.prlimit(pid, resource.RLIMIT_FSIZE)[0]
    return resource.getrlimit(resource.RLIMIT_FSIZE)[0]
