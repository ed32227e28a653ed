"""Every message on the wire, as an immutable type that decoding and the published schema are derived from.

An agent sends `JoinRequest` (itself the first long poll), then one `PollRequest` after another, and in between
`ReportRequest` when its workers have ended, `AnswerRequest` when it was asked something and `LeaveRequest` when it
goes. The server answers a join and a poll with a `Reply`, whose directive says what the agent must do now; the others
with an `Ack`; and a request that it refuses with an `ErrorReply`. Directives are level-triggered: the latest one stands
until another replaces it. So are queries (`rdzv_protocol.queries`), which stand until they are answered.

Of several servers one leads at a time. The others refuse all of this and name the leader; they are asked with a
`LeaderRequest`, a long poll, too, so that an agent hears of a new leader also while the old one hangs.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from rdzv_protocol import words
from rdzv_protocol.constraints import (
    MAX_ITEMS,
    Address,
    Count,
    Fingerprint,
    Id,
    Lifetime,
    Line,
    Lines,
    Name,
    NodeCount,
    Port,
    ProgramName,
    Rank,
    Revision,
    RoleName,
    Round,
    Seconds,
    Secret,
    Sentence,
    SortKey,
    Step,
    Traceback,
    WallClock,
    WorkerCount,
    WorkerExitCode,
)
from rdzv_protocol.queries import Queries, QueryAnswer, QueryNumber, QueryNumbers
from rdzv_protocol.settings import RequestedSettings

Blame = Literal["unknown", "node", "program"]
RuleVerdict = Literal["count", "retry", "fatal"]
Recurs = Literal["unknown", "at_start", "at_step"]


class Failure(Struct, frozen=True, kw_only=True):
    """A worker's end, with the evidence for it. `exit_code` is negative for a signal, as in `subprocess`."""

    node_id: Id
    rank: Rank
    local_rank: Rank
    pid: Count
    exit_code: WorkerExitCode
    cause: Line
    """The exit code or signal in words: "exit code 3", "signal 9 (SIGKILL)"."""
    error: Line = ""
    """The exception that ended the worker, as Python says it: "ValueError: boom". Empty if none was seen."""
    traceback: Traceback = ()
    """The end of the exception's traceback, the exception last."""
    stderr_tail: Lines = ()
    """Last lines that the worker wrote to its stderr; to stdout too if `both_streams`."""
    both_streams: bool = False
    """Whether the worker wrote stdout and stderr into one pipe, so that `stderr_tail` has the lines of both."""
    hint: Line = ""
    """Advice for a person; empty: none."""
    consequence: bool = False
    """Whether, by its output, the worker ended because another one was gone; if reported, that failure is the root."""
    error_file: Line = ""
    """Path on the node of torch's `@record` file; empty if there is none, or it is removed with the agent."""
    blame: Blame = "unknown"
    """Party at fault by the evidence: this `node` (a memory error of a GPU, a full disk), or the `program` (it asks for
    more memory than there is)."""
    verdict: RuleVerdict = "count"
    """Verdict of a user's rule on the failure: the run ends (`fatal`), the restart is free (`retry`), or neither."""
    rule: Line = ""
    """Pattern of the rule that gave the verdict; empty: no rule matched."""
    recurs: Recurs = "unknown"
    """Kind of error that a restart does not cure: a program that cannot start (`at_start`), or one that fails again
    at the same step (`at_step`)."""
    failed_at: WallClock | None = None
    """The node's wall clock, seconds since 1970. For people; nothing is decided by it."""
    singled_out: bool = True
    """Whether the evidence singles this worker out. False: its run hangs, it is one of several workers that may be the
    cause, and no sentence names it."""

    @property
    def sentence(self) -> str:
        """One line about what happened: the same in every log, on the status page and on every console."""
        return words.run.worker_failed(self.node_id, self.rank, self.cause, self.error, singled_out=self.singled_out)


Failures = Annotated[tuple[Failure, ...], Meta(max_length=8)]


class RestartEntry(Struct, frozen=True, kw_only=True):
    """One line of the run's ledger: why `round` was opened, and whether that was charged to `max_restarts`."""

    round: Round
    cause: Name
    charged: bool
    reason: Line
    at: WallClock | None = None
    """The server's wall clock, seconds since 1970. For people; nothing is decided by it."""


