"""What the shell must do for the agent's machine."""

from rdzv_protocol.classes import dataclass
from rdzv_protocol.messages import Assignment, Failure, Finish


@dataclass(frozen=True, slots=True)
class SendJoin:
    """Reserve a fresh port and join; the conversation is busy until `Answered` or `Refused`."""

    agent_id: str
    after_round: int
    returning: bool = False
    """A new id of an agent that was fenced."""


@dataclass(frozen=True, slots=True)
class SendPoll:
    """Poll; the conversation is busy until `Answered` or `Refused`."""

    agent_id: str
    revision: int
    hold: bool


@dataclass(frozen=True, slots=True)
class SendReport:
    """Tell the server, beside the conversation, how the round's workers ended; try until it has it."""

    agent_id: str
    round: int
    failure: Failure | None


@dataclass(frozen=True, slots=True)
class SendLeave:
    """Tell the server, beside the conversation, that the agent goes."""

    agent_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class StartWorkers:
    assignment: Assignment


@dataclass(frozen=True, slots=True)
class StopWorkers:
    """Signal every worker's group, SIGKILL after the grace period (`kill`: at once); answered by `WorkersStopped`."""

    signal_name: str = "SIGTERM"
    kill: bool = False


@dataclass(frozen=True, slots=True)
class Say:
    """One line for the person who watches."""

    text: str


@dataclass(frozen=True, slots=True)
class LeaveEvidence:
    """The run has failed, or this agent has: leave behind why, for people and for whoever started the agent.

    `finish`: the run's end and story; None if the agent ends for a reason of its own, which is `error`.
    """

    error: str
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class Exit:
    """No worker is left; end the process."""

    code: int


Effect = SendJoin | SendPoll | SendReport | SendLeave | StartWorkers | StopWorkers | Say | LeaveEvidence | Exit
