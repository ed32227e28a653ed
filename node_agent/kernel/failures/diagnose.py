"""Diagnosis of a worker's end: its exit status in words, its last output, and advice."""

import os
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from errno import EFBIG
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace
from rdzv_protocol.evidence import LastError
from rdzv_protocol.messages import Blame, Failure
from rdzv_protocol.text import clip, last_lines, printable

from node_agent import words
from node_agent.kernel.failures import error_file, hints
from node_agent.kernel.failures.error_file import ErrorFile
from node_agent.kernel.failures.stderr_errors import StderrError, find_error, headline, is_of_script, is_without_reason
from node_agent.kernel.output.disk_space import is_full
from node_agent.kernel.processes.temp_dir import FALLBACK

if TYPE_CHECKING:
    from node_agent.kernel.failures.oom import OomWatch
    from node_agent.kernel.output.pieces import End
    from node_agent.kernel.worker_spec import WorkerSpec

LINE_BYTES, NAME_BYTES = 512, 96
TAIL_BYTES = 8_192
"""Bytes kept of a traceback and of the last output: two screenfuls."""
TRACEBACK_LINES, TAIL_LINES = 40, 20
RUNNING_BYTES = 4_096
"""Most bytes of a running worker's traceback: one message carries many of them."""
MOST_LINES = 200
"""Most lines of a traceback that are examined."""
UNCAUGHT = 1
"""Exit code of Python after an uncaught exception."""
SEARCHED_LINES = 64
"""Most lines at the end of stderr that are searched for a known error: older ones may be about something else."""


class LeftOnDisk(NamedTuple):
    """Evidence of a worker's end that is on a disk."""

    recorded: ErrorFile | None
    """Error file of the worker, None if there is none."""
    why_lost: str = ""
    """Why the worker's last output may be lost, and what to do; empty if it is complete."""
    is_node_full: bool = False
    """Whether a disk of the node itself is full."""


def look_at_disk(path: str, ends: "Sequence[End]" = ()) -> LeftOnDisk:
    """Read a worker's error file and check its disk. Any thread may call this.

    `ends`: the ends of the worker's output files, already read.
    """
    recorded = error_file.read(path)
    folder = os.path.dirname(path)
    with suppress(OSError):  # the folder does not exist
        if is_full(folder):
            return LeftOnDisk(recorded, words.failures.disk_full(folder))
    for end in ends:
        if end.why_full and end.why_full.errno == EFBIG:
            why = words.failures.file_cannot_grow(end.why_full.strerror or "", words.output.RAISE_THE_LIMIT)
            return LeftOnDisk(recorded, why)
    return LeftOnDisk(recorded)


def unread(problem: OSError) -> LeftOnDisk:
    """Return the evidence if it could not be read in time."""
    return LeftOnDisk(ErrorFile(problem=problem.strerror or str(problem)))


def examine(
    spec: "WorkerSpec",
    pid: int,
    exit_code: int,
    stderr: Sequence[str],
    oom: "OomWatch | None",
    left: LeftOnDisk | None = None,
    *,
    has_used_up_cpu_time: bool = False,
) -> Failure:
    """Return the failure of a worker that has been reaped. Never raises, even if files on the disk are broken."""
    recorded = left.recorded if left else None
    ended = _ended(spec, pid, exit_code, recorded)
    out_of_memory = oom.verdict(pid) if oom and exit_code in _KILLED else ""
    is_node_full = left is not None and left.is_node_full
    failure = diagnose(ended, stderr, recorded, out_of_memory=out_of_memory, is_node_full=is_node_full)
    if exit_code == -signal.SIGKILL and has_used_up_cpu_time and not out_of_memory:
        status = words.failures.killed_by(signal.SIGKILL, "SIGKILL")
        cause = words.failures.with_meaning(status, words.failures.CPU_TIME_USED_UP)
        failure = replace(failure, cause=cause, hint=words.failures.SEE_ULIMIT_T)
    if not failure.error and left and left.why_lost and failure.blame != "node":  # else its condition would be lost
        failure = replace(failure, hint=clip(printable(left.why_lost), LINE_BYTES))
    is_open = failure.hint in _OPEN_HINTS and not failure.consequence
    if is_open and oom and not out_of_memory and (killed := oom.killed_any(pid)):
        failure = replace(failure, hint=killed, blame="program" if failure.blame == "unknown" else failure.blame)
    return failure


