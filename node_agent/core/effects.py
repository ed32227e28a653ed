"""What the shell must do for the agent's machine."""

from msgspec import Struct
from rdzv_protocol.messages import Assignment, Failure, Finish


class SendJoin(Struct, frozen=True):
    """Reserve a fresh port and join; the conversation is busy until `Answered` or `Refused`."""

    agent_id: str
    after_round: int
    returning: bool = False
    """A new id of an agent that was fenced."""


class SendPoll(Struct, frozen=True):
    """Poll; the conversation is busy until `Answered` or `Refused`."""

    agent_id: str
    revision: int
    hold: bool


class SendReport(Struct, frozen=True):
    """Tell the server, beside the conversation, how the round's workers ended; try until it has it."""

    agent_id: str
    round: int
    failure: Failure | None


class SendLeave(Struct, frozen=True):
    """Tell the server, beside the conversation, that the agent goes."""

    agent_id: str
    reason: str


class StartWorkers(Struct, frozen=True):
    assignment: Assignment


class StopWorkers(Struct, frozen=True):
    """Signal every worker's group, SIGKILL after the grace period (`kill`: at once); answered by `WorkersStopped`."""

    signal_name: str = "SIGTERM"
    kill: bool = False


class Say(Struct, frozen=True):
    """One line for the person who watches."""

    text: str


class LeaveEvidence(Struct, frozen=True):
    """The run has failed, or this agent has: leave behind why, for people and for whoever started the agent.

    `finish`: the run's end and story; None if the agent ends for a reason of its own, which is `error`.
    """

    error: str
    finish: Finish | None = None

    @property
    def failure(self) -> Failure | None:
        """What ended the run, as torchrun tells it; None if that was no worker."""
        return (self.finish.failure or self.finish.first_failure) if self.finish else None


class Exit(Struct, frozen=True):
    """No worker is left; end the process."""

    code: int


Effect = SendJoin | SendPoll | SendReport | SendLeave | StartWorkers | StopWorkers | Say | LeaveEvidence | Exit
