"""Operators' actions on runs and on nodes: one table, their messages in JSON, and their answer.

Paths, OpenAPI, the page's buttons and `rdzvctl` know only what `ACTIONS` contains about an action. What the action does
is decided in `rdzv_server/core/kernel/operations.py`.

Each action may be repeated. The caller chooses its idempotency key, `request_id`. If a request with that id was carried
out, a second one changes nothing, even much later, and gets the same answer. The server remembers the latest ids of
each run, and of actions on nodes, also after a restart and on the next leader. The message does not name the operator:
the server knows that from the token and the connection.

`LogsRequest`, `StacksRequest` and `DescribeRequest` change nothing. They are here because only people who may act may
see what they return.
"""

from typing import Annotated, get_args

from msgspec import Meta, Struct

from rdzv_protocol import errors, paths
from rdzv_protocol.constraints import (
    Count,
    Id,
    Line,
    Lines,
    NodeCount,
    Rank,
    Round,
    Seconds,
    Sentence,
    Traceback,
)
from rdzv_protocol.flag_values import LOG_LINES, LogStream
from rdzv_protocol.queries import FileOffset, LineCount, LogText, Variables, Versions
from rdzv_protocol.text import age
from rdzv_protocol.visible import NAME

RequestId = Annotated[str, Meta(max_length=128, pattern=NAME)]
Deadline = Annotated[float, Meta(ge=0, le=604_800)]
"""Seconds for a checkpoint, at most a week."""

DRAIN_S = 300.0
"""Seconds that a drained node's workers have by default: enough for a checkpoint of some gigabytes."""


class Asked(Struct, frozen=True):
    """How a person gives one field of an action. A field without it is filled in by the page and by `rdzvctl`."""

    label: str
    """Label of its input on the page."""
    flag: str = ""
    """Flag of `rdzvctl` for it; empty if another argument sets it."""
    help: str = ""
    """Help text of the flag."""


UncordonedAfter = Annotated[Seconds, Asked(
    "Duration: 2h, 3d; empty: until you uncordon it", "--for",
    "uncordon the node after this time: 90s, 10m, 2h (default: never)",
)]  # fmt: skip


class RunAction(Struct, frozen=True, kw_only=True):
    """An action on one run."""

    run_id: Id
    reason: Line = ""
    """Reason, for the people who own the run."""
    request_id: RequestId = ""
    """Idempotency key, chosen by the caller: two requests with one id are one action. If empty, every request is a new
    one."""


class NodeAction(Struct, frozen=True, kw_only=True):
    """An action on a node, for all present and future runs of the server."""

    node_id: Id
    reason: Line = ""
    """Reason, for the people who use the node."""
    request_id: RequestId = ""
    """Idempotency key, chosen by the caller: two requests with one id are one action. If empty, every request is a new
    one."""


class StopRequest(RunAction, frozen=True, kw_only=True):
    """End the run: its agents stop their workers and exit with 1."""


class RestartRequest(RunAction, frozen=True, kw_only=True):
    """Restart the workers of every node in a new round, which is not charged to `max_restarts`."""

    round: Round | None = None
    """Round whose workers to restart; null: the running round. If the round is over, nothing changes."""


class ResizeRequest(RunAction, frozen=True, kw_only=True):
    """Change the limits of the run's number of nodes. If the run has more nodes, it continues at once with fewer.

    From then on, its agents' own `--nnodes` has no effect.
    """

    min_nodes: Annotated[NodeCount, Asked("Minimum number of nodes")]
    max_nodes: Annotated[NodeCount, Asked("Maximum number of nodes")]
    """Most nodes of a round, at least `min_nodes`."""


class AdmitRequest(RunAction, frozen=True, kw_only=True):
    """End the running round, so that nodes that stand by take its free places."""


class ForgetRequest(RunAction, frozen=True, kw_only=True):
    """Forget an ended run with all its attempts and events, as if it had never existed."""


class CordonRequest(NodeAction, frozen=True, kw_only=True):
    """Keep the node out of new rounds of any run; its agents stand by.

    A round that the node is part of continues.
    """

    for_s: UncordonedAfter | None = None
    """Seconds until the node is uncordoned by itself; null if it never is."""


class UncordonRequest(NodeAction, frozen=True, kw_only=True):
    """Let the node take part in new rounds again."""


