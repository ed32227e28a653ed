"""Reports a worker's failure to the server: decides when to send the report, and what must wait for it.

If a feature judges failures, the agent asks it while it stops the node's other workers, and reports the failure then. A
join or a leave would let the run continue without that report, so these wait for it.

A failure may become known after the server or a drain has told the workers to stop. The worker failed before that, so
the failure counts if its verdict or its exit code makes it fatal.
"""

from collections.abc import Callable, Container
from enum import Enum

from rdzv_protocol.messages import Failure, LeaveRequest, ReportRequest

from node_agent import words
from node_agent.kernel.core.effects import Effect, JudgeFailure, Level, Log


class _Stage(Enum):
    NONE = "none"
    JUDGING = "judging"
    REPORTING = "reporting"


class FailureReporter:
    """Reports one failure of a round, the first. `report` makes the request from a round and its failure.

    Each method returns the effects to carry out now.
    """

    def __init__(
        self,
        report: Callable[[int, Failure], ReportRequest],
        *,
        judges_failures: bool,
        fatal_exit_codes: Container[int],
    ) -> None:
        self._make = report
        self._judges = judges_failures
        self._fatal_exit_codes = fatal_exit_codes
        self._stage = _Stage.NONE
        self._round = 0
        self._is_late = False
        """Whether the workers had been told to stop when the failure became known."""
        self._held_leave: LeaveRequest | None = None
        self.logged = ""
        """Sentence logged about the latest failure, empty if there was no failure."""

    @property
    def is_judging(self) -> bool:
        """Whether the reporter waits for the features' verdict."""
        return self._stage is _Stage.JUDGING

    @property
    def is_pending(self) -> bool:
        """Whether the report of a failure is due or on its way."""
        return self._stage is not _Stage.NONE

    def worker_failed(self, round_: int, failure: Failure, *, is_late: bool) -> list[Effect]:
        """Take a worker's failure in the round: log it, and have it judged or report it.

        While another failure is judged or reported, it is only logged, unless it is late.
        """
        if self.is_pending:
            return [] if is_late else [log_line(failure)]
        self._round, self._is_late = round_, is_late
        logged = [] if is_late else [self._tell(failure)]
        if self._judges:
            self._stage = _Stage.JUDGING
            return [*logged, JudgeFailure(round_, failure)]
        return [*logged, *self._report(failure)]

    def judged(self, round_: int, failure: Failure) -> list[Effect]:
        """Take the failure with the features' verdict."""
        if not self.is_judging or round_ != self._round:
            return []
        self._stage = _Stage.NONE
        return [*self._report(failure), *self._release()]

    def arrived(self, round_: int) -> None:
        """Record that the report of the round's failure was answered, or will never be."""
        if self._stage is _Stage.REPORTING and round_ == self._round:
            self._stage = _Stage.NONE

    def leave(self, leave: LeaveRequest) -> list[Effect]:
        """Send the leave now, or after the report of a failure that is being judged."""
        if not self.is_judging:
            return [leave]
        self._held_leave = leave
        return []

    def forget(self) -> list[Effect]:
        """Drop the report, which no longer matters. Send a leave that waited for it."""
        self._stage = _Stage.NONE
        return self._release()

    def _report(self, failure: Failure) -> list[Effect]:
        is_fatal = failure.verdict == "fatal" or failure.exit_code in self._fatal_exit_codes
        if self._is_late and not is_fatal:
            return []
        self._stage = _Stage.REPORTING
        return [*([self._tell(failure)] if self._is_late else []), self._make(self._round, failure)]

    def _tell(self, failure: Failure) -> Log:
        self.logged = failure.sentence
        return log_line(failure)

    def _release(self) -> list[Effect]:
        held, self._held_leave = self._held_leave, None
        return [held] if held else []


def log_line(failure: Failure) -> Log:
    """Return the log line about a worker's failure."""
    message = words.progress.worker_failed(
        failure.rank, failure.local_rank, failure.pid, failure.node_id, failure.cause, failure.error
    )
    return Log(message, Level.ERROR, "workers_failed")
