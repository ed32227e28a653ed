"""Events of a run. Durable facts are recorded and replayed; signs of life and time are not."""

from msgspec import Struct
from rdzv_protocol.flag_values import LogStream
from rdzv_protocol.messages import Failure, FinishedWorkers, JoinRequest, Progress
from rdzv_protocol.queries import QueryAnswer
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
    wall_at: float
    """The server's wall clock at that moment, seconds since 1970, by which people are told times."""
    life: Life = Life()
    event_number: int = 0
    """Number of the last event of the attempt before."""


class PolicyFact(Struct, frozen=True):
    """Fact that a policy declares, in its own file: see `policy`."""


EXCLUDER = "rdzv-server"
"""Name in `Cordon.by` of a node that the server itself keeps out: see `nodes`."""


class Cordon(Struct, frozen=True, kw_only=True):
    """Cordon of a node, which gets no seat in a new round before `until`; None: until it is uncordoned."""

    node_id: str
    reason: str
    by: str
    until: float | None
    request_id: str = ""
    wall_at: float | None = None
    """Wall-clock time of the cordon, seconds since 1970."""
    wall_until: float | None = None
    """Wall-clock time of the cordon's end, for people; None: it does not end by itself."""
    drain_s: float | None = None
    """Seconds that the node's workers have for a checkpoint; None: it is not drained."""
    general: str = ""
    """Reason for the other runs if `reason` quotes a run; empty: `reason` is for all."""
    is_of_run: bool = False
    """Whether the cordon is for one run only, which ends it when its time is over."""

    @property
    def excludes(self) -> bool:
        """Whether the cordon is the server's own, for what the node has cost runs."""
        return self.by == EXCLUDER


class NodeJoined(Struct, frozen=True):
    """An agent is ready for a round. `server_addr` is the server's own address as this agent reaches it.

    `replaces`: agents that this one is the restart of, filled in by the run's machine. `cordon`: the cordon of its
    node, if it has one. `is_scoped`: its token is good for some runs only.
    """

    join: JoinRequest
    server_addr: str
    replaces: tuple[str, ...] = ()
    cordon: Cordon | None = None
    is_scoped: bool = False


class NodeLost(Struct, frozen=True):
    """An agent is gone without having left; `cause` says how that is known. `is_blameless`: no node is blamed.

    `is_expired`: its lease had ended. Records of older servers do not tell that.
    """

    agent_id: str
    cause: str
    is_blameless: bool = False
    is_expired: bool = False


class ContactLost(Struct, frozen=True):
    """No agent of the running round was heard for a lease, since `heard_at`: none of them counts as lost."""

    heard_at: float


class ContactRegained(Struct, frozen=True):
    """An agent of the run is heard again, or a new one has joined."""

    node_id: str


class RunDeserted(Struct, frozen=True):
    """No agent of the run was heard for a day, so the run ends. `for_room`: sooner, as a new run needs its place.

    `for_agents`: as new agents need the places of its agents.
    """

    for_room: bool = False
    for_agents: bool = False


class NodeLeft(Struct, frozen=True):
    """An agent said that it goes: a preemption, a drain, a Ctrl-C. `unfit`: a check has found its node unfit.

    `retracts_success`: a success of its workers that it has just reported does not count.
    """

    agent_id: str
    reason: str
    unfit: bool = False
    retracts_success: bool = False


class LeaveAnnounced(Struct, frozen=True):
    """An agent goes soon: the workers of the run have `notice_s` to save, and its own are gone after `stop_s`."""

    agent_id: str
    reason: str
    notice_s: float
    stop_s: float


class NoticeEnded(Struct, frozen=True):
    """The workers have acknowledged that the round ends, or have had their time; `reason` says which."""

    reason: str


class WorkersFailed(Struct, frozen=True):
    """A worker of the agent ended otherwise than with 0.

    `awaits_loss`: another participant is absent, and its loss would explain the failure. The run's machine fills it in.
    """

    agent_id: str
    round: int
    failure: Failure
    awaits_loss: bool = False


class WorkersSucceeded(Struct, frozen=True):
    """All of the agent's workers exited 0."""

    agent_id: str
    round: int


class WorkersStillRun(Struct, frozen=True):
    """Some workers of the running round finished a while ago, and others still run; `reason` names them."""

    reason: str


class RoundCompleted(Struct, frozen=True):
    """The waiting agents get their seats and start; `reason` says why now."""

    reason: str


