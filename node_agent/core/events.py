"""What happens to an agent."""

from msgspec import Struct
from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.messages import Failure, Reply


class Started(Struct, frozen=True):
    """The process is up."""


class Answered(Struct, frozen=True):
    """The server's reply to the join or poll that was sent last."""

    reply: Reply


class Refused(Struct, frozen=True):
    """The server's refusal of the join or poll that was sent last."""

    error: ProtocolError


class WorkersSucceeded(Struct, frozen=True):
    """Every worker of the round exited 0."""

    round: int


class WorkerFailed(Struct, frozen=True):
    """The first worker of the round that ended otherwise."""

    round: int
    failure: Failure


class WorkersStopped(Struct, frozen=True):
    """No worker of the round is left."""

    round: int


class Signalled(Struct, frozen=True):
    """The agent was asked to go: by a scheduler, or by Ctrl-C."""

    name: str


class GaveUp(Struct, frozen=True):
    """The server could not be reached for as long as the user allows, or refused what it must know."""

    reason: str


class Crashed(Struct, frozen=True):
    """This process has met with an exception that nobody expected: it must go, whatever state it is in."""

    reason: str


class TimePassed(Struct, frozen=True):
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
