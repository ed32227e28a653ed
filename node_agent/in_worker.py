"""Functions with which a training script reports progress to its agent and receives notices, without dependencies.

`progress` writes into a small piece of memory that the agent shares with each worker (`NODE_AGENT_PROGRESS_FILE`). It
does not make a system call that could block, nor wake the agent, which reads the memory when it needs to. Without an
agent `progress` does nothing.

`notice` returns whether the round is about to end, so that the script can save its work. `acknowledge` reports that the
script has saved. Both use small files (`NODE_AGENT_NOTICE_FILE`, `NODE_AGENT_NOTICE_ACK`).
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
"""First bytes of the file, with the version of the format. A writer that finds other bytes must not write."""
KINDS = ("step", "checkpoint", "evaluation", "saving", "end", "work", "other")
_SAVING = KINDS.index("saving")
PHASES = ("imported", "initialized", "loaded")
"""Phases of a worker's start, in their usual order."""
HEADER = struct.Struct(f"={len(MAGIC)}sQ")
"""The magic, and the number of records written so far. The latest record is in slot `number % 2`."""
RECORD = struct.Struct("=QqqQd" + "Qdd" * len(KINDS))
"""Number of the record, step, step of the last checkpoint (-1 if none), index of the kind, monotonic seconds. Then for
each kind: its count, its seconds in all, and its longest time in seconds."""
STARTS = struct.Struct("=" + "d" * len(PHASES))
"""Monotonic seconds at which each phase was complete, 0 if the worker has not reported it."""
STARTS_AT = HEADER.size + 2 * RECORD.size
RESUMED = struct.Struct("=Q")
"""Step after which the worker continued, plus 1; 0 if it has not reported it."""
RESUMED_AT = STARTS_AT + STARTS.size
FILE_BYTES = RESUMED_AT + RESUMED.size
LARGEST = 2**53
"""Largest step that a worker can report."""


def progress(step: int | None = None, kind: str = "step") -> None:
    """Report to the agent that a step, a checkpoint, an evaluation or the loading of an epoch is complete.

    Call it at the end of each piece of work. The agent takes the time since the previous call as the duration of that
    work. A call takes some microseconds, and does nothing without an agent.

    `step`: number of steps done since the training began, in all epochs. It may begin anywhere and may go back after a
    restart. None means the same as before.

    `kind`: what is complete, one of these:

    - "step".
    - "checkpoint": the checkpoint of `step` is complete, and the script can resume from it.
    - "evaluation", "epoch" or any other word.
    - "work": the part of a step in which this worker waits for no other worker. It shows which nodes are slow.
    - "saving": a checkpoint begins.
    - "end": the last work begins, which may take any time.

    Three more words split the time until the first step. They do not count as progress, and only before the first
    step:

    - "imported": the script has imported its modules.
    - "initialized": the process group exists.
    - "loaded": the checkpoint or the weights are loaded. `step` tells after which step the script continues, so that
      the server knows which steps are repeated. `saved_by_survivors` tells it by itself.

    `--progress-timeout` treats a worker that does not report progress for too long as hung. The server shows the steps
    and their durations.
    """
    memory = _shared()
    if memory is not None and _lock.acquire(False):  # skip if a signal handler or another thread is in here too
        try:
            if kind in PHASES:
                _write_start(memory, kind)
            else:
                _write(memory, step, kind)
        finally:
            _lock.release()
    if kind == "loaded" and step is not None:
        continues_after(step)


def continues_after(step: int) -> None:
    """Report after which step the script continues. Call it before the first step is reported."""
    memory = _shared()
    if memory is not None:
        RESUMED.pack_into(memory, RESUMED_AT, _whole(step) + 1)


def _shared() -> mmap.mmap | None:
    global _memory, _is_looked_for
    if not _is_looked_for:
        path = os.environ.get(PROGRESS_FILE, "")
        _memory = _opened_early if _opened_early and path == _early_path else _open(path, warns=True)
        _is_looked_for = True  # last, so that a signal handler or another thread finds the memory
    return _memory


_memory: mmap.mmap | None = None
_is_looked_for = False
_is_warned_of_fall = False
_lock = allocate_lock()