def failure_from_torch(rank: int, failure: Any, node_id: str) -> Failure:
    """Return the failure that a `ProcessFailure` describes, torch's or that of `node_agent.compat.api`."""
    recorded = error_file.read(failure.error_file)
    ended = Failure(
        node_id=node_id,
        rank=rank,
        local_rank=failure.local_rank,
        pid=failure.pid,
        exit_code=failure.exitcode,
        cause="",
        error_file=failure.error_file if recorded and not recorded.problem else "",
        failed_at=float(failure.timestamp),
    )
    return diagnose(ended, (), recorded, is_node_full=is_node_full())


def raised(
    spec: "WorkerSpec", pid: int, stderr: Sequence[str], recorded: ErrorFile | None = None, *, is_recent: bool = False
) -> Failure | None:
    """Return the failure of a running worker, if an exception of its own has ended its script; else None.

    Such a worker may have left its process group and still run its exit handlers, or wait for a thread. `recorded`: its
    error file. Torch's `@record` writes it when an exception leaves the script. `is_recent`: see `find_error`.
    """
    if not (recorded and recorded.error) and not find_error(stderr, is_recent=is_recent).is_uncaught:
        return None
    ended = _ended(spec, pid, UNCAUGHT, recorded)
    failure = replace(diagnose(ended, stderr, recorded), cause=words.failures.STILL_EXITING)
    return None if failure.consequence else failure


def _ended(spec: "WorkerSpec", pid: int, exit_code: int, recorded: ErrorFile | None) -> Failure:
    """Return the failure, without its cause, of a worker that has failed now, or when it recorded its error."""
    at = recorded.at if recorded else None
    return Failure(
        node_id=spec.node_id, rank=spec.rank, local_rank=spec.local_rank, pid=pid, exit_code=exit_code, cause="",
        error_file=spec.error_file if recorded and not recorded.problem else "", failed_at=at or time.time(),
    )  # fmt: skip


def lost_thread(stderr: Sequence[str]) -> str:
    """Return the exception that has ended a thread of the script, empty if there is none.

    Threads of libraries do not count: many fail while Python exits, and nothing is lost. Nor do lost peers.
    """
    found = find_error(stderr)
    if not found.thread or not is_of_script(found.traceback):
        return ""
    advice = _advice([found.error, *reversed(found.traceback[-MOST_LINES:])], found)
    if advice and advice.is_consequence:
        return ""
    return words.failures.error_of_thread(_in_one_line(found.error, found), clip(printable(found.thread), NAME_BYTES))


def last_error(rank: int, stderr: Sequence[str]) -> LastError | None:
    """Return the exception at the end of a running worker's stderr, None if there is none."""
    found = find_error(stderr)
    if not found.error:
        return None
    advice = _advice([found.error, *reversed(found.traceback[-MOST_LINES:])], found)
    return LastError(
        rank=rank,
        error=clip(printable(_in_one_line(found.error, found)), LINE_BYTES),
        traceback=last_lines(_fit(found.traceback, TRACEBACK_LINES), TRACEBACK_LINES, RUNNING_BYTES),
        is_uncaught=found.is_uncaught,
        is_consequence=bool(advice and advice.is_consequence),
        thread=clip(printable(found.thread), NAME_BYTES),
    )


