"""What happens to an agent."""

from rdzv_protocol.classes import dataclass
from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.messages import Failure, Reply


@dataclass(frozen=True, slots=True)
class Started:
    """The process is up."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The server's reply to the join or poll that was sent last."""

    reply: Reply


@dataclass(frozen=True, slots=True)
class Refused:
    """The server's refusal of the join or poll that was sent last."""

    error: ProtocolError


@dataclass(frozen=True, slots=True)
class WorkersSucceeded:
    """Every worker of the round exited 0."""

    round: int


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """The first worker of the round that ended otherwise."""

    round: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class WorkersStopped:
    """No worker of the round is left."""

    round: int


@dataclass(frozen=True, slots=True)
class Signalled:
    """The agent was asked to go: by a scheduler, or by Ctrl-C."""

    name: str


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The server could not be reached for as long as the user allows, or refused what it must know."""

    reason: str


@dataclass(frozen=True, slots=True)
class Crashed:
    """This process has met with an exception that nobody expected: it must go, whatever state it is in."""

    reason: str


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The deadline has come."""


Event = (
    Started
    | Answered
    | Refused
    | WorkersSucceeded
    | WorkerFailed
    | WorkersStopped
    | Signalled
    | GaveUp
    | Crashed
    | TimePassed
)