class JoinTimedOut(Struct, frozen=True):
    """The round has been below its minimum for `join_timeout_s`."""


class CauseNotFound(Struct, frozen=True):
    """The cause of a failure that is a consequence has not been reported in time."""


class Operation(Struct, frozen=True):
    """An operator's action. `by`: who, the role of a token and an address; `request_id`: empty for none.

    Those that only their own effect knows stand beside it, in `operations`.
    """

    reason: str = ""
    by: str = ""
    request_id: str = ""


class ArrivalsAdmitted(Operation, frozen=True):
    """The running round ends so that waiting agents get a seat: by the run's policy, or by an operator."""


class RunStopped(Operation, frozen=True):
    """An operator ended the run."""


class RunForgotten(Operation, frozen=True, kw_only=True):
    """An operator has this ended run forgotten."""

    run_id: str


class NodeOperation(Operation, frozen=True, kw_only=True):
    """An operator's action on a node, for all runs. `wall_at` and `life`: as those of `RunCreated`."""

    node_id: str
    wall_at: float | None = None
    life: Life = Life()


class NodeCordoned(NodeOperation, frozen=True, kw_only=True):
    """The node stands by in every new round, for `for_s` seconds or until it is uncordoned.

    `wall_until`: the end of that time by the wall clock, if it did not begin now, but with a cordon of another shard.
    `general` and `is_of_run`: as those of `Cordon`.
    """

    for_s: float | None = None
    wall_until: float | None = None
    general: str = ""
    is_of_run: bool = False


class NodeDrained(NodeCordoned, frozen=True, kw_only=True):
    """The node is cordoned, and its agents leave: their workers have `deadline_s` seconds for a checkpoint."""

    deadline_s: float


class NodeUncordoned(NodeOperation, frozen=True):
    """The node may take part in new rounds again."""


class NumbersUsed(Struct, frozen=True):
    """Forgotten run ids have used these numbers, and those below: see `used_numbers`."""

    last: dict[str, tuple[int, int]]
    """Number of the last attempt and of the last event, by run id."""
    floor: tuple[int, int] = (0, 0)
    """Highest numbers of the run ids that are not remembered any more."""
    unended: tuple[str, ...] = ()
    """Run ids of `last` that an operator had forgotten before they had ended: their agents form them anew."""
    deserted: dict[str, str] = {}
    """Run ids of `last` that gave their place to a new run, each with the sentence about its end."""


class EventsDropped(Struct, frozen=True):
    """The events of the run with numbers below this one are dropped: see `kept_events`."""

    below: int


class WallClockSet(Struct, frozen=True):
    """The server's wall clock was set, or its machine was suspended: it is `wall_at` now, in seconds since 1970."""

    wall_at: float


class RunSuperseded(Struct, frozen=True):
    """A new attempt begins in place of this one, which every node has left."""


class SnapshotPart(Struct, frozen=True):
    """Part of a snapshot, which takes the place of all facts before it: see `snapshot`."""

    data: bytes
    is_last: bool


class LeaseRenewed(Struct, frozen=True):
    """A sign of life came from the agent: a request, or its connection is back; with the progress of its workers."""

    agent_id: str
    progress: Progress | None = None
    finished: FinishedWorkers | None = None


class AgentDisconnected(Struct, frozen=True):
    """The connection that carries the agent's polls was closed. `was_parked`: a poll was parked on it."""

    agent_id: str
    was_parked: bool = True


class LogAsked(Struct, frozen=True):
    """An operator wants to see the end of a worker's log within `within_s` seconds.

    `token` names the question in its `QueryClosed`.
    """

    token: str
    rank: int
    stream: LogStream
    lines: int
    offset: int | None
    within_s: float


class QueryAnswered(Struct, frozen=True):
    """An agent has answered one of its open queries."""

    agent_id: str
    number: int
    answer: QueryAnswer


class TimePassed(Struct, frozen=True):
    """A deadline may have come."""


Fact = (
    NodeJoined
    | NodeLost
    | ContactLost
    | ContactRegained
    | RunDeserted
    | NodeLeft
    | LeaveAnnounced
    | NoticeEnded
    | WorkersFailed
    | WorkersSucceeded
    | WorkersStillRun
    | RoundCompleted
    | JoinTimedOut
    | CauseNotFound
    | Operation
    | EventsDropped
    | WallClockSet
    | RunSuperseded
    | PolicyFact
)
Sign = LeaseRenewed | AgentDisconnected | LogAsked | QueryAnswered | TimePassed
Event = Fact | Sign