def diagnose(
    ended: Failure,
    stderr: Sequence[str],
    recorded: ErrorFile | None = None,
    *,
    out_of_memory: str = "",
    is_node_full: bool = False,
) -> Failure:
    """Return the failure with the evidence of a worker's end. All texts are printable and of bounded size.

    The error file takes precedence over stderr. `out_of_memory`: how the kernel killed the worker for lack of memory,
    in words; empty if it did not. `is_node_full`: whether a disk of the node itself is full.
    """
    recorded, status = recorded or ErrorFile(), exit_status(ended.exit_code, out_of_memory)
    if in_file := recorded.traceback.splitlines()[-MOST_LINES:]:
        found = find_error(in_file)
    else:
        by_exception = ended.exit_code == UNCAUGHT
        is_killed = status.signal in _FROM_OUTSIDE
        found = StderrError() if is_killed else find_error(stderr, status.signal, by_exception=by_exception)
    error = headline([printable(line) for line in recorded.error.splitlines()]) or found.error
    traceback = in_file or found.traceback
    written = [recorded.error or found.error, *reversed(traceback or stderr[-SEARCHED_LINES:])]
    if status.signal == "SIGABRT":
        written += reversed(stderr[-SEARCHED_LINES:])  # a library writes the reason before it aborts
    advice = _advice(written, found) if status.signal in ("", "SIGABRT") else None
    cause = status.cause
    if recorded.problem:
        cause = words.failures.with_broken_error_file(cause, recorded.problem)
    return replace(
        ended,
        cause=clip(printable(cause), LINE_BYTES),
        error=clip(_in_one_line(error, found), LINE_BYTES),
        traceback=_fit(traceback, TRACEBACK_LINES),
        stderr_tail=_fit(stderr, TAIL_LINES),
        hint=_hint(advice, is_node_full) if advice else _hint_of_status(status, error),
        consequence=bool(advice and advice.is_consequence),
        blame=_blame(advice, out_of_memory, is_node_full),
        recurs=advice.recurs if advice else "unknown",
    )


def _advice(written: Iterable[str], found: StderrError) -> hints.Advice | None:
    """Return the advice on what a worker has written.

    The first exception of a chain decides whether the failure follows from another worker's. If the script itself
    failed first, the others may have ended because of that, and it noticed while it cleaned up.
    """
    if found.first_error:
        first = hints.find([found.first_error, *reversed(found.first_lines)])
        if first is None or not first.is_consequence:
            return first or hints.find(written, consequences=False)
    return hints.find(written)


