"""Every message on the wire, as frozen dataclasses.

An agent sends `JoinRequest` (itself the first long poll), then one `PollRequest` after another, and in between
`ReportRequest` when its workers have ended and `LeaveRequest` when it goes. The server answers a join and a poll
with a `Reply`, whose directive says what the agent must do now; a report and a leave with an `Ack`; and a request
that it refuses with an `ErrorReply`. Directives are level-triggered: the latest one stands until another replaces it.

Of several servers one leads at a time. The others refuse all of this and name the leader; they are asked with a
`LeaderRequest`, a long poll, too, so that an agent hears of a new leader also while the old one hangs.
"""

from dataclasses import field
from typing import Annotated, ClassVar

from rdzv_protocol.classes import dataclass
from rdzv_protocol.constraints import (
    Address,
    AtMost,
    Count,
    ExitCode,
    Id,
    Line,
    Lines,
    Name,
    NodeCount,
    Port,
    Rank,
    Revision,
    RoleName,
    Round,
    Seconds,
    Secret,
    Sentence,
    Traceback,
    WallClock,
    WorkerCount,
)
from rdzv_protocol.settings import RequestedSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A worker's end, with the evidence for it. `exit_code` is negative for a signal, as in `subprocess`."""

    node_id: Id
    rank: Rank
    local_rank: Rank
    pid: Count
    exit_code: ExitCode
    cause: Line
    """The exit code or signal in words: "exit code 3", "signal 9 (SIGKILL)"."""
    error: Line = ""
    """The exception that ended it, as Python says it: "ValueError: boom". Empty if none was seen."""
    traceback: Traceback = ()
    """The end of the exception's traceback, the exception last."""
    stderr_tail: Lines = ()
    hint: Line = ""
    """What a person can do about it."""
    consequence: bool = False
    """By what it wrote, it ended because another worker was gone: that one's failure is the root, if it is reported."""
    error_file: Line = ""
    """Where on its node torch's `@record` wrote the error; empty if it did not, or if the file goes with the agent."""
    failed_at: WallClock | None = None
    """The node's wall clock, seconds since 1970. For people; nothing is decided by it."""


Failures = Annotated[tuple[Failure, ...], AtMost(8)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartEntry:
    """One line of the run's ledger: why `round` was opened, and whether that was charged to `max_restarts`."""

    round: Round
    cause: Name
    charged: bool
    reason: Line
    at: WallClock | None = None
    """The server's wall clock, seconds since 1970. For people; nothing is decided by it."""


Restarts = Annotated[tuple[RestartEntry, ...], AtMost(16)]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """An agent without workers is ready for the round after `after_round` (0: its first)."""

    run_id: Id
    agent_id: Id
    node_id: Id
    after_round: Round
    addr: Address
    """Where the other nodes reach this one: the address that the agent reaches the server from."""
    port: Port
    """Reserved by the agent for this round: the MASTER_PORT if it becomes group rank 0."""
    local_world_size: WorkerCount
    role: RoleName = "default"
    node_rank: Rank | None = None
    """A claim: the join is refused while another node has this rank."""
    preferred_rank: Rank | None = None
    """A wish: the group rank to get if no other node has it."""
    settings: RequestedSettings = field(default_factory=RequestedSettings)
    explicit_run_id: bool = False
    rerun: bool = False
    """Begin a new attempt of a run that has already succeeded."""
    returning: bool = False
    """The agent has lost its place in the run: it takes another while the run lasts, and never begins an attempt."""
    hosts_store: bool = False
    """torch is installed here: as group rank 0 this agent hosts the workers' store beside them."""
    secret: Secret = ""
    """Chosen by the agent: from then on every request of this `agent_id` must bear the same. Empty: none has to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PollRequest:
    """Answered once the agent's directive is newer than `revision`; at once if not `hold`."""

    run_id: Id
    agent_id: Id
    revision: Revision
    hold: bool = True
    secret: Secret = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRequest:
    """How the agent's workers of `round` ended: `failure` is None when every one exited 0."""

    run_id: Id
    agent_id: Id
    round: Round
    failure: Failure | None = None
    secret: Secret = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequest:
    """The agent goes, and says why: "SIGTERM"."""

    run_id: Id
    agent_id: Id
    reason: Line
    secret: Secret = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One node's place in a round. Its workers' ranks are `first_rank` onwards."""

    round: Round
    group_rank: Rank
    group_world_size: NodeCount
    first_rank: Rank
    local_world_size: WorkerCount
    world_size: Count
    first_role_rank: Rank
    role_world_size: Count
    master_addr: Address
    master_port: Port
    restart_count: Count
    max_restarts: Count
    agent_store: bool = False
    """Group rank 0's agent hosts the store at the master's address; else its first worker does, as the script asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """No workers: the round is forming, or the agent stands by."""

    tag: ClassVar[str] = "wait"
    reason: Sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Run the workers of this assignment."""

    tag: ClassVar[str] = "start"
    assignment: Assignment
    reason: Sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Stop the workers of `round`, then join again."""

    tag: ClassVar[str] = "stop"
    round: Round
    reason: Sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The run has ended. Stop what still runs and exit: 0 if it succeeded, else 1.

    Carries the run's story, so that any node's log tells all of it; its size does not depend on the number of nodes.
    """

    tag: ClassVar[str] = "finish"
    succeeded: bool
    reason: Sentence
    failure: Failure | None = None
    """What ended the run: the root among the failures of its last round."""
    round: Round = 0
    """The round of `failure`; 0 for none."""
    first_failure: Failure | None = None
    """The root of the whole run, where that is another one: the failure of its first charged restart."""
    first_round: Round = 0
    others: Failures = ()
    """Further failures of the last round, without what they wrote."""
    more_failures: Count = 0
    """How many failures the last round had beside these."""
    restarts: Restarts = ()
    """The latest, oldest first."""
    restart_total: Count = 0
    """All restarts, whatever their cause."""
    charged_restarts: Count = 0


Directive = Wait | Start | Stop | Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the agent must do now. `epoch` names one life of the server process."""

    epoch: Id
    revision: Revision
    lease_s: Seconds
    """How long the server goes on without hearing from the agent."""
    directive: Directive
    leadership: Revision = 0
    """Of several servers: the number of this one's leadership. A higher one is later; 0: the server is the only one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """The report or the leave has been taken, or had been taken before."""

    epoch: Id


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReply:
    """A refusal: a stable code of `rdzv_protocol.errors` and one line for a person."""

    code: Name
    message: Sentence
    leader: Address | None = None
    """With `not_leader`: HOST:PORT of the server to ask, if this one knows."""
    leadership: Revision = 0
    """The number of that leadership."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRequest:
    """Answered once the server knows of a later leadership than `after`, or after a while."""

    after: Revision
    run_id: Id | None = None
    """Whose leader is asked for, where servers share the runs: without it they know of none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderReply:
    """The latest leadership that the server knows of, and the leader's HOST:PORT; None if it does not know it now."""

    leadership: Revision
    leader: Address | None = None
    leads: bool = False
    """It is this server itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """An operator ends the run: its agents stop their workers and exit with 1."""

    run_id: Id
    reason: Line = ""
    """For the people whose run it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmitRequest:
    """An operator ends the running round, so that nodes which stand by get its free seats."""

    run_id: Id


Request = JoinRequest | PollRequest | ReportRequest | LeaveRequest
Message = Request | Reply | Ack | ErrorReply | LeaderRequest | LeaderReply
