"""Reports a worker's failure to the server: decides when to send the report, and what must wait for it.

If the user has rules about failures, the agent compares the failure with them while it stops the node's other workers,
and reports it then. A join or a leave would let the run continue without that report, so these wait for it.

A failure may become known after the server or a drain has told the workers to stop. The worker failed before that, so
the failure counts if a rule or its exit code makes it fatal.
"""

from collections.abc import Callable, Container
from enum import Enum

from rdzv_protocol.messages import Failure, LeaveRequest, ReportRequest

from node_agent import words
from node_agent.kernel.core.effects import Effect, Level, Log, MatchRules


class _Stage(Enum):
    NONE = "none"
    MATCHING = "matching"
    REPORTING = "reporting"


class FailureReporter:
    """Reports one failure of a round, the first. `report` makes the request from a round and its failure.

    Each method returns the effects to carry out now.
    """

    def __init__(
        self, report: Callable[[int, Failure], ReportRequest], *, has_rules: bool, fatal_exit_codes: Container[int]
    ) -> None:
        self._make = report
        self._has_rules = has_rules
        self._fatal_exit_codes = fatal_exit_codes
        self._stage = _Stage.NONE
        self._round = 0
        self._is_late = False
        """Whether the workers had been told to stop when the failure became known."""
        self._held_leave: LeaveRequest | None = None
        self.logged = ""
        """Sentence logged about the latest failure, empty if there was no failure."""

    @property
    def is_matching(self) -> bool:
        """Whether the reporter waits for the result of the user's rules."""
        return self._stage is _Stage.MATCHING

    @property
    def is_pending(self) -> bool:
        """Whether the report of a failure is due or on its way."""
        return self._stage is not _Stage.NONE

    def worker_failed(self, round_: int, failure: Failure, *, is_late: bool) -> list[Effect]:
        """Take a worker's failure in the round. Log it and match or report it, unless another failure is being
        reported.
        """
        if self.is_pending:
            return []
        self._round, self._is_late = round_, is_late
        logged = [] if is_late else [self._tell(failure)]
        if self._has_rules:
            self._stage = _Stage.MATCHING
            return [*logged, MatchRules(round_, failure)]
        return [*logged, *self._judged(failure)]

    def matched(self, round_: int, failure: Failure) -> list[Effect]:
        """Take the failure with the result of the user's rules."""
        if not self.is_matching or round_ != self._round:
            return []
        self._stage = _Stage.NONE
        return [*self._judged(failure), *self._release()]

    def arrived(self, round_: int) -> None:
        """Record that the report of the round's failure was answered, or will never be."""
        if self._stage is _Stage.REPORTING and round_ == self._round:
            self._stage = _Stage.NONE

    def leave(self, leave: LeaveRequest) -> list[Effect]:
        """Send the leave now, or after the report of a failure that is being matched."""
        if not self.is_matching:
            return [leave]
        self._held_leave = leave
        return []

    def forget(self) -> list[Effect]:
        """Drop the report, which no longer matters. Send a leave that waited for it."""
        self._stage = _Stage.NONE
        return self._release()

    def _judged(self, failure: Failure) -> list[Effect]:
        is_fatal = failure.verdict == "fatal" or failure.exit_code in self._fatal_exit_codes
        if self._is_late and not is_fatal:
            return []
        self._stage = _Stage.REPORTING
        return [*([self._tell(failure)] if self._is_late else []), self._make(self._round, failure)]

    def _tell(self, failure: Failure) -> Log:
        self.logged = failure.sentence
        message = words.progress.worker_failed(
            failure.rank, failure.local_rank, failure.pid, failure.node_id, failure.cause, failure.error
        )
        return Log(message, Level.ERROR, "workers_failed")

    def _release(self) -> list[Effect]:
        held, self._held_leave = self._held_leave, None
        return [held] if held else []
