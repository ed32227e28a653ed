"""Every message on the wire, as an immutable type from which decoding and the published schema are derived.

An agent sends `JoinRequest` (itself the first long poll), then one `PollRequest` after another. In between it sends
`ReportRequest` when its workers have ended, `AnswerRequest` to answer a query, and `LeaveRequest` when it leaves. The
server answers a join or a poll with a `Reply`, whose directive says what the agent must do now. It answers the other
requests with an `Ack`, and refuses a request with an `ErrorReply`.

Directives are level-triggered: the latest one is valid until another replaces it. Queries (`rdzv_protocol.queries`) are
level-triggered, too: they stay open until they are answered.

If there are several servers, one of them leads at a time. The others refuse all these requests and name the leader.
Agents ask them with a `LeaderRequest`, also a long poll, so that an agent learns of a new leader even while the old one
hangs.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import asdict

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
    """A worker's failure, with its evidence. `exit_code` is negative for a signal, as in `subprocess`."""

    node_id: Id
    rank: Rank
    local_rank: Rank
    pid: Count
    exit_code: WorkerExitCode
    cause: Line
    """The exit code or signal as text: "exit code 3", "signal 9 (SIGKILL)"."""
    error: Line = ""
    """The exception that ended the worker, as Python writes it: "ValueError: boom". Empty if there is none."""
    traceback: Traceback = ()
    """The end of the exception's traceback, with the exception last."""
    stderr_tail: Lines = ()
    """Last lines that the worker wrote to its stderr; to stdout, too, if `both_streams`."""
    both_streams: bool = False
    """Whether the worker wrote stdout and stderr into one pipe, so that `stderr_tail` has lines of both."""
    hint: Line = ""
    """Advice for a person; empty if there is none."""
    consequence: bool = False
    """Whether, by its output, the worker failed because another one was gone, or it failed after it had acknowledged a
    notice. If the cause is reported, that failure is the root."""
    error_file: Line = ""
    """Path on the node of torch's `@record` file; empty if there is none, or if it is removed with the agent."""
    blame: Blame = "unknown"
    """What is at fault, by the evidence: this `node` (such as a GPU's memory error), or the `program` (such as too
    little memory for it)."""
    verdict: RuleVerdict = "count"
    """Verdict of a user's rule on the failure: end the run (`fatal`), restart for free (`retry`), or neither
    (`count`)."""
    rule: Line = ""
    """Pattern of the rule that gave the verdict; empty if no rule matched."""
    recurs: Recurs = "unknown"
    """Kind of error that a restart does not cure: a program that cannot start (`at_start`), or one that fails again at
    the same step (`at_step`)."""
    failed_at: WallClock | None = None
    """The node's wall clock, in seconds since 1970, for people. It decides nothing."""
    singled_out: bool = True
    """Whether the evidence singles this worker out. If false, its run hangs, it is one of several workers that may be
    the cause, and no sentence names it."""

    @property
    def sentence(self) -> str:
        """One line about what happened: the same in every log, on the status page and on every console."""
        return words.run.worker_failed(self.node_id, self.rank, self.cause, self.error, singled_out=self.singled_out)


Failures = Annotated[tuple[Failure, ...], Meta(max_length=8)]


FAILURE_CAUSES = ("worker_failure", "hang", "retried")
"""Causes of a restart that follows from a failure of workers."""


class RestartEntry(Struct, frozen=True, kw_only=True):
    """One line of the run's ledger: why `round` was opened, and whether the restart was charged to `max_restarts`."""

    round: Round
    cause: Name
    charged: bool
    reason: Line
    at: WallClock | None = None
    """The server's wall clock, in seconds since 1970, for people. It decides nothing."""


class RunTime(Struct, frozen=True, kw_only=True):
    """Time that a run has taken, in seconds, by what it went into. The eight times add up to its length."""

    training_s: Lifetime
    starting_s: Lifetime = 0.0
    """Seconds from the start of each round until its workers reported their first progress."""
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
    """Effective training time ratio: training divided by the whole time."""


class RunningTime(Struct, frozen=True, kw_only=True):
    """Time that a run has taken, in seconds, if its workers reported no progress.

    The five times add up to its length. It is unknown how much of `running_s` was training.
    """

    running_s: Lifetime
    detecting_s: Lifetime = 0.0
    """Seconds from each standstill until its round ended."""
    forming_s: Lifetime = 0.0
    restarting_s: Lifetime = 0.0
    waiting_s: Lifetime = 0.0
    """Seconds with fewer nodes than the minimum."""


