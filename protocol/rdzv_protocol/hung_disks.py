"""Names files that do not answer while a program reads its command line and its files.

A system call to a network disk that hangs, or to a pipe without a writer, does not return. Python does not run signal
handlers meanwhile. Without this the program would be silent. Linux tells in which system call each thread waits.
"""

import os
from _thread import LockType, allocate_lock, start_new_thread
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

TOLD_AFTER_S = 3.0
"""Seconds from the program's start until it looks for files that do not answer."""
LOOK_S = 1.0
"""Seconds within which a file answers."""
MOST_SHOWN = 3
_THREADS = "/proc/self/task"
_LONGEST_PATH = 4096
_NO_FOLDER = -100 & 0xFFFFFFFF
"""AT_FDCWD, in place of the descriptor of a folder."""
_LOWEST_ADDRESS = 1 << 16
"""Linux does not let processes use lower ones, and file descriptors are never higher."""

_watches: list[LockType] = []
"""A lock of each watch, whose release ends it."""


def begin(program: str, own_words: Callable[[], Sequence[str]], log_format: str = "") -> None:
    """Write a line to stderr if the program does not call `end` soon because a file does not answer.

    `own_words`: returns its command line, without the arguments of a script. `log_format`: value of its variable for
    `--log-format`.
    """
    over = allocate_lock()
    over.acquire()

    def watch() -> None:
        if not over.acquire(timeout=TOLD_AFTER_S):
            before = dict(_calls())
            if not over.acquire(timeout=LOOK_S) and (hung := _files(before.items() & dict(_calls()).items())):
                _tell(program, hung, own_words(), log_format)

    with suppress(RuntimeError):  # no thread can be started
        start_new_thread(watch, ())
        _watches.append(over)


def end() -> None:
    """End the watch. A line that is about to be written may still come."""
    while _watches:
        _watches.pop().release()


def _calls() -> Iterator[tuple[str, str]]:
    """Yield each thread with the system call in which it waits: its number, arguments, and two registers."""
    with suppress(OSError):
        for thread in os.listdir(_THREADS):
            with suppress(OSError), open(f"{_THREADS}/{thread}/syscall") as file:
                yield thread, file.read()


def _files(calls: "set[tuple[str, str]]") -> list[str]:
    return sorted({file for _, call in calls if (file := _file(call))})


def _file(call: str) -> str:
    """Return the file that a system call is about; empty if it is not about a file, or about a standard stream."""
    words = call.split()
    if len(words) < 3 or words[0] == "-1":  # it runs, or waits outside of a call
        return ""
    first, second = int(words[1], 16), int(words[2], 16)
    if first & 0xFFFFFFFF == _NO_FOLDER:
        return _text(second)
    found = _text(first) if first >= _LOWEST_ADDRESS else _opened(first)
    return found if os.sep in found else ""


def _opened(descriptor: int) -> str:
    if descriptor > 2:
        with suppress(OSError):
            found = os.readlink(f"/proc/self/fd/{descriptor}")
            return found if found.startswith(os.sep) else ""
    return ""


def _text(address: int) -> str:
    """Return the text at this address of the program's memory; empty if there is none."""
    with suppress(OSError, OverflowError), open("/proc/self/mem", "rb", buffering=0) as memory:
        text, end, _ = os.pread(memory.fileno(), _LONGEST_PATH, address).partition(b"\0")
        if text and end and min(text) >= ord(" "):
            return os.fsdecode(text)
    return ""


def _tell(program: str, hung: Sequence[str], words: Sequence[str], log_format: str) -> None:
    import logging

    from rdzv_protocol.log_lines import early
    from rdzv_protocol.words import disks

    line = early(program, disks.hang(hung[:MOST_SHOWN]), words, log_format, logging.WARNING)
    with suppress(OSError):
        os.write(2, f"{line}\n".encode())