def _in_one_line(error: str, found: StderrError) -> str:
    """Return the exception that ended a process, with the one that began its chain."""
    if not found.first_error or found.first_error == error:
        return error
    first = clip(printable(found.first_error), LINE_BYTES // 3)
    return words.failures.error_after(clip(error, LINE_BYTES // 2), first)


def _hint(advice: hints.Advice, is_node_full: bool) -> str:
    return words.hints.NODE_DISK_FULL if advice.is_of_disk and is_node_full else advice.hint


def _hint_of_status(status: "ExitStatus", error: str) -> str:
    return words.failures.END_PROCESS_GROUP if is_without_reason(error) else status.hint


def _blame(advice: hints.Advice | None, out_of_memory: str, is_node_full: bool) -> Blame:
    """Return what is to blame: the program, the node or unknown. It follows from the error's advice and the disks."""
    if advice is None:
        return "program" if out_of_memory else "unknown"
    return "node" if advice.is_of_disk and is_node_full else advice.blame


def is_node_full() -> bool:
    """Return whether the root's disk or the one for temporary files is full. Any thread may call this."""
    with suppress(OSError):
        return any(map(is_full, ("/", os.environ.get("TMPDIR") or FALLBACK)))
    return False


class ExitStatus(NamedTuple):
    """An exit status in words."""

    signal: str
    """Name of the signal, such as `SIGKILL`; empty if there was none."""
    status: str
    """The exit code or the signal, for people."""
    meaning: str
    """Usual reason for such an end, empty if it shows none."""
    hint: str

    @property
    def cause(self) -> str:
        """The status, with its reason if there is one."""
        return words.failures.with_meaning(self.status, self.meaning) if self.meaning else self.status


def exit_status(exit_code: int, out_of_memory: str = "") -> ExitStatus:
    """Return the meaning of an exit code. A signal's is negative, as in `subprocess`, or above 128, as in a shell."""
    status, number = words.failures.exit_code(exit_code), -exit_code if exit_code < 0 else exit_code - 128
    if exit_code >= 0 and not 0 < number <= _LAST_SIGNAL:
        name, meaning, hint = "", _EXIT_CODES.get(exit_code, ""), ""
    else:
        name = _SIGNAL_NAMES.get(number, "unknown")
        status = (
            words.failures.killed_by(number, name)
            if exit_code < 0
            else words.failures.exit_code_of_signal(exit_code, number, name)
        )
        meaning, hint = _SIGNALS.get(name, ("", ""))
        if name == "SIGKILL" and out_of_memory:
            meaning, hint = out_of_memory, words.failures.MORE_MEMORY
    return ExitStatus(name, status, meaning, hint)


def _fit(lines: Sequence[str], most_lines: int) -> tuple[str, ...]:
    clipped = [clip(printable(line.rstrip()[: 4 * LINE_BYTES]), LINE_BYTES) for line in lines[-most_lines:]]
    return last_lines(clipped, most_lines, TAIL_BYTES)


_LAST_SIGNAL = 64
_SIGNAL_NAMES = {number.value: number.name for number in signal.Signals}
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
_FROM_OUTSIDE = ("SIGKILL", "SIGTERM", "SIGHUP")
"""Signals that other processes send. If one of them killed the worker, an exception on its stderr was not the cause."""

_OPEN_HINTS = ("", words.hints.DATA_LOADER_KILLED, words.hints.DATA_LOADER_EXITED)
"""Hints that leave open whether a process of the worker was killed for lack of memory."""

_EXIT_CODES = {
    120: words.failures.OUTPUT_NOT_WRITTEN,
    126: words.failures.NOT_EXECUTABLE,
    127: words.failures.PROGRAM_NOT_FOUND,
}

_SIGNALS = {
    "SIGKILL": (words.failures.KILLED_FROM_OUTSIDE, words.failures.ASK_WHO_KILLED),
    "SIGSEGV": (words.failures.SEGMENTATION_FAULT, words.failures.USE_FAULTHANDLER),
    "SIGBUS": (words.failures.BUS_ERROR, words.hints.MORE_SHM),
    "SIGABRT": (words.failures.ABORTED, words.failures.SEE_STDERR),
    "SIGFPE": (words.failures.ARITHMETIC_ERROR, ""),
    "SIGILL": (words.failures.ILLEGAL_INSTRUCTION, words.failures.OTHER_CPU),
    "SIGTERM": (words.failures.TERMINATED, words.failures.ASK_WHO_SIGNALLED),
    "SIGALRM": (words.failures.ALARM, ""),
    "SIGINT": (words.failures.INTERRUPTED, ""),
    "SIGHUP": (words.failures.HUNG_UP, ""),
    "SIGQUIT": (words.failures.QUIT, words.failures.ASK_WHO_SIGNALLED),
    "SIGUSR1": (words.failures.NOT_HANDLED, words.failures.ASK_WHO_SIGNALLED),
    "SIGUSR2": (words.failures.NOT_HANDLED, words.failures.ASK_WHO_SIGNALLED),
    "SIGPIPE": (words.failures.BROKEN_PIPE, ""),
    "SIGSYS": (words.failures.FORBIDDEN_SYSTEM_CALL, ""),
    "SIGXCPU": (words.failures.CPU_TIME_USED_UP, words.failures.SEE_ULIMIT_T),
    "SIGXFSZ": (words.failures.FILE_TOO_LARGE, words.output.RAISE_THE_LIMIT),
}
"""Meaning of a signal that ends a worker, and what to do."""
