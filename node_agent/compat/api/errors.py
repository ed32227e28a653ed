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
from typing import Any, TypeVar

from rdzv_protocol.messages import Failure, Finish

from node_agent import words
from node_agent.kernel.failures import error_file
from node_agent.kernel.failures.diagnose import told_by_torch
from node_agent.kernel.failures.report import NOT_AVAILABLE, end_in_torchs_words, local_time, paint, report, signal_name
from node_agent.kernel.workers.temp_dir import TempDir

TORCHS_ERRORS = "torch.distributed.elastic.multiprocessing.errors"
TORCHS_API = "torch.distributed.elastic.multiprocessing.api"


class LaunchError(RuntimeError):
    """The run did not come about, or ended without the failure of a worker: nodes were missing, the server refused
    this one or was out of reach, somebody stopped the run. One line says what happened and what to do."""


class SignalException(Exception):
    """Signal that ends this process and its workers; `sigval` is the signal. Raised in the main thread."""

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
    """Exit code; negative for a signal, such as -9 for SIGKILL."""
    error_file: str
    """File with the worker's exception; `<N/A>` if it left none."""
    error_file_data: dict[str, Any] = field(init=False)
    message: Any = field(init=False)
    timestamp: int = field(init=False)
    """Time of the failure, in seconds since 1970."""
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
        """Name of the signal that ended the worker, such as `SIGKILL`; `<N/A>` where it was none."""
        return signal_name(self.exitcode)

    def timestamp_isoformat(self) -> str:
        """Time of the failure as `YYYY-MM-DD_HH:MM:SS`, local time."""
        return local_time(self.timestamp)


class ChildFailedError(Exception):
    """Failure of workers, and of the run with them. `str()` is the whole report: the first failure, and
    the run's restarts.

    `name`: name of what the workers ran. `failures`: failures by global rank, the root first, also of other nodes.
    """

    def __init__(self, name: str, failures: Mapping[int, ProcessFailure], report: str = "") -> None:
        if not failures:
            raise ValueError(words.api.NO_FAILURE)
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
        """The agent's report about the failures alone, in torch's headings and with all of its fields."""
        root, *others = [
            failure.details or told_by_torch(rank, failure, socket.getfqdn()) for rank, failure in self.failures.items()
        ]
        finish = Finish(succeeded=False, reason="", failure=root, others=tuple(others))
        lines = report(finish, self.name, rules=(boarder_delim, section_delim), all_in_full=True)
        return f"\n{paint(lines, is_coloured=False).decode()}"


def process_failure(failure: Failure, recorded: dict[str, Any] | None = None) -> ProcessFailure:
    """Worker's failure as torch's class, with all that the agent knows.

    Its error file is the worker's own while that can be read. Where that is gone, or another node's, it is a new one
    that says the same: `recorded`, or what else is known of the error.
    """
    path = failure.error_file
    if error_file.load(path) is None:
        path = _kept(recorded or (error_file.content_of(failure) if failure.error else None))
    return ProcessFailure(failure.local_rank, failure.pid, failure.exit_code, path, details=failure)


def _kept(content: dict[str, Any] | None) -> str:
    """A file for torch's `@record`, which copies what it finds there. It goes with this process."""
    if content is None:
        return ""
    folder = TempDir(is_locked=False)
    atexit.register(folder.remove)
    with suppress(OSError):
        folder.make()
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