class DrainRequest(NodeAction, frozen=True, kw_only=True):
    """Empty the node and cordon it, for all runs. Its workers get SIGTERM and time for a checkpoint, and its agents
    leave. The other nodes continue without it."""

    deadline_s: Annotated[Deadline, Asked(
        f"Time until workers are killed: 90s, 10m, 2h; empty: {age(DRAIN_S)}", "--deadline",
        f"kill the workers after this time: 90s, 10m, 2h (default: {age(DRAIN_S)})",
    )] = DRAIN_S  # fmt: skip
    """Seconds that the node's workers have for a checkpoint; then they are killed."""
    for_s: UncordonedAfter | None = None
    """Seconds until the node is uncordoned by itself; null if it never is."""


class Done(Struct, frozen=True, kw_only=True):
    """The action has been carried out, now or by an earlier copy of the request."""

    epoch: Id
    message: Sentence
    """Sentence about the action, for a person. The run's event has the same sentence as its reason."""
    changed: bool = True
    """Whether there was something to do. If false, `message` says why not."""


class LogsRequest(Struct, frozen=True, kw_only=True):
    """Read the end of a worker's log file through the agent of its node, which has to allow that."""

    run_id: Id
    rank: Rank
    """Rank of the worker in the last round that has started."""
    stream: LogStream = "stderr"
    lines: LineCount = LOG_LINES
    """Number of lines to read before the end of the file."""
    offset: FileOffset | None = None
    """Byte of the file at which to begin, instead of `lines` before its end: to continue after an earlier answer."""


class WorkerLog(Struct, frozen=True, kw_only=True):
    """The end of a worker's log file, or what has been added to it."""

    node_id: Id
    rank: Rank
    round: Round
    stream: LogStream
    path: Line
    """Path of the file on that node."""
    text: LogText
    """Text of that part of the file, as the worker has written it, including control characters."""
    offset: FileOffset
    """Byte of the file at which `text` ends: the offset for the next request."""
    is_cut: bool = False
    """Whether there was more to read than fits into one answer. If so, the oldest lines are left out."""


class StacksRequest(Struct, frozen=True, kw_only=True):
    """Look at what the workers of a running round are doing, through their agents, without disturbing the workers."""

    run_id: Id
    rank: Rank | None = None
    """Rank of the worker to look at; null for all workers."""
    reason: Line = ""
    """Reason, for the people who own the run."""


class WorkerStacks(Struct, frozen=True, kw_only=True):
    """Stacks of a round's workers, as far as they could be collected in time, and a sentence about all of them."""

    round: Round
    sentence: Sentence
    """Summary of all stacks, with equal ones together: "15 ranks in all_reduce at train.py:88; rank 7 in ..."."""
    stack: Traceback = ()
    """Python stack, innermost call last: of the requested worker, or else of one that the others wait for."""
    node_id: Line = ""
    """Node of `folder`."""
    folder: Line = ""
    """Folder on `node_id` with the evidence in files; every node keeps its own. Empty if there is none."""
    problems: Lines = ()
    """Sentences for a person: one for each thing that could not be found out, with the reason."""


class DescribeRequest(Struct, frozen=True, kw_only=True):
    """Ask the agent of a node for its versions, its machine and its environment."""

    run_id: Id
    node_id: Id


class AgentDescription(Struct, frozen=True, kw_only=True):
    """Description of an agent: its versions, machine and environment."""

    node_id: Id
    versions: Versions
    system: Line
    """Operating system, its release, and the machine's architecture."""
    cpus: Count
    """CPUs that the agent may use."""
    gpu_driver: Line
    """Version of the GPUs' driver, from a file of the system; empty if there is no such file."""
    variables: Variables


class Input(Struct, frozen=True):
    """A field of an action that a person gives: a number from `least` to `most`."""

    name: str
    asked: Asked
    least: float
    most: float
    is_time: bool
    """Whether it is a number of seconds, which a person gives with a unit; otherwise it is a whole number."""