def _open(path: str, *, warns: bool) -> mmap.mmap | None:
    """Return the memory shared with the agent, None without an agent or if its file cannot be reached from here."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if warns and path and _is_first_of_node():
            _warn("progress_is_hidden", path, error.strerror or str(error))
        return None
    try:
        begin = os.pread(descriptor, len(MAGIC), 0)  # reads nothing from a file without offsets, such as a pipe
        if begin == MAGIC and os.fstat(descriptor).st_size >= FILE_BYTES:
            return mmap.mmap(descriptor, FILE_BYTES)
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)
    if warns and begin.startswith(FORMAT):
        _warn_of_another_version()
    return None


def _is_first_of_node() -> bool:
    return os.environ.get("LOCAL_RANK", "0") == "0"


def _warn_of_another_version() -> None:
    _warn("progress_of_another_version", __file__)


def _warn_of_fall(step: int, before: int) -> None:
    """Write a warning if the steps fall, as if they were counted within each epoch. One worker of a node writes it."""
    global _is_warned_of_fall
    if not _is_warned_of_fall and _is_first_of_node():
        _is_warned_of_fall = True
        _warn("steps_fall", before, step)


def _warn(kind: str, *fields: object) -> None:
    """Write a message to stderr if possible. A script never fails because of this message.

    It is not buffered: at the script's end, Python exits with 120 if it cannot write what is left in a buffer.
    """
    try:
        from node_agent import words

        os.write(sys.stderr.fileno(), f"{getattr(words.workers, kind)(*fields)}\n".encode())
    except (AttributeError, ImportError, OSError, ValueError):
        pass


def _write(memory: mmap.mmap, step: int | None, kind: str) -> None:
    """Fill the slot that is not being read, then point to it."""
    _, number = HEADER.unpack_from(memory)
    _, last_step, checkpoint_step, last_kind, last_at, *spent = RECORD.unpack_from(memory, offset(number))
    now, index = time.monotonic(), KINDS.index(kind) if kind in KINDS else len(KINDS) - 1
    new_step = _whole(step) if step is not None else last_step if number else -1
    if number and kind == "step" and new_step < last_step:
        _warn_of_fall(new_step, last_step)
    checkpoint = new_step if kind == "checkpoint" else checkpoint_step if number else -1
    if number:
        took = now - last_at
        if kind == "checkpoint" and spent[3 * _SAVING] and last_kind != _SAVING:
            spent[1] += took  # saved beside the steps: it took part of a step, and shows not how long a save takes
        else:
            times, total, longest = spent[3 * index : 3 * index + 3]
            spent[3 * index : 3 * index + 3] = times + 1, total + took, max(longest, took)
    record = RECORD.pack(number + 1, new_step, checkpoint, index, now, *spent)
    memory[offset(number + 1) : offset(number + 1) + RECORD.size] = record
    HEADER.pack_into(memory, 0, MAGIC, number + 1)


def _write_start(memory: mmap.mmap, phase: str) -> None:
    """Fill in when this phase of the start was complete, unless the worker already reports progress."""
    if HEADER.unpack_from(memory)[1] == 0:
        struct.pack_into("=d", memory, STARTS_AT + 8 * PHASES.index(phase), time.monotonic())


def _whole(step: int) -> int:
    return min(max(0, int(step)), LARGEST)


def offset(number: int) -> int:
    """Return the file offset of the record with this number."""
    return HEADER.size + number % 2 * RECORD.size


_early_path = os.environ.get(PROGRESS_FILE, "")
_opened_early = _open(_early_path, warns=False)
"""Memory that is opened with the import. A script that then becomes another user could no longer open it."""


def clock() -> str:
    """Return what identifies the monotonic clock of this process: each time namespace has its own."""
    try:
        return os.readlink("/proc/self/ns/time")
    except OSError:  # an older kernel
        return ""


class Notice:
    """Notice that the worker's round is about to end. The worker may save before."""

    def __init__(self, fields: dict[str, object]) -> None:
        self.source = str(fields.get("source", ""))
        """Cause of the end: "node_left", "node_drained" or "node_arrived". A later agent may send other causes."""
        self.node_id = str(fields.get("node_id", ""))
        """The node that leaves or joins."""
        self.reason = str(fields.get("reason", ""))
        """Reason, as a sentence for people."""
        self.deadline = float(str(fields.get("deadline", 0.0)))
        """Wall-clock time in seconds since 1970 at which the workers are stopped, unless all of them acknowledge
        before."""
        self._until = fields.get("monotonic_deadline") if fields.get("clock", clock()) == clock() else None
        """The same by the monotonic clock. None from an older agent, or if the agent has another clock."""

    @property
    def remaining_s(self) -> float:
        """Seconds that remain, not below 0. It does not matter if the wall clock is set meanwhile."""
        left_s = self.deadline - time.time() if self._until is None else float(str(self._until)) - time.monotonic()
        return max(0.0, left_s)


def notice() -> Notice | None:
    """Return the notice that this round ends soon, or None if there is no notice or no agent.

    Call it once a step: it checks whether a file exists, which takes some microseconds. The ranks may see a notice at
    different steps, so let them agree before they save, for example by an all-reduce of `notice() is not None`.

    After the first call the agent waits for this worker's `acknowledge` before the round ends, at most until the
    deadline.
    """
    global _listens
    path = os.environ.get(NOTICE_FILE)
    if not path:
        return None
    if not _listens:
        _listens = True
        error = _append_to_ack(b"")
        if error and _is_first_of_node():
            _warn("notices_are_hidden", path, error.strerror or str(error))
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return None
    import json

    return Notice(json.loads(data))


def acknowledge() -> None:
    """Report to the agent that this worker has saved its work, and may be stopped at any time from now on.

    The worker may continue, wait, or exit with 0. That exit then does not count as the end of its work.
    """
    _append_to_ack(b"acknowledged\n")


_listens = False


def _append_to_ack(words: bytes) -> OSError | None:
    """Append to the file, if the worker has one. Return why it cannot be opened, such as that the agent is gone."""
    path = os.environ.get(NOTICE_ACK)
    if path:
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            return error
        try:
            os.write(file, words)
        finally:
            os.close(file)
    return None