class RunTime(Struct, frozen=True, kw_only=True):
    """Time that a run has taken, in seconds, by what it went into; the eight sum up to its length."""

    training_s: Lifetime
    starting_s: Lifetime = 0.0
    """Seconds from the start of each round until its workers told their first progress."""
    checkpointing_s: Lifetime = 0.0
    detecting_s: Lifetime = 0.0
    """Seconds from each standstill until its round ended."""
    lost_s: Lifetime = 0.0
    """Seconds of work since the last checkpoint that a restart had to repeat."""
    forming_s: Lifetime = 0.0
    restarting_s: Lifetime = 0.0
    waiting_s: Lifetime = 0.0
    """Seconds with fewer nodes than the minimum."""
    ettr: Annotated[float, Meta(ge=0, le=1)]
    """Effective training time ratio: training divided by the whole."""


class RunningTime(Struct, frozen=True, kw_only=True):
    """Time that a run has taken, in seconds, if its workers told no progress; the five sum up to its length. How much
    of `running_s` was training is unknown."""

    running_s: Lifetime
    detecting_s: Lifetime = 0.0
    """Seconds from each standstill until its round ended."""
    forming_s: Lifetime = 0.0
    restarting_s: Lifetime = 0.0
    waiting_s: Lifetime = 0.0
    """Seconds with fewer nodes than the minimum."""


Restarts = Annotated[tuple[RestartEntry, ...], Meta(max_length=16)]


class JoinRequest(Struct, frozen=True, kw_only=True):
    """An agent without workers is ready for the round after `after_round` (0: its first)."""

    run_id: Id
    agent_id: Id
    node_id: Id
    after_round: Round
    addr: Address
    """Address at which the other nodes reach this one: the address that the agent reaches the server from."""
    port: Port
    """Port that the agent has reserved for this round: the MASTER_PORT if it becomes group rank 0."""
    local_world_size: WorkerCount
    role: RoleName = "default"
    node_rank: Rank | None = None
    """Group rank that the node claims: the join is refused while another node has it."""
    preferred_rank: Rank | None = None
    """Group rank that the node gets if no other node has it."""
    sort_key: SortKey = ""
    """Text in whose order nodes without a rank get theirs; equal ones in the order of joining."""
    settings: RequestedSettings = field(default_factory=RequestedSettings)
    explicit_run_id: bool = False
    rerun: bool = False
    """Whether to begin a new attempt of a run that has already succeeded."""
    returning: bool = False
    """Whether the agent has lost its place in the run: it takes another while the run lasts, and begins no attempt of a
    run that has ended."""
    attempt: Count = 0
    """Attempt in which the agent had its place, if it is `returning`; 0: the server did not tell."""
    hosts_store: bool = False
    """Whether this agent, as group rank 0, hosts the workers' store beside them: torch is installed on its node."""
    log_dir: Line = ""
    """Folder on the node with the workers' log files, for people; empty: they write to the agent's console."""
    command: Fingerprint = ""
    """Short hash of the workers' command, without what differs between nodes. An agent whose hash is another than that
    of the run's first gets a `warning`, and joins all the same."""
    program: ProgramName = ""
    """Name of the script, module or program that the workers run, without its folder. A newcomer with another program
    and the same role is refused with `settings_conflict`. Digits do not count. Empty: not told."""
    drains: bool = False
    """Whether the agent knows the directive `drain`."""
    queries: Annotated[tuple[Name, ...], Meta(max_length=32)] = ()
    """Tags of the queries that the agent knows: the server sends it no others."""
    secret: Secret = ""
    """Secret that the agent chooses, and every later request of its `agent_id` must bear. Empty: none has to."""
    unfit: Line = ""
    """Evidence of a check that has found the node unfit: it takes no part, which the run is told, and the answer is
    `agent_fenced`. Empty: it is fit, or was not checked."""