class Action(Struct, frozen=True, kw_only=True):
    """One action that an operator can take on a run, or on a node for all runs.

    As for every POST outside of the agents' paths, the caller needs an admin token. Without tokens, only this machine
    may act.
    """

    name: str
    """Subcommand of `rdzvctl`, and end of the path."""
    request: type[RunAction] | type[NodeAction]
    """Type of its message: on a run or a node, with the fields to ask for. Its docstring says what the action does."""
    help: str
    """Help text in `rdzvctl --help`."""
    question: str = ""
    """Question that `rdzvctl` asks at a terminal before an action that costs something; empty if it can be undone."""
    label: str
    """Label of its button."""
    is_destructive: bool = False
    """Whether its button warns by its colour."""
    place: int = 0
    """Place of its button among those of the table: buttons with lower numbers come first."""
    refusals: tuple[type[errors.ProtocolError], ...] = ()
    """Refusals beyond those of any action."""
    of_absent: bool = False
    """Whether the action may name a node that no run has."""
    undone_by: str = ""
    """Action that ends what stays of this one; `rdzvctl` names it afterwards. Empty: it names none."""
    of_ended: bool = False
    """Whether the action is for a run that has ended, rather than an active one."""

    @property
    def of_node(self) -> bool:
        """Whether the action is on a node, for all runs, rather than on one run."""
        return issubclass(self.request, NodeAction)

    @property
    def path(self) -> str:
        return (paths.NODES if self.of_node else paths.RUNS) + self.name

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the message's fields that other actions do not share."""
        common = NodeAction if self.of_node else RunAction
        return tuple(name for name in self.request.__struct_fields__ if name not in common.__struct_fields__)

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The fields that a person gives."""
        kinds = {name: self.request.__annotations__[name] for name in self.fields}
        return tuple(found for name, kind in kinds.items() if (found := _input(name, kind)))


def _input(name: str, kind: object) -> Input | None:
    """Return the field as an input. Return None if the field has no input."""
    value = get_args(kind)[0] if type(None) in get_args(kind) else kind
    metadata = {type(each): each for each in getattr(value, "__metadata__", ())}
    if Asked not in metadata:
        return None
    limits = metadata[Meta]
    return Input(name, metadata[Asked], limits.ge, limits.le, is_time=get_args(value)[0] is float)


STOP = Action(
    name="stop", request=StopRequest, help="end a run: its agents stop their workers and exit with 1",
    question="End the run on every node?", label="Stop run", is_destructive=True, place=1,
    refusals=(errors.UnknownRun,),
)  # fmt: skip
RESTART = Action(
    name="restart", request=RestartRequest, help="restart a run's workers on every node, without charging the restart "
        "budget",
    question="Restart the workers of the run on every node?", label="Restart",
    refusals=(errors.UnknownRun, errors.RunEnded),
)  # fmt: skip
RESIZE = Action(
    name="resize", request=ResizeRequest, help="change the limits of a run's number of nodes while it runs",
    question="Resize the run?", label="Resize", refusals=(errors.UnknownRun, errors.RunEnded),
)  # fmt: skip
ADMIT = Action(
    name="admit", request=AdmitRequest, help="let standby nodes take the free places of a running round",
    label="Admit", place=-1, refusals=(errors.UnknownRun, errors.RunEnded, errors.NoStandby),
)  # fmt: skip
FORGET = Action(
    name="forget", request=ForgetRequest, help="forget an ended run and all its events",
    question="Forget the run and all its events?", label="Forget", is_destructive=True, place=1,
    refusals=(errors.UnknownRun, errors.RunStillActive), of_ended=True,
)  # fmt: skip
DRAIN = Action(
    name="drain", request=DrainRequest,
    help="empty a node and cordon it: its workers get SIGTERM and time for a checkpoint, and the other nodes continue "
        "without it",
    question="Stop the workers on this node?", label="Drain", is_destructive=True, refusals=(errors.UnknownNode,),
    undone_by="uncordon",
)  # fmt: skip
CORDON = Action(
    name="cordon", request=CordonRequest, help="keep a node out of new rounds; its current workers continue",
    label="Cordon",
)  # fmt: skip
UNCORDON = Action(
    name="uncordon", request=UncordonRequest, help="let a node take part in new rounds again", label="Uncordon",
    of_absent=True,
)  # fmt: skip
ACTIONS = (STOP, RESTART, RESIZE, ADMIT, FORGET, DRAIN, CORDON, UNCORDON)
"""All actions, in the order of `rdzvctl --help`."""
ActionRequest = RunAction | NodeAction
"""Message of any action."""
