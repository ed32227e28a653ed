"""Finds the worker that other workers have lost, by the errors that workers have recorded in files.

Torch marks the lines of an exception that ends a script. If the worker writes into a file, its lines are read there.
A child with the same stderr may have written them. So the worker must show no sign that it continued.

Torch's `@record` writes an exception to the worker's error file and raises it again. A script may catch it there and
continue. So a recorded error only shows which worker others have lost if the worker shows no sign that it continued.
"""

from collections.abc import Sequence
from functools import partial
from math import inf

from msgspec import Struct
from msgspec.structs import replace
from rdzv_protocol.messages import Failure

from node_agent.kernel.failures import error_file
from node_agent.kernel.failures.diagnose import raised
from node_agent.kernel.failures.error_file import ErrorFile
from node_agent.kernel.output.pieces import UnreadTail
from node_agent.kernel.threads import in_thread
from node_agent.kernel.worker_spec import WorkerSpec

READ_WITHIN_S = 5.0
"""Most seconds that the search waits for the disk of the error files."""
CONTINUES_S = 10.0
"""Most seconds from a recorded error to the loss of its worker if the worker has written something in between. Also the
most seconds from a mark by torch, if the worker has written ten other lines."""
NOTICED_WITHIN_S = 3600.0
"""Most seconds from a recorded error to the loss of its worker: twice the longest default timeout of torch's process
groups. A worker whose error is older has taken part in collectives since, even if it was silent."""
LAST_SIGN_S = 2.0
"""Seconds from the time in an error file, which may be a whole second, to a sign that the script has continued."""


class Observed(Struct, frozen=True):
    """A running worker at one moment. Times are in seconds since 1970."""

    spec: WorkerSpec
    pid: int
    stderr: tuple[str, ...]
    """Its last lines, empty if it writes into a file."""
    unread_stderr: UnreadTail | None
    """The last lines in that file."""
    has_both_streams: bool
    output_at: float
    """Time of its last output. It is long ago if there was none."""
    marked_at: float | None
    """Time at which the last exception that torch has marked was read in `stderr`. None if there was none."""
    progress_at: float
    """Time of its last progress. It is long ago if there was none."""
    lost_at: float
    """Time of the failure that may follow from this worker's."""

    def may_be_over(self, recorded: ErrorFile) -> bool:
        """Return whether this recorded error may have ended the worker's script shortly before its peers lost it.

        Progress after the error refutes this. Output does too, unless the error is so recent that its script may still
        clean up. Peers of a worker that is over notice that within their process group's timeout, so an old error was
        caught. Without a time of the error, nothing is known.
        """
        if recorded.at is None or self.progress_at > recorded.at + LAST_SIGN_S:
            return False
        age_s = self.lost_at - recorded.at
        if age_s > NOTICED_WITHIN_S:
            return False
        is_recent = age_s <= CONTINUES_S
        return is_recent or self.output_at <= recorded.at + LAST_SIGN_S

    def may_have_raised(self) -> bool:
        """Return whether an exception on stderr may have ended the script.

        Progress after the exception refutes it, and so does progress after the loss. In a file, only the time of the
        last output is known.
        """
        written_at = self.unread_stderr.written_at if self.unread_stderr else self.marked_at or self.output_at
        return self.progress_at <= min(written_at, self.lost_at) + LAST_SIGN_S

    def failure(self, stderr: tuple[str, ...], recorded: ErrorFile | None = None) -> Failure | None:
        """Return the failure of this worker by its recorded error, or by an exception that torch has marked on stderr.

        None if there is neither, or if the error follows from another failure.
        """
        is_recent = self.marked_at is not None and self.lost_at - self.marked_at <= CONTINUES_S
        found = raised(self.spec, self.pid, stderr or self.stderr, recorded, is_recent=is_recent)
        return found and replace(found, both_streams=self.has_both_streams)


async def find(workers: Sequence[Observed], until: float = inf) -> Failure | None:
    """Return the failure of the worker that has recorded its error first, None if there is none.

    An exception that torch has marked precedes all others. `until`: a time by `time.monotonic`. If it is given, files
    that may be newer do not count.
    """
    try:
        read = await in_thread(partial(_read, workers, until), READ_WITHIN_S)
    except OSError:  # the disk hangs
        return None
    found: list[Failure] = []
    for worker, (stderr, recorded) in zip(workers, read, strict=True):
        if worker.may_have_raised() and (marked := worker.failure(stderr)):
            return marked
        if recorded and recorded.error and worker.may_be_over(recorded):
            found += filter(None, [worker.failure(stderr, recorded)])
    return min(found, key=lambda failure: failure.failed_at or inf, default=None)


def _read(workers: Sequence[Observed], until: float) -> list[tuple[tuple[str, ...], ErrorFile | None]]:
    """Return the last lines of each worker's stderr that are in a file, and its error file."""
    return [
        (_read_stderr(worker.unread_stderr, until), _read_error(worker.spec.error_file, until)) for worker in workers
    ]


def _read_stderr(unread: UnreadTail | None, until: float) -> tuple[str, ...]:
    if unread is None:
        return ()
    lines = unread.read()  # before the look at the file's age, which then includes a later line
    return lines if until == inf or error_file.is_from_before(unread.path, until) else ()


def _read_error(path: str, until: float) -> ErrorFile | None:
    file = error_file.read(path)
    return file if until == inf or (file and error_file.is_from_before(path, until)) else None
