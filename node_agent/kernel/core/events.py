"""Events of the agent's machine: what happens to an agent."""

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
    """The server has answered the join or poll that was sent last, or refused it."""

    answer: Reply | ProtocolError


class ConnectionFailed(Struct, frozen=True):
    """The join or poll that was sent last did not come through; it is tried again."""

    error: Unreachable | ProtocolError


class PollCut(Struct, frozen=True):
    """The poll that was sent last was cut off after it had been held for a while; the next try was answered."""

    cut: Cut


class WorkersSucceeded(Struct, frozen=True):
    """Every worker of the round exited 0. `interrupted`: some after they had acknowledged a notice that it ends."""

    round: int
    interrupted: bool = False


class WorkerFailed(Struct, frozen=True):
    """The first worker of the round that ended otherwise."""

    round: int
    failure: Failure


class RulesMatched(Struct, frozen=True):
    """The failure, which `MatchRules` asked about, with what the user's rules say of it."""

    round: int
    failure: Failure


class Reported(Struct, frozen=True):
    """The server has the report of how the workers of the round ended, or does not take it any more."""

    round: int


class WorkersStopped(Struct, frozen=True):
    """No worker of the round is left.

    `told_until`: time before which the agent may still get the signal by which one of them has ended; the agent joins
    no further round before.
    """

    round: int
    told_until: float = 0.0


class NodeChecked(Struct, frozen=True):
    """The check of this node, which `CheckNode` asked for, is over. `unfit`: reason why it must not take part, with the
    evidence; empty: it may."""

    unfit: str = ""


class Suspected(Struct, frozen=True):
    """Workers of the round seem to hang, by rank; none: they do not any more."""

    round: int
    source: str
    reason: str
    ranks: tuple[int, ...]
    log: Log
    """Line for people, which is logged if the suspicion is reported."""
    silent_s: float = 0.0
    """Seconds for which they have shown no progress."""
    limit_s: float | None = None
    """Limit that was exceeded, in seconds; None if the source is no limit of time."""


class Signalled(Struct, frozen=True):
    """The agent was asked to go: by a scheduler, or by Ctrl-C. `name`: the signal, which its workers get, too."""

    name: str
    reason: str = ""
    """Way in which the agent was asked to go, if not by that signal."""

    @property
    def why(self) -> str:
        """Reason to leave the run, for people: the one that came with the signal, else the signal's name."""
        return self.reason or self.name


class GaveUp(Struct, frozen=True):
    """The agent cannot go on: there is no port or no server for it, or the server refuses a report."""

    reason: str
    exit_code: ExitCode = ExitCode.NODE_UNFIT


class Answer(Struct, frozen=True):
    """Answer to the server's query with this number: what was found out, or why that cannot be."""

    number: int
    answer: QueryAnswer


class Crashed(Struct, frozen=True):
    """Exception in this process that nobody expected: the agent must go, whatever state it is in."""

    reason: str


class TimePassed(Struct, frozen=True):
    """The deadline has come."""


Event = (
    Started
    | Answered
    | ConnectionFailed
    | PollCut
    | WorkersSucceeded
    | WorkerFailed
    | RulesMatched
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