Restarts = Annotated[tuple[RestartEntry, ...], Meta(max_length=16)]


class RestartCost(Struct, frozen=True, kw_only=True):
    """Time that one restart or several took, in seconds: from the fault to the workers' next progress.

    If a part is None, its time is unknown, and is included in the next part that is known. If all parts from
    `spawning_s` on are None, the time after the start of the workers is unknown: they reported no progress.
    """

    detecting_s: Lifetime = 0.0
    """Seconds from the fault until the server ended the round: a standstill, a lost node's silence, or a worker's
    failure until its report."""
    stopping_s: Lifetime = 0.0
    """Seconds until all workers of the old round had stopped."""
    waiting_s: Lifetime = 0.0
    """Seconds with fewer nodes than the minimum, after that."""
    forming_s: Lifetime = 0.0
    """Seconds for the rest of the rendezvous."""
    spawning_s: Lifetime | None = None
    """Seconds until the agents had started the last worker."""
    importing_s: Lifetime | None = None
    """Seconds until the last worker reported `imported`."""
    initializing_s: Lifetime | None = None
    """Seconds until the last worker reported `initialized`."""
    loading_s: Lifetime | None = None
    """Seconds until the last worker reported `loaded`."""
    first_step_s: Lifetime | None = None
    """Seconds until the first worker reported progress."""


class RestartCosts(Struct, frozen=True, kw_only=True):
    """Time that all restarts of a run took together."""

    restarts: Count = 0
    """Number of restarts whose round has started."""
    followed: Count = 0
    """Number of these restarts after which workers reported progress. For the others, the time is known only until the
    workers were started."""
    cost: RestartCost = RestartCost()
    kept_steps: Count = 0
    """Steps after the last checkpoint that the restarts did not repeat, as the workers report it."""
    repeated_steps: Count = 0
    """Steps that the restarts repeated."""

    @property
    def sentence(self) -> str:
        """One line about all of it: the same in every log and on the page."""
        steps = self.kept_steps, self.repeated_steps
        return words.run.restarts_took(self.restarts, self.followed, asdict(self.cost), *steps)


class JoinRequest(Struct, frozen=True, kw_only=True):
    """An agent without workers is ready for the round after `after_round`, which is 0 for its first join."""

    run_id: Id
    agent_id: Id
    node_id: Id
    after_round: Round
    addr: Address
    """Address at which the other nodes reach this node: the address from which the agent reaches the server."""
    port: Port
    """Port that the agent has reserved for this round: the MASTER_PORT if it becomes group rank 0."""
    local_world_size: WorkerCount
    role: RoleName = "default"
    node_rank: Rank | None = None
    """Group rank that the node claims. The join is refused while another node has it."""
    preferred_rank: Rank | None = None
    """Group rank that the node gets if no other node has it."""
    sort_key: SortKey = ""
    """Text by which nodes without a rank are sorted to get one; equal ones in the order of joining."""
    settings: RequestedSettings = field(default_factory=RequestedSettings)
    explicit_run_id: bool = False
    rerun: bool = False
    """Whether to begin a new attempt of a run that has already succeeded, or that an operator has stopped."""
    returning: bool = False
    """Whether the agent has lost its place in the run. It takes another place while the run lasts, and does not begin
    an attempt of a run that has ended.
    """
    attempt: Count = 0
    """Attempt in which the agent had its place, if it is `returning`; 0 if the server did not report it."""
    hosts_store: bool = False
    """Whether this agent, as group rank 0, hosts the workers' store: torch is installed on its node."""
    log_dir: Line = ""
    """Folder on the node with the workers' log files, for people; empty if they write to the agent's console."""
    command: Fingerprint = ""
    """Short hash of the workers' command, without what differs between nodes. If it differs from the first agent's,
    the agent gets a `warning`, or `settings_conflict` after the run has succeeded."""
    program: ProgramName = ""
    """Name of the script, module or program that the workers run, without its folder; empty if not reported. If it
    differs (digits do not count) and the role does not, the answer is `settings_conflict`."""
    content: Fingerprint = ""
    """Short hash of the script's content; empty if not reported. It distinguishes two runs of one command without a run
    id."""
    folder: Fingerprint = ""
    """Short hash of the working folder; empty if not reported. It does the same if several nodes of a run share one."""
    drains: bool = False
    """Whether the agent knows the directive `drain`."""
    queries: Annotated[tuple[Name, ...], Meta(max_length=32)] = ()
    """Tags of the queries that the agent knows. The server does not send it others."""
    watches: Annotated[tuple[Name, ...], Meta(max_length=8)] | None = None
    """Sources by which the agent looks for hangs: `progress`, `silence`, `log rule`, `uninterruptible`. None from an
    older agent."""
    secret: Secret = ""
    """Secret that the agent chooses, and that every later request of its `agent_id` must contain; empty for none."""
    unfit: Line = ""
    """Evidence of a check that has found the node unfit; empty if the node is fit, or was not checked. The run records
    it, the node does not take part, and the answer is `agent_fenced`."""


