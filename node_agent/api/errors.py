"""Failures of workers as a program sees them: torch's classes, with the same attributes and in the same words.

Where the program has imported torch's own, what is raised is of torch's class, too: `except ChildFailedError` works
whichever of the two it names, and torch's `@record` finds what it looks for.
"""

import atexit
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

from rdzv_protocol.messages import Failure

from node_agent.failures import error_file
from node_agent.failures.report import NOT_AVAILABLE, WIDEST, end_in_torchs_words, local_time, signal_name
from node_agent.workers.temp_dir import TempDir

TORCHS_ERRORS = "torch.distributed.elastic.multiprocessing.errors"
TORCHS_API = "torch.distributed.elastic.multiprocessing.api"


class LaunchError(RuntimeError):
    """The run did not come about, or ended without the failure of a worker: nodes were missing, the server refused
    this one or was out of reach, somebody stopped the run. One line says what happened and what to do."""


class SignalException(Exception):
    """This process got a signal that ends it; `sigval` is the signal. Raised in the main thread, workers and all."""

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        Exception.__init__(self, msg)
        self.sigval = sigval

    def __reduce__(self) -> tuple[Any, ...]:
        return SignalException, (str(self), self.sigval)


@dataclass
class ProcessFailure:
    """Failure of one worker.

    `message` is the content of `message` in its error file: normally a map with `message` ("ValueError: boom") and
    `extraInfo` (`py_callstack`, `timestamp`). Without an error file, or with one that makes no sense, it is torch's
    text: "Signal 9 (SIGKILL) received by PID 7", or where to read how to get a traceback. What the agent found out by
    itself is in `details`.
    """

    local_rank: int
    pid: int
    exitcode: int
    """Negative for a signal."""
    error_file: str
    """File with the worker's exception; `<N/A>` if it left none."""
    error_file_data: dict[str, Any] = field(init=False)
    message: Any = field(init=False)
    timestamp: int = field(init=False)
    """Seconds since 1970."""
    details: Failure | None = field(default=None, kw_only=True)
    """Facts that torch's class does not tell: the end in words, the last lines of stderr, and what to do."""

    def __post_init__(self) -> None:
        content = error_file.load(self.error_file)
        self.timestamp = int((self.details and self.details.failed_at) or time.time())
        if content is None:
            self.error_file, content = NOT_AVAILABLE, {"message": "<NONE>"}
        else:
            self.timestamp = int(error_file.interpret(content).at or self.timestamp)
        self.error_file_data = content
        self.message = content["message"] if self.error_file != NOT_AVAILABLE else ""
        if not self.message:
            self.message = end_in_torchs_words(self.exitcode, self.pid)

    def signal_name(self) -> str:
        """`SIGKILL`, or `<N/A>` where it was no signal."""
        return signal_name(self.exitcode)

    def timestamp_isoformat(self) -> str:
        """`YYYY-MM-DD_HH:MM:SS`, local time."""
        return local_time(self.timestamp)


class ChildFailedError(Exception):
    """Workers failed, and the run with them. `str()` is the whole report: what failed first, and what the run went
    through.

    `name`: of what they ran. `failures`: by global rank, the root first; of other nodes, too.
    """

    def __init__(self, name: str, failures: Mapping[int, ProcessFailure], report: str = "") -> None:
        if not failures:
            raise ValueError("a ChildFailedError needs at least one failure")
        self.name = name
        self.failures = dict(failures)
        self._report = report
        Exception.__init__(self, report or self.format_msg())

    def __reduce__(self) -> tuple[Any, ...]:
        return ChildFailedError, (self.name, self.failures, self._report)

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """The rank that the failure began with, and how it failed."""
        return next(iter(self.failures.items()))

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """torch's box, about the failures alone."""
        root, *others = [_block(index, *failed) for index, failed in enumerate(self.failures.items())]
        title, rest = f"{self.name} FAILED", [*chain.from_iterable(others)]
        width = min(WIDEST, max(map(len, [title, *root, *rest])))
        border, rule = boarder_delim * width, section_delim * width
        first = ["Root Cause (first observed failure):", *root]
        told = ["Failures:", *(rest or ["  <NO_OTHER_FAILURES>"]), rule, *first]
        return "\n".join(["", border, title, rule, *told, border])


def _block(index: int, rank: int, failure: ProcessFailure) -> list[str]:
    name = failure.signal_name()
    return [
        f"[{index}]:",
        f"  time      : {failure.timestamp_isoformat()}",
        f"  host      : {failure.details.node_id if failure.details else socket.getfqdn()}",
        f"  rank      : {rank} (local_rank: {failure.local_rank})",
        f"  exitcode  : {failure.exitcode} (pid: {failure.pid})" + (f" ({name})" if name != NOT_AVAILABLE else ""),
        f"  error_file: {failure.error_file}",
        *f"  traceback : {_told(failure.message)}".splitlines(),
    ]


def _told(message: Any) -> str:
    if not isinstance(message, dict):
        return str(message)
    recorded = error_file.interpret({"message": message})
    return (recorded.traceback or recorded.error or NOT_AVAILABLE).replace("\n", "\n  ")


def process_failure(failure: Failure, recorded: dict[str, Any] | None = None) -> ProcessFailure:
    """Worker's failure as torch's class, with all that the agent knows.

    With the worker's own error file while that can be read. Where it is gone, or another node's, with one that says the
    same: `recorded`, or what else is known of the error.
    """
    path = failure.error_file
    if error_file.load(path) is None:
        path = _kept(recorded or (error_file.content_of(failure) if failure.error else None))
    return ProcessFailure(failure.local_rank, failure.pid, failure.exit_code, path, details=failure)


def _kept(content: dict[str, Any] | None) -> str:
    """A file for torch's `@record`, which copies what it finds there. It goes with this process."""
    if content is None:
        return ""
    folder = TempDir()
    atexit.register(folder.remove)
    with suppress(OSError):
        path = folder.path("error.json")
        error_file.write(path, content)
        return path
    return ""


E = TypeVar("E", bound=type[Exception])


def in_torchs_terms(ours: E) -> E:
    """Our class, or one that is torch's, too, if this program has imported torch's."""
    module = sys.modules.get(TORCHS_ERRORS if ours is ChildFailedError else TORCHS_API)
    theirs = getattr(module, ours.__name__, None)
    if theirs is None:
        return ours
    both: E = _both.get(theirs) or _both.setdefault(theirs, type(ours.__name__, (ours, theirs), {}))
    return both


_both: dict[Any, Any] = {}
