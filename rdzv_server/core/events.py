"""Events of a run. Durable facts are recorded and replayed; signs of life and the passing of time are not."""

from msgspec import Struct, field
from rdzv_protocol.flag_values import LogStream
from rdzv_protocol.messages import EndedScript, Failure, FinishedWorkers, JoinRequest, Progress, ReportedError
from rdzv_protocol.queries import QueryAnswer
from rdzv_protocol.settings import RunSettings


class Incarnation(Struct, frozen=True):
    """One incarnation of a server, from start to exit. Facts store it as `life`.

    Its clock is the machine's monotonic clock since boot, plus an offset.
    """

    boot_id: str = ""
    offset_s: float = 0.0


class RunCreated(Struct, frozen=True):
    """The first agent of an attempt has joined, with the settings of the run."""

    run_id: str
    attempt: int
    explicit: bool
    settings: RunSettings
    wall_at: float
    """The server's wall clock at that moment, in seconds since 1970. Times shown to people follow from it."""
    incarnation: Incarnation = field(default=Incarnation(), name="life")
    event_number: int = 0
    """Number of the last event of the previous attempt."""


class PolicyFact(Struct, frozen=True):
    """Fact that a policy declares in its own file: see `policy`."""


EXCLUDER = "rdzv-server"
"""Value of `Cordon.by` for a node that the server itself excludes: see `nodes`."""


class Cordon(Struct, frozen=True, kw_only=True):
    """Cordon of a node, which gets no seat in a new round before `until`.

    If `until` is None, only an uncordon ends it.
    """

    node_id: str
    reason: str
    by: str
    until: float | None
    request_id: str = ""
    wall_at: float | None = None
    """Wall-clock time of the cordon, seconds since 1970."""
    wall_until: float | None = None
    """Wall-clock time at which the cordon ends, for people; None if it does not end by itself."""
    drain_s: float | None = None
    """Seconds that the node's workers have for a checkpoint; None if the node is not drained."""
    general: str = ""
    """Reason that the other runs see if `reason` quotes a run; empty if all runs see `reason`."""
    is_of_run: bool = False
    """Whether the cordon is for one run only. That run ends the cordon when its time is over."""
    condition: str = ""
    """Cause that other nodes may share, as in `Blame`, if the server excludes the node for it; else empty."""
    is_followed: bool = False
    """Whether another shard has decided it, and decides when it ends."""

    @property
    def excludes(self) -> bool:
        """Whether the server itself set the cordon, because of what the node has cost runs."""
        return self.by == EXCLUDER


class NodeJoined(Struct, frozen=True):
    """An agent is ready for a round.

    `server_addr` is the address at which this agent reaches the server. `replaces` names the agents that this one
    replaces because it is their restart, and `blameless` those of them whose nodes are not blamed for the loss, because
    others vanished with them. `unheard` names those of them that the server has not heard since it restarted. The run's
    machine fills in these three. `cordon` is the cordon of its node, or None. `is_scoped`: whether its token is valid
    for some runs only.
    """

    join: JoinRequest
    server_addr: str
    replaces: tuple[str, ...] = ()
    blameless: tuple[str, ...] = ()
    cordon: Cordon | None = None
    is_scoped: bool = False
    unheard: tuple[str, ...] = ()


class NodeLost(Struct, frozen=True):
    """An agent is gone without having left; `cause` says how the server knows.

    `is_blameless`: whether no node is blamed. `is_expired`: whether its lease had ended; False in records of older
    servers. `is_unheard`: whether the server has not heard it since the server restarted.
    """

    agent_id: str
    cause: str
    is_blameless: bool = False
    is_expired: bool = False
    is_unheard: bool = False


class ContactLost(Struct, frozen=True):
    """The server has not heard from any agent of the running round since `heard_at`, for at least a lease.

    None of them counts as lost.
    """

    heard_at: float


class ContactRegained(Struct, frozen=True):
    """The server hears an agent of the run again, or a new agent has joined."""

    node_id: str


class RunDeserted(Struct, frozen=True):
    """The server has not heard from any agent of the run for a day, so the run ends.

    `for_room`: the run ends sooner, because a new run needs its place. `for_agents`: because new agents need the places
    of its agents.
    """

    for_room: bool = False
    for_agents: bool = False


class NodeLeft(Struct, frozen=True):
    """An agent has announced that it leaves: after a preemption, a drain or a Ctrl-C.

    `unfit`: whether a check has found its node unfit. `retracts_success`: whether the success that the agent has just
    reported for its workers does not count.
    """

    agent_id: str
    reason: str
    unfit: bool = False
    retracts_success: bool = False


class LeaveAnnounced(Struct, frozen=True):
    """An agent leaves soon.

    The run's workers have `notice_s` seconds to save; the agent's own workers are gone after `stop_s`.
    """

    agent_id: str
    reason: str
    notice_s: float
    stop_s: float


class NoticeEnded(Struct, frozen=True):
    """The workers have acknowledged that the round ends, or their time is over; `reason` says which."""

    reason: str


class WorkersFailed(Struct, frozen=True):
    """A worker of the agent failed: it did not exit with 0.

    `awaits_loss`: whether another participant is absent whose loss would explain the failure. The run's machine fills
    it in. `ago_s`: seconds since the worker ended.
    """

    agent_id: str
    round: int
    failure: Failure
    awaits_loss: bool = False
    ago_s: float = 0.0


class WorkersSucceeded(Struct, frozen=True):
    """All of the agent's workers exited 0. `errors`: those that they have reported nevertheless."""

    agent_id: str
    round: int
    errors: tuple[ReportedError, ...] = ()


