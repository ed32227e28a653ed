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

from rdzv_protocol.constraints import (
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
from rdzv_protocol.text import clip, printable

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
    """The exception that ended it, as Python says it: "ValueError: boom". Empty if none was seen."""
    traceback: Traceback = ()
    """The end of the exception's traceback, the exception last."""
    stderr_tail: Lines = ()
    hint: Line = ""
    """Advice for a person."""
    consequence: bool = False
    """By what it wrote, it ended because another worker was gone: that one's failure is the root, if it is reported."""
    error_file: Line = ""
    """Path on its node of torch's `@record` file; empty if there is none, or if the file goes with the agent."""
    blame: Blame = "unknown"
    """What is at fault by the evidence: this `node` (a memory error of a GPU, a full disk), or the `program` (it asks
    for more memory than there is)."""
    verdict: RuleVerdict = "count"
    """What a rule of the user says of it: it ends the run (`fatal`), or the restart is free (`retry`)."""
    rule: Line = ""
    """Pattern of that rule."""
    recurs: Recurs = "unknown"
    """Kind of error that a restart does not cure: a program that cannot start (`at_start`), or one that fails again
    at the same step (`at_step`)."""
    failed_at: WallClock | None = None
    """The node's wall clock, seconds since 1970. For people; nothing is decided by it."""

    @property
    def sentence(self) -> str:
        """One line about what happened: the same in every log, on the status page and on every console."""
        return failure_sentence(self.node_id, self.rank, self.cause, self.error)


def failure_sentence(node_id: str, rank: int, cause: str, error: str) -> str:
    """Sentence about a worker's failure, of the fields of `Failure` with these names."""
    detail = f": {clip(error, 240)}" if error else ""
    return printable(f"worker rank {rank} on node {node_id} failed: {cause}{detail}")


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
    """Time that a run has taken, in seconds, by what it went into; the seven sum up to its length."""

    training_s: Lifetime
    checkpointing_s: Lifetime = 0.0
    detecting_s: Lifetime = 0.0
    """From a standstill until it was noticed."""
    lost_s: Lifetime = 0.0
    """Work since the last checkpoint that a restart had to repeat."""
    forming_s: Lifetime = 0.0
    restarting_s: Lifetime = 0.0
    waiting_s: Lifetime = 0.0
    """With fewer nodes than the minimum."""
    ettr: Annotated[float, Meta(ge=0, le=1)]
    """Effective training time ratio: training divided by the whole."""


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
    """Reserved by the agent for this round: the MASTER_PORT if it becomes group rank 0."""
    local_world_size: WorkerCount
    role: RoleName = "default"
    node_rank: Rank | None = None
    """A claim: the join is refused while another node has this rank."""
    preferred_rank: Rank | None = None
    """A wish: the group rank to get if no other node has it."""
    sort_key: SortKey = ""
    """Nodes that have no rank yet get theirs in the order of this text, then in that of joining."""
    settings: RequestedSettings = field(default_factory=RequestedSettings)
    explicit_run_id: bool = False
    rerun: bool = False
    """Begin a new attempt of a run that has already succeeded."""
    returning: bool = False
    """The agent has lost its place in the run: it takes another while the run lasts, and never begins an attempt."""
    hosts_store: bool = False
    """torch is installed here: as group rank 0 this agent hosts the workers' store beside them."""
    log_dir: Line = ""
    """Folder on this node that has the workers' log files, for people; empty: they write to the agent's console."""
    command: Fingerprint = ""
    """A short hash of what the workers run, without what differs from node to node: nodes of one run have the same."""
    drains: bool = False
    """The agent knows the directive `drain`."""
    queries: Annotated[tuple[Name, ...], Meta(max_length=32)] = ()
    """Tags of the queries that the agent knows: it is asked no others."""
    secret: Secret = ""
    """Chosen by the agent: from then on every request of this `agent_id` must bear the same. Empty: none has to."""
    unfit: Line = ""
    """Evidence of a check that has found the node unfit: it takes no part, which the run is told, and the answer is
    `agent_fenced`. Empty: it is fit, or was not checked."""


class Progress(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node's workers of `round` have told of their own progress, by `node_agent.progress`."""

    round: Round
    lowest_step: Step | None = None
    """Step of the worker that is furthest behind; None: none has named one."""
    highest_step: Step | None = None
    age_s: Seconds = 0.0
    """Time since the worker that has been silent for longest told something."""
    step_s: Seconds | None = None
    """Seconds that a step takes at present, those of the slowest worker; None: not known yet."""
    work_s: Seconds | None = None
    """Seconds of a step that go into own work, of the worker where it is most; None: it is not told."""
    checkpoint_step: Step | None = None
    """Step of the last complete checkpoint."""
    checkpoint_s: Seconds = 0.0
    """Seconds that have gone into checkpoints in this round."""


class PollRequest(Struct, frozen=True, kw_only=True):
    """Answered once the agent's directive is newer than `revision`, or a query is open; at once if not `hold`."""

    run_id: Id
    agent_id: Id
    revision: Revision
    hold: bool = True
    secret: Secret = ""
    progress: Progress | None = None
    asked: QueryNumbers = ()
    """Numbers of the open queries that the agent knows of: the poll is held in spite of them."""


class ReportRequest(Struct, frozen=True, kw_only=True):
    """End of the agent's workers of `round`: `failure` is None when every one exited 0."""

    run_id: Id
    agent_id: Id
    round: Round
    failure: Failure | None = None
    secret: Secret = ""
    progress: Progress | None = None
    """How far the workers had got: later than what the last poll said."""


class SuspectRequest(Struct, frozen=True, kw_only=True):
    """Workers of this node that seem to hang in `round`, and by which source; no ranks: they do not any more."""

    run_id: Id
    agent_id: Id
    round: Round
    source: Name
    """`progress`, `silence`, `uninterruptible`, `timer`, or a log rule. Silence counts once every node tells of it."""
    reason: Line
    ranks: Annotated[tuple[Rank, ...], Meta(max_length=1_024)]
    secret: Secret = ""


class LeaveRequest(Struct, frozen=True, kw_only=True):
    """The agent goes, and says why: "SIGTERM". At once; or, with `notice_s`, when the run's workers have been told."""

    run_id: Id
    agent_id: Id
    reason: Line
    secret: Secret = ""
    unfit: bool = False
    """A check has found the node unfit: `reason` has the evidence."""
    notice_s: Seconds | None = None
    """Longest time for which the agent waits until the workers of all nodes have acknowledged a notice. The directive
    `drain` says that it may go. A server that does not know this field takes the leave as one that goes at once."""
    stop_s: Seconds = 0.0
    """With `notice_s`: time after which the agent's own workers are gone, as its scheduler has it."""


class AnswerRequest(Struct, frozen=True, kw_only=True):
    """The answer to a query of the server."""

    run_id: Id
    agent_id: Id
    number: QueryNumber
    answer: QueryAnswer
    secret: Secret = ""


class Assignment(Struct, frozen=True, kw_only=True):
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

    @property
    def ranks(self) -> range:
        """Ranks of the node's workers, by local rank."""
        return range(self.first_rank, self.first_rank + self.local_world_size)


class Wait(Struct, frozen=True, kw_only=True, tag_field="tag", tag="wait"):
    """No workers: the round is forming, or the agent stands by."""

    reason: Sentence
    """Reason for the wait, without the time that is left: it changes when that does."""
    remaining_s: Seconds | None = None
    """Longest time left, if there is a limit."""
    ending: Name | None = None
    """End of that time: the round `starts`, the run `gives_up`, the running round `ends` to admit this node, or
    this node is `uncordoned`."""
    excluded: bool = False
    """The server itself keeps this node out, for what it has cost runs: another one should take its place."""

    @property
    def sentence(self) -> str:
        """The reason with the time that is left, for people."""
        if self.remaining_s is None:
            return self.reason
        return f"{self.reason}; {_ENDINGS.get(self.ending or '', 'in {:.1f} s').format(self.remaining_s)}"


_ENDINGS = {
    "starts": "starts in {:.0f} s",
    "gives_up": "gives up in {:.0f} s",
    "uncordoned": "uncordoned in {:.0f} s",
}


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

    Carries the run's story, so that any node's log tells all of it; its size does not depend on the number of nodes.
    """

    succeeded: bool
    reason: Sentence
    failure: Failure | None = None
    """Failure that ended the run: the root among the failures of its last round."""
    round: Round = 0
    """The round of `failure`; 0 for none."""
    first_failure: Failure | None = None
    """The root of the whole run, where that is another one: the failure of its first charged restart."""
    first_round: Round = 0
    others: Failures = ()
    """Further failures of the last round, without what they wrote."""
    more_failures: Count = 0
    """Number of failures that the last round had beside these."""
    restarts: Restarts = ()
    """The latest, oldest first."""
    restart_total: Count = 0
    """All restarts, whatever their cause."""
    charged_restarts: Count = 0
    join_timed_out: bool = False
    """The run failed because too few nodes had joined in time."""
    no_progress: bool = False
    """The run failed because restarts got it no further."""
    time: RunTime | None = None
    """What the run's time went into."""


class Drain(Struct, frozen=True, kw_only=True, tag_field="tag", tag="drain"):
    """This node is wanted empty: stop the workers, leave the run and exit. The others go on without it.

    Told only to agents that said with their join that they know it (`drains`); others are fenced.
    """

    reason: Sentence
    remaining_s: Seconds
    """Time that the workers have left after SIGTERM, for a checkpoint; then they are killed."""
    unfit: bool = False
    """A test that the server had made has found the node unfit: `reason` has the evidence."""


Directive = Wait | Start | Stop | Drain | Finish


class Reply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer to a join or a poll: what the agent must do now. `epoch` names one life of the server process."""

    epoch: Id
    revision: Revision
    lease_s: Seconds
    """Time that the server goes on without hearing from the agent."""
    directive: Directive
    leadership: Revision = 0
    """Number of this server's leadership. A higher one is later; 0: the server is the only one."""
    warning: Sentence = ""
    """With the answer to a join: what a person should look at, though the agent may go on."""
    queries: Queries = ()
    """What the server asks of the agent beside its directive; the same in every reply, until it is answered."""


class Ack(Struct, frozen=True, kw_only=True):
    """The report, the leave or the answer has been taken, or had been taken before."""

    epoch: Id


class ErrorReply(Struct, frozen=True, kw_only=True):
    """A refusal: a stable code of `rdzv_protocol.errors` and one line for a person."""

    code: Name
    message: Sentence
    leader: Address | None = None
    """With `not_leader`: HOST:PORT of the server to ask, if this one knows."""
    leadership: Revision = 0
    """The number of that leadership."""


class LeaderRequest(Struct, frozen=True, kw_only=True):
    """Answered once the server knows of a later leadership than `after`, or after a while."""

    after: Revision
    run_id: Id | None = None
    """Run whose leader is asked for: needed where servers share the runs, since no single one leads them all."""


class LeaderReply(Struct, frozen=True, kw_only=True):
    """The latest leadership that the server knows of, and the leader's HOST:PORT; None if it does not know it now."""

    leadership: Revision
    leader: Address | None = None
    leads: bool = False
    """Whether this server itself leads."""


Request = JoinRequest | PollRequest | ReportRequest | SuspectRequest | LeaveRequest | AnswerRequest
Message = Request | Reply | Ack | ErrorReply | LeaderRequest | LeaderReply
