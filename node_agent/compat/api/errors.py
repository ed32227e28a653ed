"""Failures of workers as a program sees them: torch's classes, with the same attributes and wording.

If the program has imported torch's own classes, the raised exception is an instance of torch's class too. So `except
ChildFailedError` works with either class, and torch's `@record` recognizes the exception.
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
from node_agent.kernel.failures.diagnose import failure_from_torch
from node_agent.kernel.failures.report import NOT_AVAILABLE, end_in_torchs_words, local_time, paint, report, signal_name
from node_agent.kernel.processes.temp_dir import TempDir

TORCHS_ERRORS = "torch.distributed.elastic.multiprocessing.errors"
TORCHS_API = "torch.distributed.elastic.multiprocessing.api"


class LaunchError(RuntimeError):
    """The run did not start, or ended without the failure of a worker.

    For example, nodes were missing, the server refused this node or could not be reached, or a user stopped the run.
    One line says what happened and what to do.
    """


class SignalException(Exception):
    """Signal that ends this process and its workers. `sigval`: the signal. Raised in the main thread."""

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        Exception.__init__(self, msg)
        self.sigval = sigval

    def __reduce__(self) -> tuple[Any, ...]:
        return SignalException, (str(self), self.sigval)


@dataclass
class ProcessFailure:
    """Failure of one worker.

    `message`: the content of `message` in its error file, normally a map with `message` ("ValueError: boom") and
    `extraInfo` (`py_callstack`, `timestamp`). If the error file is missing or invalid, it is torch's text. This is
    "Signal 9 (SIGKILL) received by PID 7", or a link that explains how to get a traceback. `details` has the agent's
    own findings.
    """

    local_rank: int
    pid: int
    exitcode: int
    """Exit code, negative for a signal, such as -9 for SIGKILL."""
    error_file: str
    """File with the worker's exception, `<N/A>` if there is none."""
    error_file_data: dict[str, Any] = field(init=False)
    message: Any = field(init=False)
    timestamp: int = field(init=False)
    """Time of the failure, in seconds since 1970."""
    details: Failure | None = field(default=None, kw_only=True)
    """Facts that torch's class does not have: the end in words, the last lines of stderr, and what to do."""

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
        """Name of the signal that ended the worker, such as `SIGKILL`; `<N/A>` if there was none."""
        return signal_name(self.exitcode)

    def timestamp_isoformat(self) -> str:
        """Return the time of the failure as `YYYY-MM-DD_HH:MM:SS`, local time."""
        return local_time(self.timestamp)


class ChildFailedError(Exception):
    """Failure of workers, which ended the run. `str()` is the whole report: the first failure, and the run's restarts.

    `name`: name of what the workers ran. `failures`: failures by global rank, also of other nodes, the root first.
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
        """Return the rank that failed first, and its failure."""
        return next(iter(self.failures.items()))

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """Return the agent's report about only the failures, with torch's headings and all of its fields."""
        root, *others = [
            failure.details or failure_from_torch(rank, failure, socket.getfqdn())
            for rank, failure in self.failures.items()
        ]
        finish = Finish(succeeded=False, reason="", failure=root, others=tuple(others))
        lines = report(finish, self.name, rules=(boarder_delim, section_delim), all_in_full=True)
        return f"\n{paint(lines, is_coloured=False).decode()}"


def process_failure(failure: Failure, recorded: dict[str, Any] | None = None) -> ProcessFailure:
    """Return a worker's failure as torch's class, with all that the agent knows.

    Its error file is the worker's own if that can be read. If the file is gone or on another node, a new file has the
    same content: `recorded`, or what else is known about the error.
    """
    path = failure.error_file
    if error_file.load(path) is None:
        path = _kept(recorded or (error_file.content_of(failure) if failure.error else None))
    return ProcessFailure(failure.local_rank, failure.pid, failure.exit_code, path, details=failure)


def _kept(content: dict[str, Any] | None) -> str:
    """Return a file for torch's `@record`, which copies its content. The file is removed when this process exits."""
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
    """Return our class, or a class that is also torch's if this program has imported torch's."""
    module = sys.modules.get(TORCHS_ERRORS if ours is ChildFailedError else TORCHS_API)
    theirs = getattr(module, ours.__name__, None)
    if theirs is None:
        return ours
    both: E = _both.get(theirs) or _both.setdefault(theirs, type(ours.__name__, (ours, theirs), {}))
    return both


_both: dict[Any, Any] = {}
