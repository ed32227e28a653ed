"""Observers of an agent: metrics, events and traces, each of which is there only if the user asked for it."""

from collections.abc import Sequence

from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.messages import Assignment, Failure, Reply


class Observer:
    """Observer of one agent. Each kind of them overrides the methods about what it wants to know."""

    def joining(self) -> None:
        """Note that the join for the next round is sent."""

    def answered(self, answer: Reply | ProtocolError) -> None:
        """Note that the server has answered a join or a poll, or refused it; the agent has not followed it yet."""

    def starting(self, assignment: Assignment) -> None:
        """Note that the round has begun: workers are to be started."""

    def started(self, assignment: Assignment, pids: Sequence[int]) -> None:
        """Note that the workers have been started, with these pids by local rank."""

    def first_output(self, assignment: Assignment) -> None:
        """Note that one of the round's workers has written something, perhaps not for the first time."""

    def failed(self, failure: Failure) -> None:
        """Note the round's first failure on this node."""

    def ended(self, exit_code: int) -> None:
        """Note that the agent exits."""

    def close(self) -> None:
        """End the observation; may block. Called in a thread of its own, when the workers' output has been shown."""