class Progress(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Progress of a node's workers in `round`, as they have reported it with `node_agent.progress`.

    It travels in messages that are sent anyway.
    """

    round: Round
    lowest_step: Step | None = None
    """Step of the worker that is furthest behind; None if no worker has reported one."""
    highest_step: Step | None = None
    age_s: Seconds = 0.0
    """Seconds since the last report of the worker that has been silent for longest, of those whose loop is not over."""
    step_s: Seconds | None = None
    """Seconds that a step of the slowest worker takes now; None if not known yet."""
    work_s: Seconds | None = None
    """Seconds of a step that go into the worker's own work, for the worker with the most; None if not reported."""
    checkpoint_step: Step | None = None
    """Step of the last complete checkpoint."""
    checkpoint_s: Seconds = 0.0
    """Seconds spent on checkpoints in this round."""
    telling_s: Seconds | None = None
    """Seconds since the first report of any of these workers in this round."""
    spawned_ago_s: Seconds | None = None
    """Seconds since the agent started the last of these workers."""
    imported_ago_s: Seconds | None = None
    """Seconds since the last of these workers reported `imported`; None if none did. The next two are alike."""
    initialized_ago_s: Seconds | None = None
    loaded_ago_s: Seconds | None = None
    resumed_step: Step | None = None
    """Step after which these workers continued in this round; None if they have not reported it."""
    is_over: bool = False
    """Whether all of these workers have reported the end of their loop, after which no more progress is expected."""


class FinishedWorkers(Struct, frozen=True, kw_only=True):
    """Workers of a node that have exited 0 in `round`, while others of the same node still run."""

    round: Round
    ranks: Annotated[tuple[Rank, ...], Meta(max_length=MAX_ITEMS)]
    ago_s: Seconds
    """Seconds since the last of them exited."""


class EndedScript(Struct, frozen=True, kw_only=True):
    """Running worker of `round` whose script an exception has ended, while something keeps its process alive."""

    round: Round
    rank: Rank
    error: Line
    """The exception, as Python writes it: "ValueError: boom"."""


class PollRequest(Struct, frozen=True, kw_only=True):
    """Request for the agent's directive.

    It is answered once the directive is newer than `revision`, or a query is open; at once if not `hold`.
    """

    run_id: Id
    agent_id: Id
    revision: Revision
    hold: bool = True
    secret: Secret = ""
    round: Round | None = None
    """Round of the agent's workers, also after their end; 0 if the agent has joined the next round. None from an older
    agent."""
    progress: Progress | None = None
    asked: QueryNumbers = ()
    """Numbers of the open queries that the agent already has. They do not end the poll."""
    finished: FinishedWorkers | None = None
    wants_summary: bool = False
    """Whether the answer should contain the summary of the run."""
    console_held_s: Seconds | None = None
    """Seconds for which the agent's console has taken no output, so that workers may wait to write; None if not."""
    ended_script: EndedScript | None = None
    """Worker of the agent whose script an exception has ended, while its process continues; None if none is known."""


class ReportedError(Struct, frozen=True, kw_only=True):
    """Error that a worker has reported although it has exited 0: its work may not be done."""

    rank: Rank
    error: Line
    """The exception, as Python writes it: "ValueError: boom"."""


class ReportRequest(Struct, frozen=True, kw_only=True):
    """End of the agent's workers of `round`: without a `failure` if all of them have exited 0."""

    run_id: Id
    agent_id: Id
    round: Round
    failure: Failure | None = None
    secret: Secret = ""
    progress: Progress | None = None
    """Progress of the workers at their end, later than in the last poll."""
    finished: FinishedWorkers | None = None
    """Workers of the node that have finished, later than in the last poll."""
    ago_s: Seconds = 0.0
    """Seconds since the failed worker ended."""
    errors: Annotated[tuple[ReportedError, ...], Meta(max_length=8)] = ()
    """Errors of workers that have all exited 0."""


class SuspectRequest(Struct, frozen=True, kw_only=True):
    """Suspicion that workers of this node hang in `round`, by one source; without ranks, it is taken back.

    The server makes one failure from the suspicions of all nodes. The agent itself does nothing.
    """

    run_id: Id
    agent_id: Id
    round: Round
    source: Name
    """Source of the suspicion: `progress`, `silence` (counts once every node is silent), `uninterruptible`, `timer`,
    `log rule N: PATTERN`, or `preparation (FLAG)` if the node does not start its workers within the limit of FLAG."""
    reason: Line
    ranks: Annotated[tuple[Rank, ...], Meta(max_length=1_024)]
    secret: Secret = ""
    silent_s: Seconds = 0.0
    """Seconds for which these workers have shown no progress by this source; 0 if the source saw an event now."""
    limit_s: Seconds | None = None
    """Limit that was exceeded, in seconds; None if the source is not a time limit."""
    number: Count = 0
    """Number of the request among the agent's suspicions; 0 from an older agent. A request with a lower number than the
    last one is a late copy, and changes nothing."""
    ends_rules: bool = False
    """Whether a line of a worker has reported that all work is done: the log rules of all nodes end for this round. The
    request has no ranks, so an older server does nothing."""
    is_untold: bool = False
    """Whether no worker of this node has reported progress in this round, and no suspected rank in an earlier one. Then
    the suspicion counts only while no worker of the run reports progress in this round."""


class LeaveRequest(Struct, frozen=True, kw_only=True):
    """Departure of the agent, and why: "SIGTERM". At once, or with `notice_s` after a notice to the run's workers."""

    run_id: Id
    agent_id: Id
    reason: Line
    secret: Secret = ""
    unfit: bool = False
    """Whether a check has found the node unfit. If so, `reason` has the evidence."""
    retracts_success: bool = False
    """Whether a success that the agent has just reported does not count. Its workers may have exited 0 because they got
    the same signal as the agent."""
    notice_s: Seconds | None = None
    """Most seconds for which the agent waits until the workers of all nodes have acknowledged a notice; then the
    directive `drain` lets it go. If None, it leaves at once, as it does with a server that does not know this field."""
    stop_s: Seconds = 0.0
    """Seconds after which the scheduler kills the agent's own workers; used with `notice_s`."""


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
    """Whether group rank 0's agent hosts the store at the master's address; otherwise its first worker does."""
    restarts_used: Count | None = None
    """Restarts that count against `max_restarts` at the start of the round. Among all charged restarts, these are the
    ones within the window that do not have a budget of their own. None from an older server."""

    @property
    def ranks(self) -> range:
        """Ranks of the node's workers, by local rank."""
        return range(self.first_rank, self.first_rank + self.local_world_size)

    @property
    def used_restarts(self) -> int:
        """Restarts that count against `max_restarts`; from an older server, all charged ones of at most as many."""
        return min(self.restart_count, self.max_restarts) if self.restarts_used is None else self.restarts_used


class Wait(Struct, frozen=True, kw_only=True, tag_field="tag", tag="wait"):
    """Run no workers: the round is forming, or the agent stands by."""

    reason: Sentence
    """Reason for the wait, without the time that is left, so that it changes only when the reason does."""
    remaining_s: Seconds | None = None
    """Most seconds left; None if there is no limit."""
    ending: Name | None = None
    """Event at the end of `remaining_s`: the round `starts`, the run `gives_up`, the running round `ends` to admit this
    node, or this node is `uncordoned`."""
    excluded: bool = False
    """Whether the server itself excludes this node, for what it has cost runs: another node should take its place."""

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
        return words.run.continues_in(self.reason, self.remaining_s)


class Start(Struct, frozen=True, kw_only=True, tag_field="tag", tag="start"):
    """Run the workers of this assignment."""

    assignment: Assignment
    reason: Sentence


class Stop(Struct, frozen=True, kw_only=True, tag_field="tag", tag="stop"):
    """Stop the workers of `round`, then join again."""

    round: Round
    reason: Sentence
    seeks_cause: bool = False
    """Whether workers have lost another one, and no worker is known that has failed by itself. If a worker of this node
    has recorded its error before, the agent reports its failure."""


class Finish(Struct, frozen=True, kw_only=True, tag_field="tag", tag="finish"):
    """The run has ended. Stop what still runs and exit: with 0 if it succeeded, 70 if `no_progress`, else 1.

    Contains the run's final report, so that any node's log has all of it. Its size does not depend on the number of
    nodes.
    """

    succeeded: bool
    reason: Sentence
    failure: Failure | None = None
    """Failure that ended the run: the root failure of its last round."""
    round: Round = 0
    """Round of `failure`; 0 if there is none."""
    first_failure: Failure | None = None
    """Root failure of the whole run, if it is another one: the failure of its first charged restart."""
    first_round: Round = 0
    others: Failures = ()
    """Other failures of the last round, without the workers' output."""
    more_failures: Count = 0
    """Number of failures of the last round beyond `failure` and `others`."""
    restarts: Restarts = ()
    """Latest restarts, oldest first."""
    restart_total: Count = 0
    """Number of all restarts, for any cause."""
    charged_restarts: Count = 0
    join_timed_out: bool = False
    """Whether the run failed because too few nodes had joined in time."""
    no_progress: bool = False
    """Whether the run failed because restarts brought no progress; the agent then exits with 70."""
    time: RunTime | None = None
    """Time of the run by what it went into; None if it took none, or if its workers reported no progress."""
    running_time: RunningTime | None = None
    """The same for a run whose workers reported no progress; else None."""
    restart_costs: RestartCosts | None = None
    """Time that the restarts took; None if there were none, or from an older server."""


class Drain(Struct, frozen=True, kw_only=True, tag_field="tag", tag="drain"):
    """Empty this node: stop the workers, leave the run and exit. The other nodes continue without it.

    Sent only to agents whose join says that they know it (`drains`); other agents are fenced.
    """

    reason: Sentence
    remaining_s: Seconds
    """Seconds that the workers have left after SIGTERM, for a checkpoint; then they are killed."""
    unfit: bool = False
    """Whether the server's network test has found the node unfit. If so, `reason` has the evidence, and the agent exits
    with 71."""


Directive = Wait | Start | Stop | Drain | Finish


class RunSummary(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of a whole run in a few words, for a scheduler that shows it to people."""

    phase: Name
    """Phase of the run, as in its status."""
    health: Name = "ok"
    """Its worst state of health; `ok` also if it has ended."""
    sentence: Line = ""
    """Sentence about the health if it is not `ok`, or else about the phase."""
    round: Round = 0
    """Round of the workers that were started last; 0 if none were."""
    nodes: Count = 0
    """Nodes of the running round, or nodes that wait for the forming round."""
    restarts: Count = 0
    charged_restarts: Count = 0
    """Charged restarts that count against `max_restarts` now."""
    max_restarts: Count = 0
    step: Step | None = None
    """Highest step that workers have reported in any round; None if they have reported none."""
    checkpoint_step: Step | None = None
    """Step of the last complete checkpoint, of any round."""


class Reply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to a join or a poll: what the agent must do now. `epoch` identifies one lifetime of the server process."""

    epoch: Id
    revision: Revision
    lease_s: Seconds
    """Lease of the agent: seconds for which the server waits without hearing from it."""
    directive: Directive
    leadership: Revision = 0
    """Number of this server's leadership. A higher one is later; 0 if the server is the only one."""
    warning: Sentence = ""
    """Warning for a person, in the answer to a join. The agent may continue. Empty if there is none."""
    queries: Queries = ()
    """Open queries to the agent, beside its directive. Every reply repeats them until they are answered."""
    attempt: Count = 0
    """Number of the run's attempt that the agent is part of; 0 from an older server."""
    summary: RunSummary | None = None
    """Summary of the run, in the answer to a poll that asks for it."""


class Ack(Struct, frozen=True, kw_only=True):
    """The report, the leave or the answer has been accepted, now or before."""

    epoch: Id


class ErrorReply(Struct, frozen=True, kw_only=True):
    """A refusal: a stable code, and one line for a person."""

    code: Name
    message: Sentence
    leader: Address | None = None
    """HOST:PORT of the server to ask, if this server knows it; for `not_leader`."""
    leadership: Revision = 0
    """Number of the leadership of `leader`."""


class LeaderRequest(Struct, frozen=True, kw_only=True):
    """Request for the leader.

    It is answered once the server knows a later leadership than `after`, or after a while.
    """

    after: Revision
    run_id: Id | None = None
    """Run whose leader is wanted. Required if servers share the runs, since no single server leads them all."""


class LeaderReply(Struct, frozen=True, kw_only=True):
    """The latest leadership that the server knows, and the leader's HOST:PORT if it is known now."""

    leadership: Revision
    leader: Address | None = None
    leads: bool = False
    """Whether this server itself leads."""


Request = JoinRequest | PollRequest | ReportRequest | SuspectRequest | LeaveRequest | AnswerRequest
Message = Request | Reply | Ack | ErrorReply | LeaderRequest | LeaderReply
