"""Functions by which a training script tells its agent of progress and hears of notices, without dependencies.

`progress` writes into a small piece of memory that the agent shares with each worker (`NODE_AGENT_PROGRESS_FILE`). It
makes no system call that could block and wakes nobody up: the agent reads it when it has reason to. Without an agent it
does nothing.

The other way round, `notice` says whether the round is about to end, so that the script saves its work, and
`acknowledge` that it has: by two small files (`NODE_AGENT_NOTICE_FILE`, `NODE_AGENT_NOTICE_ACK`).
"""

import mmap
import os
import struct
import sys
import time
from _thread import allocate_lock

PROGRESS_FILE = "NODE_AGENT_PROGRESS_FILE"
NOTICE_FILE, NOTICE_ACK = "NODE_AGENT_NOTICE_FILE", "NODE_AGENT_NOTICE_ACK"
FORMAT = b"node-agent progress "
MAGIC = FORMAT + b"2\0\0\0"
"""Begin of the file, with the version of what follows: whoever finds something else there leaves it alone."""
KINDS = ("step", "checkpoint", "evaluation", "saving", "end", "work", "other")
HEADER = struct.Struct(f"={len(MAGIC)}sQ")
"""The magic and the number of records that have been written; the latest one is in slot number % 2."""
RECORD = struct.Struct("=QqqQd" + "Qdd" * len(KINDS))
"""Number of the record, step, step of the last checkpoint (-1: none), index of the kind, monotonic seconds; then for
each kind how often it was, its seconds in all, and the longest of them."""
FILE_BYTES = HEADER.size + 2 * RECORD.size
LARGEST = 2**53
"""Largest step that can be told."""


def progress(step: int | None = None, kind: str = "step") -> None:
    """Tell the agent of this worker that a step, a checkpoint, an evaluation or the loading of an epoch is done.

    Call it where each ends: the time since the call before is what it took. `step` is the number of steps done, which
    may begin anywhere and may go back after a restart; None: the same as before. `kind`: "step", "checkpoint" (the
    checkpoint of `step` is complete, and can be resumed from), "evaluation", "work" (the part of a step is done that
    waits for nobody: by it a node is found that is slower than the others), "epoch" or any other word. Two say what
    comes: with "saving" a checkpoint begins, with "end" the last work, of which nobody knows how long it takes.

    It takes some microseconds, and does nothing if no agent is there. A worker from which none comes for long is
    what `--progress-timeout` is about; the server shows the steps and how long they take.
    """
    global _memory, _is_looked_for
    if not _is_looked_for:
        _is_looked_for, _memory = True, _open(os.environ.get(PROGRESS_FILE, ""))
    if _memory is not None and _lock.acquire(False):  # else a signal handler, or another thread, is in here, too
        try:
            _write(_memory, step, kind)
        finally:
            _lock.release()


_memory: mmap.mmap | None = None
_is_looked_for = False
_lock = allocate_lock()


def _open(path: str) -> mmap.mmap | None:
    """Memory shared with the agent; None without an agent, or where its file cannot be seen from here."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        begin = os.pread(descriptor, len(MAGIC), 0)  # of what has no places, as a pipe, it reads nothing
        if begin == MAGIC:
            return mmap.mmap(descriptor, FILE_BYTES)
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)
    if begin.startswith(FORMAT):
        _warn_of_another_version()
    return None


def _warn_of_another_version() -> None:
    """Write to stderr, where there is one that takes it: a script never fails for what is told here."""
    try:
        from node_agent import words

        sys.stderr.write(f"{words.workers.progress_of_another_version(__file__)}\n")
    except (AttributeError, ImportError, OSError, ValueError):
        pass


def _write(memory: mmap.mmap, step: int | None, kind: str) -> None:
    """Fill the slot that nobody reads, then point to it."""
    _, number = HEADER.unpack_from(memory)
    _, last_step, checkpoint_step, _, last_at, *spent = RECORD.unpack_from(memory, offset(number))
    now, index = time.monotonic(), KINDS.index(kind) if kind in KINDS else len(KINDS) - 1
    new_step = min(max(0, int(step)), LARGEST) if step is not None else last_step if number else -1
    checkpoint = new_step if kind == "checkpoint" else checkpoint_step if number else -1
    if number:
        took = now - last_at
        times, total, longest = spent[3 * index : 3 * index + 3]
        spent[3 * index : 3 * index + 3] = times + 1, total + took, max(longest, took)
    record = RECORD.pack(number + 1, new_step, checkpoint, index, now, *spent)
    memory[offset(number + 1) : offset(number + 1) + RECORD.size] = record
    HEADER.pack_into(memory, 0, MAGIC, number + 1)


def offset(number: int) -> int:
    """Place of the record with this number in the file."""
    return HEADER.size + number % 2 * RECORD.size


class Notice:
    """Notice of the end of a worker's round, before which it may save."""

    def __init__(self, told: dict[str, object]) -> None:
        self.source = str(told.get("source", ""))
        """Cause of the end: "node_left", "node_drained" or "node_arrived"; a later agent may know others."""
        self.node_id = str(told.get("node_id", ""))
        """The node that goes or comes."""
        self.reason = str(told.get("reason", ""))
        """Sentence for people."""
        self.deadline = float(str(told.get("deadline", 0.0)))
        """Wall-clock time, seconds since 1970, at which the workers are stopped unless all acknowledge before."""

    @property
    def remaining_s(self) -> float:
        """Seconds that are left, not below 0."""
        return max(0.0, self.deadline - time.time())


def notice() -> Notice | None:
    """The notice that this round ends soon; None while there is none, and without an agent.

    Call it once a step: it looks whether a file is there, which takes some microseconds. Not all ranks see a notice at
    the same step: let them agree, by an all-reduce of whether there is one, before they save. From the first call on
    the agent waits for this worker's `acknowledge` before the round ends, until the deadline.
    """
    global _listens
    path = os.environ.get(NOTICE_FILE)
    if not path:
        return None
    if not _listens:
        _listens = True
        _append_to_ack(b"")
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return None
    import json

    return Notice(json.loads(data))


def acknowledge() -> None:
    """Tell the agent that this worker has saved what it needs: it may be stopped at any time from now on.

    It may go on meanwhile, wait, or exit with 0, which then does not count as the end of its work.
    """
    _append_to_ack(b"acknowledged\n")


_listens = False


def _append_to_ack(words: bytes) -> None:
    path = os.environ.get(NOTICE_ACK)
    if path:
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:  # the agent is gone, and its folder with it
            return
        try:
            os.write(file, words)
        finally:
            os.close(file)
