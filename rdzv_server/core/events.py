"""Events of a run. Durable facts are recorded and replayed; signs of life and time are not."""

from msgspec import Struct
from rdzv_protocol.messages import Failure, JoinRequest
from rdzv_protocol.settings import RunSettings


class Life(Struct, frozen=True):
    """One life of a server: its time is the monotonic clock of the machine since its boot, plus an offset."""

    boot_id: str = ""
    offset_s: float = 0.0


class RunCreated(Struct, frozen=True):
    """The first agent of an attempt named its settings."""

    run_id: str
    attempt: int
    explicit: bool
    settings: RunSettings
    wall_at: float | None = None
    """The server's wall clock at that moment, seconds since 1970: what people are told times by."""
    life: Life = Life()
    event_number: int = 0
    """Number of the last event of the attempt before."""


class NodeJoined(Struct, frozen=True):
    """An agent is ready for a round. `server_addr` is the server's own address as this agent reaches it.

    `replaces`: the agents that it is the restart of; whoever tells the run of a join leaves that to the run.
    `wall_at`: the server's wall clock, for the run that the join may found.
    """

    join: JoinRequest
    server_addr: str
    replaces: tuple[str, ...] = ()
    wall_at: float | None = None


class NodeLost(Struct, frozen=True):
    """An agent is gone without a word; `cause` says how that is known."""

    agent_id: str
    cause: str


class NodeLeft(Struct, frozen=True):
    """An agent said that it goes: a preemption, a drain, a Ctrl-C."""

    agent_id: str
    reason: str


class WorkersFailed(Struct, frozen=True):
    """A worker of the agent ended otherwise than with 0."""

    agent_id: str
    round: int
    failure: Failure


class WorkersSucceeded(Struct, frozen=True):
    """All of the agent's workers exited 0."""

    agent_id: str
    round: int


class RoundCompleted(Struct, frozen=True):
    """The waiting agents get their seats and start; `reason` says why now."""

    reason: str


class JoinTimedOut(Struct, frozen=True):
    """The round has been below its minimum for `join_timeout_s`."""


class CauseNotFound(Struct, frozen=True):
    """The cause of a failure that is a consequence has not been reported in time."""


class ArrivalsAdmitted(Struct, frozen=True):
    """The running round ends so that waiting agents get a seat."""


class RunStopped(Struct, frozen=True):
    """An operator ended the run."""

    reason: str


class RunSuperseded(Struct, frozen=True):
    """A new attempt begins in place of this one, which every node has left."""


class SnapshotPart(Struct, frozen=True):
    """A part of what stands in place of all facts before it: see `snapshot`."""

    data: bytes
    is_last: bool


class LeaseRenewed(Struct, frozen=True):
    """A sign of life: a request came in, or the agent's connection is back."""

    agent_id: str


class AgentDisconnected(Struct, frozen=True):
    """The connection that carries the agent's polls was closed."""

    agent_id: str


class TimePassed(Struct, frozen=True):
    """A deadline may have come."""


Fact = (
    NodeJoined
    | NodeLost
    | NodeLeft
    | WorkersFailed
    | WorkersSucceeded
    | RoundCompleted
    | JoinTimedOut
    | CauseNotFound
    | ArrivalsAdmitted
    | RunStopped
    | RunSuperseded
)
Sign = LeaseRenewed | AgentDisconnected | TimePassed
Event = Fact | Sign
