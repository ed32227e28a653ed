"""Events of the agent's machine: everything that can happen to an agent."""

from msgspec import Struct
from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.messages import Failure, Reply
from rdzv_protocol.queries import QueryAnswer

from node_agent.kernel.core.backoff import Cut, Unreachable
from node_agent.kernel.core.effects import Log


class Started(Struct, frozen=True):
    """The process is up."""


class Answered(Struct, frozen=True):
    """The server has answered or refused the last join or poll."""

    answer: Reply | ProtocolError


class ConnectionFailed(Struct, frozen=True):
    """The last join or poll failed. The transport tries it again."""

    error: Unreachable | ProtocolError


class ServerRefused(Struct, frozen=True):
    """rdzv-server has answered that it cannot serve now. The transport tries the last join or poll again."""


class PollCut(Struct, frozen=True):
    """The last poll was cut after the server had held it for a while. The next try was answered."""

    cut: Cut


class WorkersSucceeded(Struct, frozen=True):
    """Every worker of the round exited 0. `interrupted`: some had acknowledged a notice that the round ends."""

    round: int
    interrupted: bool = False


class WorkerFailed(Struct, frozen=True):
    """First worker of the round that did not exit 0, or whose script an exception has ended.

    `before_stop`: whether the failure is known to have happened before the agent was told to stop the workers.
    """

    round: int
    failure: Failure
    before_stop: bool = False


class FailureJudged(Struct, frozen=True):
    """The failure from `JudgeFailure`, with the features' verdict."""

    round: int
    failure: Failure


class Reported(Struct, frozen=True):
    """The server has the report of how the round's workers ended, or no longer accepts it."""

    round: int


class WorkersStopped(Struct, frozen=True):
    """All workers of the round have ended.

    `signal_until`: time until which the agent may still get the signal that ended one of the workers. The agent does
    not join a further round before.
    """

    round: int
    signal_until: float = 0.0


class NodeChecked(Struct, frozen=True):
    """The check of this node, which `CheckNode` requested, is complete.

    `unfit`: why the node must not take part, with the evidence; empty if it may.
    """

    unfit: str = ""


class Suspected(Struct, frozen=True):
    """Workers of the round seem to hang, given by rank. Empty if they no longer do."""

    round: int
    source: str
    reason: str
    ranks: tuple[int, ...]
    log: Log
    """Line for people, logged if the suspicion is reported."""
    silent_s: float = 0.0
    """Seconds for which they have shown no progress."""
    limit_s: float | None = None
    """Exceeded limit in seconds, None if the source is not a time limit."""
    ends_rules: bool = False
    """Whether a worker has reported that all work is done, perhaps just before it ended."""
    is_untold: bool = False
    """Whether no worker of this node has reported progress in this round, and no suspected rank in an earlier one."""


class Signalled(Struct, frozen=True):
    """The agent was asked to leave, by a scheduler or by Ctrl-C. `name`: the signal, which its workers get too."""

    name: str
    reason: str = ""
    """How the agent was asked to leave, if not by that signal."""
    succeeded_ago_s: float | None = None
    """Seconds since all workers of this node have exited 0, None if they have not."""

    @property
    def why(self) -> str:
        """Reason for the leave, for people: `reason`, or the signal's name if it is empty."""
        return self.reason or self.name


class GaveUp(Struct, frozen=True):
    """The agent cannot continue: it has no port or no server, or the server refuses a report."""

    reason: str
    exit_code: ExitCode = ExitCode.NODE_UNFIT


class Answer(Struct, frozen=True):
    """Answer to the server's query with this number: the result, or why there is none."""

    number: int
    answer: QueryAnswer


class Crashed(Struct, frozen=True):
    """Unexpected exception in this process. The agent must leave in any state."""

    reason: str


class TimePassed(Struct, frozen=True):
    """The deadline has passed."""


Event = (
    Started
    | Answered
    | ConnectionFailed
    | ServerRefused
    | PollCut
    | WorkersSucceeded
    | WorkerFailed
    | FailureJudged
    | Reported
    | WorkersStopped
    | NodeChecked
    | Suspected
    | Signalled
    | GaveUp
    | Answer
    | Crashed
    | TimePassed
)
