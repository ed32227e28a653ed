"""Events of a run: what happened to it, in order, as in `/v1/runs/ID/events`, the event log and the webhook.

The events of a run are numbered 1, 2, 3 ..., over all attempts of its run id. A reader that has seen number N asks for
the events after N. A jump in the numbers shows that the server has dropped old events. New fields and new kinds may be
added within `/v1`; existing ones keep their meaning.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from rdzv_protocol import words
from rdzv_protocol.constraints import Count, Id, Line, Name, Rank, Round, Seconds, Sentence, WallClock
from rdzv_protocol.messages import Failure, RunningTime, RunTime
from rdzv_protocol.text import printable

ActionKind = Literal[
    "node_drained",
    "node_cordoned",
    "node_uncordoned",
    "nodes_admitted",
    "run_restarted",
    "run_resized",
    "run_stopped",
]
"""Kinds of the events that report an operator's action: see `actions`."""

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
    "training_resumed",
]

Number = Annotated[int, Meta(ge=1, le=2**53)]


class RunEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Event of a run: one thing that happened to it. Fields that do not apply to its kind are left out."""

    number: Number
    """Place among all events of the run: 1, 2, 3 ... over all of its attempts."""
    run_id: Id
    attempt: Count
    round: Round
    """The round that was forming or running. For `round_opened`, the round that forms from now on; for
    `workers_failed`, the round of these workers."""
    kind: EventKind
    """`node_joined`: an agent has joined that is new to the attempt, not one that rejoins. `workers_failed`: a node's
    workers have failed. `warning`: something that a person should look at, while the run continues. `hang_suspected`,
    `hang_found`: workers seem to hang, and which rank is to blame. `straggler_found`, `straggler_over`: a node is much
    slower than the others, or no longer. `notice_given`, `notice_ended`: workers learn that the round ends, and how the
    notice ended. `network_tested`, `node_unfit`: the result of a test of the nodes in pairs, and a node that it
    excludes. `training_resumed`: how many steps the new round repeats. From `node_drained` to `run_stopped`, and
    `stacks_asked`: an operator's action."""
    reason: Sentence
    """Sentence about what happened and why: the same in the log, the status and every tool."""
    at: WallClock | None = None
    """The server's wall clock, in seconds since 1970."""
    node_id: Id | None = None
    group_rank: Rank | None = None
    """Group rank of the node in the last round in which it had a seat."""
    cause: Name | None = None
    """Cause for which the round was opened: `first`, `worker_failure`, `node_lost`, `node_left`, `node_arrived`, or a
    cause from an operator's action."""
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
    """The same for a run whose workers reported no progress."""
    by: Line = ""
    """Role of the token and address of the operator who acted; empty for other events."""
    request_id: Id | None = None
    """Value of `request_id` in the operator's request."""

    @property
    def sentence(self) -> str:
        """The event in one line, with the operator if there is one: the same in every log and every tool."""
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
    """Some events of a run, the oldest first. There are more if `after` is below `last`."""

    events: tuple[RunEvent, ...]
    after: Annotated[int, Meta(ge=0, le=2**53)]
    """Number of the last event of this page: the value of `after` for the next request."""
    last: Annotated[int, Meta(ge=0, le=2**53)]
    """Number of the last event of the run."""


SIGNATURE = "Rdzv-Signature"
"""Header of a webhook's request: `t=TIME,v1=HEX`. TIME is seconds since 1970; HEX is HMAC-SHA256 of `TIME.BODY`."""


class EventDelivery(Struct, frozen=True, kw_only=True):
    """Body of a webhook's request: the next events of one run. An event whose number was seen before is a copy."""

    run_id: Id
    events: tuple[RunEvent, ...]
