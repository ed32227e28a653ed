"""Names disks that do not answer while a program reads its command line and its files.

A system call to a network disk that hangs does not return, and Python runs no signal handler meanwhile. Without this
the program would be silent.
"""

import os
import sys
from _thread import LockType, allocate_lock, start_new_thread
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice

TOLD_AFTER_S = 3.0
"""Seconds from the program's start until it looks for disks that hang."""
LOOK_S = 1.0
"""Seconds within which a disk answers."""
MOST_SHOWN = 3
MOST_LOOKS = 64
"""Most paths that are looked at. Each look has a thread."""
_VARIABLES = ("TMPDIR", "PATH", "PYTHONPATH")

_watches: list[LockType] = []
"""A lock of each watch, whose release ends it."""


def begin(
    program: str, own_words: Callable[[], Sequence[str]], environment: Mapping[str, str], log_format: str = ""
) -> None:
    """Write a line to stderr if the program does not call `end` soon because a disk hangs.

    `own_words`: returns its command line, without the arguments of a script. `log_format`: value of its variable for
    `--log-format`.
    """
    over = allocate_lock()
    over.acquire()

    def watch() -> None:
        if not over.acquire(timeout=TOLD_AFTER_S):
            words = own_words()
            if hung := _hung(dict.fromkeys(_paths(words, environment))):
                _tell(program, hung, words, log_format)

    with suppress(RuntimeError):  # no thread can be started
        start_new_thread(watch, ())
        _watches.append(over)


def end() -> None:
    """End the watch. A line that is about to be written may still come."""
    while _watches:
        _watches.pop().release()


def _paths(words: Sequence[str], environment: Mapping[str, str]) -> Iterator[str]:
    """Yield paths that the program may have to look at."""
    yield os.curdir
    yield from (path for path in sys.path if path)
    for word in words:
        yield from (part for part in {word, word.rpartition("=")[2]} if os.sep in part)
    for name, value in environment.items():
        if name in _VARIABLES or name.startswith("PET_"):
            yield from (path for path in value.split(os.pathsep) if os.sep in path)


def _hung(paths: Iterable[str]) -> list[str]:
    """Return the first paths that cannot be looked at in time. Each look has a thread, which ends with the program."""
    looks: dict[str, LockType] = {}
    for path in islice(paths, MOST_LOOKS):
        looks[path] = allocate_lock()
        looks[path].acquire()
        try:
            start_new_thread(_look, (path, looks[path]))
        except RuntimeError:
            del looks[path]
            break
    until = allocate_lock()
    until.acquire()
    until.acquire(timeout=LOOK_S)
    return sorted(path for path, look in looks.items() if look.locked())


def _look(path: str, look: LockType) -> None:
    with suppress(OSError, ValueError):
        os.stat(path)
    look.release()


def _tell(program: str, hung: Sequence[str], words: Sequence[str], log_format: str) -> None:
    import logging

    from rdzv_protocol.log_lines import early
    from rdzv_protocol.words import disks

    line = early(program, disks.hang(hung[:MOST_SHOWN]), words, log_format, logging.WARNING)
    with suppress(OSError):
        os.write(2, f"{line}\n".encode())