class Progress(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Progress of a node's workers in `round`, as they have told it by `node_agent.progress`. It travels with messages
    that are sent anyway."""

    round: Round
    lowest_step: Step | None = None
    """Step of the worker that is furthest behind; None: no worker has told one."""
    highest_step: Step | None = None
    age_s: Seconds = 0.0
    """Seconds since the worker that has been silent for longest told something."""
    step_s: Seconds | None = None
    """Seconds that a step of the slowest worker takes at present; None: not known yet."""
    work_s: Seconds | None = None
    """Seconds of a step that go into the worker's own work, where that is most; None: workers do not tell."""
    checkpoint_step: Step | None = None
    """Step of the last complete checkpoint."""
    checkpoint_s: Seconds = 0.0
    """Seconds that have gone into checkpoints in this round."""
    telling_s: Seconds | None = None
    """Seconds since the first of these workers told something for the first time in this round."""


class FinishedWorkers(Struct, frozen=True, kw_only=True):
    """Workers of a node that have exited 0 in `round`, while others of the same node still run."""

    round: Round
    ranks: Annotated[tuple[Rank, ...], Meta(max_length=MAX_ITEMS)]
    ago_s: Seconds
    """Seconds since the last of them exited."""


class PollRequest(Struct, frozen=True, kw_only=True):
    """Answered once the agent's directive is newer than `revision`, or a query is open; at once if not `hold`."""

    run_id: Id
    agent_id: Id
    revision: Revision
    hold: bool = True
    secret: Secret = ""
    progress: Progress | None = None
    asked: QueryNumbers = ()
    """Numbers of the open queries that the agent has been sent: the poll is held in spite of them."""
    finished: FinishedWorkers | None = None


class ReportRequest(Struct, frozen=True, kw_only=True):
    """End of the agent's workers of `round`: without a `failure` if every one has exited 0."""

    run_id: Id
    agent_id: Id
    round: Round
    failure: Failure | None = None
    secret: Secret = ""
    progress: Progress | None = None
    """Progress of the workers at their end, later than what the last poll told."""


class SuspectRequest(Struct, frozen=True, kw_only=True):
    """Suspicion that workers of this node hang in `round`, by one source; without ranks it is taken back. The server
    makes one failure of what all nodes suspect, and the agent does nothing by itself."""

    run_id: Id
    agent_id: Id
    round: Round
    source: Name
    """Source of the suspicion: `progress`, `silence` (counts once every node is silent), `uninterruptible`, `timer`, or
    a log rule."""
    reason: Line
    ranks: Annotated[tuple[Rank, ...], Meta(max_length=1_024)]
    secret: Secret = ""
    silent_s: Seconds = 0.0
    """Seconds for which these workers have shown no progress by this source; 0: the source saw something happen now."""
    limit_s: Seconds | None = None
    """Limit that was exceeded, in seconds; None if the source is no limit of time."""


class LeaveRequest(Struct, frozen=True, kw_only=True):
    """Departure of the agent, and why: "SIGTERM". At once, or with `notice_s` when the run's workers have been told."""

    run_id: Id
    agent_id: Id
    reason: Line
    secret: Secret = ""
    unfit: bool = False
    """Whether a check has found the node unfit: `reason` has the evidence."""
    retracts_success: bool = False
    """Whether a success that the agent has just reported does not count: its workers may have exited 0 because they got
    the signal that the agent leaves for."""
    notice_s: Seconds | None = None
    """Longest time in seconds that the agent waits for the workers of all nodes to acknowledge a notice; the directive
    `drain` then lets it go. None: it goes at once, as it does with a server that does not know this field."""
    stop_s: Seconds = 0.0
    """Seconds after which the scheduler has the agent's own workers gone; used with `notice_s`."""


class AnswerRequest(Struct, frozen=True, kw_only=True):
    """The answer to a query of the server."""

    run_id: Id
    agent_id: Id
    number: QueryNumber
    answer: QueryAnswer
    secret: Secret = ""


class Assignment(Struct, frozen=True, kw_only=True):
    """Place of one node in a round. The ranks of its workers begin with `first_rank`."""

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
    """Whether group rank 0's agent hosts the store at the master's address; else its first worker does."""

    @property
    def ranks(self) -> range:
        """Ranks of the node's workers, by local rank."""
        return range(self.first_rank, self.first_rank + self.local_world_size)


class Wait(Struct, frozen=True, kw_only=True, tag_field="tag", tag="wait"):
    """Run no workers: the round is forming, or the agent stands by."""

    reason: Sentence
    """Reason for the wait, without the time that is left: it changes when that does."""
    remaining_s: Seconds | None = None
    """Longest time left, in seconds; None: there is no limit."""
    ending: Name | None = None
    """Event at the end of `remaining_s`: the round `starts`, the run `gives_up`, the running round `ends` to admit
    this node, or this node is `uncordoned`."""
    excluded: bool = False
    """Whether the server itself keeps this node out, for what it has cost runs: another one should take its place."""

    @property
    def sentence(self) -> str:
        """The reason with the time that is left, for people."""
        if self.remaining_s is None:
            return self.reason
        match self.ending:
            case "starts":
                return words.run.starts_in(self.reason, self.remaining_s)
            case "gives_up":
                return words.run.gives_up_in(self.reason, self.remaining_s)
            case "uncordoned":
                return words.run.uncordoned_in(self.reason, self.remaining_s)
        return words.run.goes_on_in(self.reason, self.remaining_s)


class Start(Struct, frozen=True, kw_only=True, tag_field="tag", tag="start"):
    """Run the workers of this assignment."""

    assignment: Assignment
    reason: Sentence


class Stop(Struct, frozen=True, kw_only=True, tag_field="tag", tag="stop"):
    """Stop the workers of `round`, then join again."""

    round: Round
    reason: Sentence


class Finish(Struct, frozen=True, kw_only=True, tag_field="tag", tag="finish"):
    """The run has ended. Stop what still runs and exit: 0 if it succeeded, else 1.

    Carries the run's final report, so that any node's log tells all of it; its size does not depend on the number of
    nodes.
    """

    succeeded: bool
    reason: Sentence
    failure: Failure | None = None
    """Failure that ended the run: the root among the failures of its last round."""
    round: Round = 0
    """Round of `failure`; 0 for none."""
    first_failure: Failure | None = None
    """Root failure of the whole run, where that is another one: the failure of its first charged restart."""
    first_round: Round = 0
    others: Failures = ()
    """Further failures of the last round, without what they wrote."""
    more_failures: Count = 0
    """Number of failures of the last round beyond `failure` and `others`."""
    restarts: Restarts = ()
    """Latest restarts, oldest first."""
    restart_total: Count = 0
    """Number of all restarts, whatever their cause."""
    charged_restarts: Count = 0
    join_timed_out: bool = False
    """Whether the run failed because too few nodes had joined in time."""
    no_progress: bool = False
    """Whether the run failed because restarts got it no further; the agent then exits with 70."""
    time: RunTime | None = None
    """Time of the run by what it went into; None if it took none, or if its workers told no progress."""
    running_time: RunningTime | None = None
    """The same for a run whose workers told no progress; else None."""


class Drain(Struct, frozen=True, kw_only=True, tag_field="tag", tag="drain"):
    """Empty this node: stop the workers, leave the run and exit. The others go on without it.

    Told only to agents that said with their join that they know it (`drains`); others are fenced.
    """

    reason: Sentence
    remaining_s: Seconds
    """Seconds that the workers have left after SIGTERM, for a checkpoint; then they are killed."""
    unfit: bool = False
    """Whether the server's network test has found the node unfit: `reason` has the evidence, and the agent exits with
    71."""


Directive = Wait | Start | Stop | Drain | Finish


class Reply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to a join or a poll: what the agent must do now. `epoch` names one life of the server process."""

    epoch: Id
    revision: Revision
    lease_s: Seconds
    """Lease of the agent: seconds that the server goes on without hearing from it."""
    directive: Directive
    leadership: Revision = 0
    """Number of this server's leadership. A higher one is later; 0: the server is the only one."""
    warning: Sentence = ""
    """Warning for a person, in the answer to a join; the agent may go on. Empty: none."""
    queries: Queries = ()
    """Open queries to the agent, beside its directive; repeated in every reply until they are answered."""
    attempt: Count = 0
    """Number of the run's attempt that the agent is part of. 0: an older server."""


class Ack(Struct, frozen=True, kw_only=True):
    """The report, the leave or the answer has been taken, or had been taken before."""

    epoch: Id


class ErrorReply(Struct, frozen=True, kw_only=True):
    """A refusal: a stable code, and one line for a person."""

    code: Name
    message: Sentence
    leader: Address | None = None
    """HOST:PORT of the server to ask, if this one knows it; for `not_leader`."""
    leadership: Revision = 0
    """Number of the leadership of `leader`."""


class LeaderRequest(Struct, frozen=True, kw_only=True):
    """Answered once the server knows of a later leadership than `after`, or after a while."""

    after: Revision
    run_id: Id | None = None
    """Run whose leader is asked for: required where servers share the runs, since no single one leads them all."""


class LeaderReply(Struct, frozen=True, kw_only=True):
    """The latest leadership that the server knows of, and the leader's HOST:PORT, if it is known now."""

    leadership: Revision
    leader: Address | None = None
    leads: bool = False
    """Whether this server itself leads."""


Request = JoinRequest | PollRequest | ReportRequest | SuspectRequest | LeaveRequest | AnswerRequest
Message = Request | Reply | Ack | ErrorReply | LeaderRequest | LeaderReply
