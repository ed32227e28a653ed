"""Diagnosis of a worker's end: its exit status in words, what it wrote last, and what a person can do about it."""

import os
import signal
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace
from rdzv_protocol.messages import Failure
from rdzv_protocol.text import clip, last_lines, one_line, printable

from node_agent.failures import error_file, hints
from node_agent.failures.error_file import ErrorFile
from node_agent.failures.stderr_errors import LastWords, last_words

if TYPE_CHECKING:
    from node_agent.failures.oom import OomWatch
    from node_agent.workers.group import WorkerSpec

LINE_BYTES = 512
TAIL_BYTES = 8_192
"""Size of a traceback, and of what was written last: two screenfuls, whatever the script wrote."""
TRACEBACK_LINES, TAIL_LINES = 40, 20
MOST_LINES = 200
"""Lines of a traceback that are looked at."""


def examine(spec: "WorkerSpec", pid: int, exit_code: int, stderr: Sequence[str], oom: "OomWatch | None") -> Failure:
    """The failure of a worker that has been reaped. Never raises, whatever the worker left behind."""
    recorded = error_file.read(spec.error_file) if spec.error_file else None
    ended = Failure(
        node_id=spec.node_id,
        rank=spec.rank,
        local_rank=spec.local_rank,
        pid=pid,
        exit_code=exit_code,
        cause="",
        error_file=spec.error_file if recorded and not recorded.problem else "",
        failed_at=(recorded and recorded.at) or time.time(),
    )
    out_of_memory = oom.verdict() if oom and exit_code in _KILLED else ""
    failure = diagnose(ended, stderr, recorded, out_of_memory=out_of_memory)
    if not failure.error and spec.error_file and _is_full(folder := os.path.dirname(spec.error_file)):
        problem = f"the disk of the log files is full, and what the worker wrote last is lost: df -h {folder}"
        failure = replace(failure, hint=clip(printable(problem), LINE_BYTES))
    return failure


def diagnose(
    ended: Failure, stderr: Sequence[str], recorded: ErrorFile | None = None, *, out_of_memory: str = ""
) -> Failure:
    """The failure with the evidence of a worker's end: every text is printable and of bounded size.

    Its error file counts more than what stands on its stderr. `out_of_memory`: how the kernel is known to have killed
    it, in words; empty if it is not.
    """
    recorded, name = recorded or ErrorFile(), _signal_name(ended.exit_code)
    found = LastWords() if name in _FROM_OUTSIDE else last_words(stderr)
    error = one_line(recorded.error.splitlines()) or found.error
    traceback = recorded.traceback.splitlines()[-MOST_LINES:] or found.traceback
    written = [recorded.error or found.error, *reversed(traceback or stderr)]
    if name == "SIGABRT":
        written += reversed(stderr)  # a library says why before it aborts
    advice = hints.find(written) if name in ("", "SIGABRT") else None
    problem = f" (its error file cannot be read: {recorded.problem})" if recorded.problem else ""
    return replace(
        ended,
        cause=clip(printable(cause_of(ended.exit_code, out_of_memory) + problem), LINE_BYTES),
        error=clip(error, LINE_BYTES),
        traceback=_fit(traceback, TRACEBACK_LINES),
        stderr_tail=_fit(stderr, TAIL_LINES),
        hint=advice.hint if advice else _hint(name, out_of_memory),
        consequence=bool(advice and advice.is_consequence),
    )


def cause_of(exit_code: int, out_of_memory: str = "") -> str:
    """The exit code or signal in words; negative codes are signals, as in `subprocess`."""
    signum = signal_of(exit_code)
    if signum is None:
        meaning = _EXIT_CODES.get(exit_code)
        return f"exit code {exit_code}" + (f": {meaning}" if meaning else "")
    name = _SIGNAL_NAMES.get(signum, "unknown")
    status = f"signal {signum} ({name})" if exit_code < 0 else f"exit code {exit_code} (128 + {signum}: {name})"
    meaning = out_of_memory if name == "SIGKILL" and out_of_memory else _SIGNALS.get(name, ("", ""))[0]
    return f"{status}: {meaning}" if meaning else status


def signal_of(exit_code: int) -> int | None:
    """The signal that the exit code tells of: as in `subprocess`, or as shells and containers say it."""
    if exit_code < 0:
        return -exit_code
    return exit_code - 128 if 128 < exit_code <= 128 + LAST_SIGNAL else None


LAST_SIGNAL = 64
_SIGNAL_NAMES = {number.value: number.name for number in signal.Signals}
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)


def _signal_name(exit_code: int) -> str:
    """Empty for an exit code."""
    signum = signal_of(exit_code)
    return _SIGNAL_NAMES.get(signum, "unknown") if signum else ""


def _hint(name: str, out_of_memory: str) -> str:
    if name == "SIGKILL" and out_of_memory:
        return "give the job or container more memory, or let it use less: a smaller batch, fewer data loader workers"
    return _SIGNALS.get(name, ("", ""))[1]


def _is_full(folder: str) -> bool:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_blocks > 0 and disk.f_bavail == 0


def _fit(lines: Sequence[str], most_lines: int) -> tuple[str, ...]:
    clipped = [clip(printable(line.rstrip()[: 4 * LINE_BYTES]), LINE_BYTES) for line in lines[-most_lines:]]
    return last_lines(clipped, most_lines, TAIL_BYTES)


_FROM_OUTSIDE = ("SIGKILL", "SIGTERM", "SIGHUP")
"""Whoever is killed so did not die of the exception that stands on its stderr."""

_EXIT_CODES = {
    120: "Python could not write its last output: a closed pipe, or a full disk",
    126: "the program cannot be executed: no permission, or no executable format",
    127: "the program, or one that it calls, was not found",
}

_SIGNALS = {
    "SIGKILL": (
        "killed from outside",
        "the scheduler's events, or dmesg on that node, may tell who did it",
    ),
    "SIGSEGV": (
        "segmentation fault",
        "run with PYTHONFAULTHANDLER=1 to see where; often two native libraries do not fit together",
    ),
    "SIGBUS": (
        "bus error, often /dev/shm is full",
        "enlarge /dev/shm (docker run --shm-size, an emptyDir of medium Memory) or use fewer data loader workers",
    ),
    "SIGABRT": ("aborted", "a native library gave up; it usually says why on stderr"),
    "SIGFPE": ("arithmetic error in native code, such as a division by zero", ""),
    "SIGILL": ("illegal instruction", "a library was built for another CPU than this node's"),
    "SIGTERM": ("asked to end, not by this agent", "a scheduler, a person or the script itself sent the signal"),
    "SIGINT": ("interrupted, not by this agent", ""),
    "SIGHUP": ("hung up, not by this agent", ""),
    "SIGPIPE": ("wrote to a pipe that nobody reads any more", ""),
    "SIGSYS": ("a system call that its sandbox forbids", ""),
    "SIGXCPU": ("its CPU time limit is used up", "see ulimit -t"),
    "SIGXFSZ": ("a file grew beyond its size limit", "see ulimit -f"),
}
"""Meaning of a signal that ends a worker, and what to do."""
