"""Events of a run: what happened to it, in order, as `/v1/runs/ID/events`, the event log and the webhook tell it.

The events of a run are numbered 1, 2, 3 ..., over all attempts of its run id. A reader that has seen number N asks for
what came after N. A jump in the numbers shows that the server has dropped old events. New fields and new kinds may be
added within `/v1`; what is there keeps its meaning.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from rdzv_protocol import words
from rdzv_protocol.actions import ActionKind
from rdzv_protocol.constraints import Count, Id, Line, Name, Rank, Round, Seconds, Sentence, WallClock
from rdzv_protocol.messages import Failure, RunningTime, RunTime
from rdzv_protocol.text import printable

EventKind = Literal[
    "run_created",
    "node_joined",
    "node_lost",
    "node_left",
    "workers_failed",
    "round_opened",
    "round_started",
    "run_succeeded",
    "run_failed",
    "warning",
    ActionKind,
    "hang_suspected",
    "hang_found",
    "straggler_found",
    "straggler_over",
    "notice_given",
    "notice_ended",
    "network_tested",
    "node_unfit",
    "stacks_asked",
]

Number = Annotated[int, Meta(ge=1, le=2**53)]


class RunEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Event of a run: one thing that happened to it. Fields that do not apply to its kind are left out."""

    number: Number
    """Place among all events of the run: 1, 2, 3 ... over all of its attempts."""
    run_id: Id
    attempt: Count
    round: Round
    """The round that was forming or running; with `round_opened` the one that forms from now on, with
    `workers_failed` the one of these workers."""
    kind: EventKind
    """`node_joined`: an agent that is new to the attempt; nobody who rejoins. `workers_failed`: a node's workers.
    `warning`: what a person should look at, though the run goes on. `hang_suspected`, `hang_found`: workers seem to
    hang, and who is to blame. `straggler_found`, `straggler_over`: a node is much slower than the others, or no longer.
    `notice_given`, `notice_ended`: workers are told that the round ends, and how that ended. `network_tested`,
    `node_unfit`: what a test of the nodes in pairs has found, and the node that it keeps out.
    From `node_drained` to `run_stopped`, and `stacks_asked`: what an operator did."""
    reason: Sentence
    """Sentence about what happened and why: the same in the log, the status and every tool."""
    at: WallClock | None = None
    """The server's wall clock, seconds since 1970."""
    node_id: Id | None = None
    group_rank: Rank | None = None
    """Group rank of the node in the last round that it had a seat in."""
    cause: Name | None = None
    """Cause for which the round was opened: `first`, `worker_failure`, `node_lost`, `node_left`, `node_arrived`, or
    another that an operator gave."""
    charged: bool | None = None
    """Whether this restart was charged to `max_restarts`; for `round_started`."""
    nodes: Count | None = None
    """Number of participants of the round; for `round_started`."""
    world_size: Count | None = None
    duration_s: Seconds | None = None
    """Seconds from the opening of the round to its start; for `round_started`."""
    failure: Failure | None = None
    """Failure with its evidence, clipped; for `workers_failed`, `hang_found` and `run_failed`."""
    time: RunTime | None = None
    """Time of the run by what it went into; for `run_succeeded` and `run_failed`."""
    running_time: RunningTime | None = None
    """The same for a run whose workers told no progress."""
    by: Line = ""
    """Role of the token and address of the operator who acted; empty for what no operator did."""
    request_id: Id | None = None
    """Value of `request_id` in the operator's request."""

    @property
    def sentence(self) -> str:
        """The event in one line, with who did it, for people: the same in every log and every tool."""
        what = self._what()
        return printable(words.run.by_operator(what, self.by) if self.by else what)

    def _what(self) -> str:
        match self.kind:
            case "round_opened":
                return words.run.opened(self.reason)
            case "round_started":
                return words.run.started(self.nodes, self.reason)
            case "run_succeeded":
                return words.run.succeeded(self.reason)
            case "run_failed":
                return words.run.failed(self.reason)
        return self.reason


class EventPage(Struct, frozen=True, kw_only=True):
    """Some events of a run, the oldest first. There are more while `after` is below `last`."""

    events: tuple[RunEvent, ...]
    after: Annotated[int, Meta(ge=0, le=2**53)]
    """Number of the last event of this page: what to ask for next."""
    last: Annotated[int, Meta(ge=0, le=2**53)]
    """Number of the last event that the run has."""


SIGNATURE = "Rdzv-Signature"
"""Header of a webhook's request: `t=TIME,v1=HEX`. HEX: HMAC-SHA256 of TIME, seconds since 1970, a dot and the body."""


class EventDelivery(Struct, frozen=True, kw_only=True):
    """Body of a webhook's request: the next events of one run. A number that was seen before is a copy."""

    run_id: Id
    events: tuple[RunEvent, ...]
