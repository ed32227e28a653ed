"""Cordons of a server's nodes, for all runs, those to come included; with the latest requests about nodes, and the
memory of what nodes were blamed for.

They are recorded beside the runs, as facts of the run without a name (`JOURNAL`). A run knows those of its own nodes,
as facts of its own: a replay of its records needs no others.
"""

from collections.abc import Iterable
from typing import Annotated, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import replace
from rdzv_protocol.constraints import Id
from rdzv_protocol.errors import ServerUnavailable

from rdzv_server.core import events, operations
from rdzv_server.core.events import EXCLUDER, Cordon, CordonsKept, Life
from rdzv_server.core.node_history import Incident, NodeHistory
from rdzv_server.core.run import Run, keep_latest

JOURNAL = ""
"""Run id of the journal, which no run can have; its attempt is 0."""
MOST_CORDONS = 1_000
"""Cordons of a server: a snapshot of them is one record."""
MOST_OF_RUN = 128
"""Cordons of a run that are for this run only."""
MOST_ANSWERS = 256
"""Latest requests whose repetition is recognized."""


Given = TypeVar("Given", bound=Cordon | events.NodeOperation)


class CordonStatus(Struct, frozen=True, kw_only=True):
    """Cordon of a node, which gets no seat in a new round: by whom, why, and for how long."""

    node_id: Id
    by: str
    reason: str
    until: Annotated[float | None, Meta(description="when it is uncordoned, seconds since 1970; null: not by itself")]
    drained: Annotated[bool, Meta(description="its agents were told to leave")]
    excluded: Annotated[bool, Meta(description="the server's own, for what runs have blamed the node for")]


def status(given: Cordon) -> CordonStatus:
    """Status of a cordon."""
    return CordonStatus(
        node_id=given.node_id,
        by=given.by,
        reason=given.reason,
        until=given.wall_until,
        drained=given.drain_s is not None,
        excluded=given.excludes,
    )


def for_others(given: Given) -> Given:
    """Return the cordon, or the action on a node, as runs may know it that its reason does not quote."""
    if not isinstance(given, Cordon | events.NodeCordoned) or not given.general:
        return given
    return replace(given, reason=given.general, general="")


def known_to(runs: Iterable[Run], given: Iterable[CordonStatus]) -> list[CordonStatus]:
    """Return those of the cordons that these runs know of, as they know them: those of nodes that take part."""
    known: dict[str, Cordon] = {}
    for run in runs:
        for cordon in () if run.stage.is_end else run.cordons.values():
            if cordon.node_id not in known or cordon.general:
                known[cordon.node_id] = cordon
    return [status(known[each.node_id]) for each in given if each.node_id in known]


class Cordons:
    """Cordons of one server, by node, with the node history. Times are the server's, in seconds."""

    def __init__(self) -> None:
        self.by_node: dict[str, Cordon] = {}
        self._next_deadline: float | None = None
        """Time at which the next cordon ends; cached, since it is asked for after every event of any run."""
        self.history = NodeHistory()
        self.lifted: dict[str, float] = {}
        """Wall-clock time at which an operator last uncordoned each node: ends its exclusion in other shards."""
        self.answers: dict[str, str] = {}
        """Ids of the latest requests about nodes, and of forgotten runs, each with the sentence that answered it."""

    def check_room(self, event: events.NodeOperation) -> None:
        """Raise `ServerUnavailable` if the event would be one cordon too many."""
        is_new = isinstance(event, events.NodeCordoned) and event.node_id not in self.by_node
        if is_new and len(self.by_node) >= MOST_CORDONS:
            raise ServerUnavailable(f"this server has {MOST_CORDONS} cordons, as many as it may: uncordon some nodes")

    def apply(self, fact: object, at: float) -> None:
        """Apply a fact about nodes, when it happens and when it is replayed."""
        match fact:
            case CordonsKept():
                self.by_node = {cordon.node_id: cordon for cordon in fact.cordons}
                self.answers, self.lifted = dict(fact.answers), dict(fact.lifted)
                self.history.restore(fact.history)
            case events.NodeBlamed():
                self.history.note(fact.node_id, Incident(at, fact.fault, fact.run_id, fact.reason, fact.wall_at))
            case events.NodeCordoned():
                self._keep(fact, at)
            case events.NodeUncordoned():
                self.by_node.pop(fact.node_id, None)
                if fact.by:
                    self._forgive(fact)
            case events.RunForgotten():
                self._answer(fact, f"run {fact.run_id} is forgotten")
        if isinstance(fact, events.NodeOperation):
            self._answer(fact, operations.BY_FACT[type(fact)].says(fact))
        self._next_deadline = min(
            (cordon.until for cordon in self.by_node.values() if cordon.until is not None), default=None
        )

    def expired(self, now: float) -> list[str]:
        """Ids of the nodes whose cordons have ended."""
        return [cordon.node_id for cordon in self.by_node.values() if cordon.until is not None and now >= cordon.until]

    def next_deadline(self) -> float | None:
        """Time at which the next cordon ends by itself; None: none does."""
        return self._next_deadline

    def snapshot(self, life: Life) -> CordonsKept:
        return CordonsKept(tuple(self.by_node.values()), self.answers, life, self.history.by_node, self.lifted)

    def _keep(self, fact: events.NodeCordoned, at: float) -> None:
        self.by_node[fact.node_id] = operations.cordon_of(fact, at)
        if fact.by == EXCLUDER:
            self.history.note(fact.node_id, Incident(at, "excluded", "", fact.reason, fact.wall_at))

    def _forgive(self, fact: events.NodeUncordoned) -> None:
        self.history.forgive(fact.node_id)
        if fact.wall_at is not None:
            keep_latest(self.lifted, fact.node_id, fact.wall_at, MOST_CORDONS)

    def _answer(self, fact: events.Operation, sentence: str) -> None:
        if fact.request_id:
            keep_latest(self.answers, fact.request_id, sentence, MOST_ANSWERS)