class WorkersStillRun(Struct, frozen=True):
    """Some workers of the running round finished a while ago and others still run; `reason` names them."""

    reason: str


class RoundCompleted(Struct, frozen=True):
    """The waiting agents get their seats and start; `reason` says why the round completes now."""

    reason: str


class JoinTimedOut(Struct, frozen=True):
    """The round has had too few nodes for `join_timeout_s`.

    `refused`: nodes whose agents might not join it, with the reasons; empty from an older server.
    """

    refused: str = ""


class LossesRepeated(Struct, frozen=True):
    """This node was lost so often without progress of the run that the run ends."""

    node_id: str


class CauseNotFound(Struct, frozen=True):
    """A failure is a consequence of another one, and no agent has reported that other failure in time."""


class Operation(Struct, frozen=True):
    """An operator's action.

    `by`: role of the operator's token, and the address. `request_id`: empty if the request has none. `idle`: sentence
    why the action changes nothing, empty if it changes something. An operation that only one module needs is declared
    there, in `operations`.
    """

    reason: str = ""
    by: str = ""
    request_id: str = ""
    idle: str = ""


class ArrivalsAdmitted(Operation, frozen=True):
    """The running round ends so that waiting agents get a seat, because of the run's policy or of an operator."""


class RunStopped(Operation, frozen=True):
    """An operator has stopped the run."""


class RunForgotten(Operation, frozen=True, kw_only=True):
    """An operator has asked to forget this ended run."""

    run_id: str


class NodeOperation(Operation, frozen=True, kw_only=True):
    """An operator's action on a node, for all runs. `RunCreated` explains `wall_at` and `incarnation`."""

    node_id: str
    wall_at: float | None = None
    incarnation: Incarnation = field(default=Incarnation(), name="life")


class NodeCordoned(NodeOperation, frozen=True, kw_only=True):
    """The node gets no seat in new rounds for `for_s` seconds, or until an operator uncordons it if `for_s` is None.

    `wall_until`: wall-clock time at which the cordon ends, if it did not begin now but with a cordon of another shard.
    `general`, `is_of_run`, `condition` and `is_followed` mean the same as in `Cordon`. `waits`: sentence about the runs
    that then have too few nodes, for the answer; a run's own fact has none.
    """

    for_s: float | None = None
    wall_until: float | None = None
    general: str = ""
    is_of_run: bool = False
    condition: str = ""
    waits: str = ""
    is_followed: bool = False


class NodeDrained(NodeCordoned, frozen=True, kw_only=True):
    """The node is cordoned and its agents leave; their workers have `deadline_s` seconds for a checkpoint."""

    deadline_s: float


class NodeUncordoned(NodeOperation, frozen=True):
    """The node may take part in new rounds again."""


class NumbersUsed(Struct, frozen=True):
    """Numbers that forgotten run ids have used: each one up to these: see `used_numbers`."""

    last: dict[str, tuple[int, int]]
    """Numbers of the last attempt and of the last event, by run id."""
    floor: tuple[int, int] = (0, 0)
    """Highest numbers of all run ids that the server no longer remembers."""
    unended: tuple[str, ...] = ()
    """Run ids in `last` that an operator forgot before the runs had ended: their agents form the runs again."""
    deserted: dict[str, str] = {}
    """Run ids in `last` that gave their place to a new run, each with the sentence about its end."""


class EventsDropped(Struct, frozen=True):
    """The server drops the run's events with numbers below this one: see `kept_events`."""

    below: int


class WallClockSet(Struct, frozen=True):
    """The server's wall clock was set, or its machine was suspended. It shows `wall_at` now, in seconds since 1970."""

    wall_at: float


class RunSuperseded(Struct, frozen=True):
    """A new attempt begins in place of this one, because every node has left it."""


class SnapshotPart(Struct, frozen=True):
    """Part of a snapshot, which replaces all earlier facts: see `snapshot`."""

    data: bytes
    is_last: bool


class LeaseRenewed(Struct, frozen=True):
    """The server has heard the agent: a request has come, or its connection is back.

    `progress` is that of its workers. `console_held_s` and `ended_script`: see `PollRequest`.
    """

    agent_id: str
    progress: Progress | None = None
    finished: FinishedWorkers | None = None
    console_held_s: float | None = None
    ended_script: EndedScript | None = None
    is_poll: bool = True
    """Whether the agent has polled. Other requests say nothing about its console or ended scripts."""


class AgentDisconnected(Struct, frozen=True):
    """The connection for the agent's polls was closed.

    `was_parked`: whether a poll was parked on it. If not, the close says nothing about the agent.
    """

    agent_id: str
    was_parked: bool = True


class LogAsked(Struct, frozen=True):
    """An operator asks for the end of a worker's log, and waits `within_s` seconds.

    `token` names the query in its `CloseQuery`.
    """

    token: str
    rank: int
    stream: LogStream
    lines: int
    offset: int | None
    within_s: float


class DescriptionAsked(Struct, frozen=True):
    """An operator asks for an agent's description, and waits `within_s` seconds.

    `token` names the query in its `CloseQuery`.
    """

    token: str
    node_id: str
    within_s: float


class QueryAnswered(Struct, frozen=True):
    """An agent has answered one of its open queries."""

    agent_id: str
    number: int
    answer: QueryAnswer


class TimePassed(Struct, frozen=True):
    """A deadline may have passed."""


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
    | LossesRepeated
    | CauseNotFound
    | Operation
    | EventsDropped
    | WallClockSet
    | RunSuperseded
    | PolicyFact
)
Sign = LeaseRenewed | AgentDisconnected | LogAsked | DescriptionAsked | QueryAnswered | TimePassed
Event = Fact | Sign
