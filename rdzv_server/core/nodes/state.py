"""State of the nodes' machine, which follows only from the recorded facts.

Times are in seconds by the server's clock.
"""

from rdzv_server.core import events
from rdzv_server.core.events import EXCLUDER, Cordon, Incarnation
from rdzv_server.core.kernel import operations
from rdzv_server.core.kernel.run import keep_latest, remember_answer
from rdzv_server.core.node_facts import CordonsKept, NodeBlamed, NodeFact
from rdzv_server.core.node_history import EXCLUDED, Incident, NodeHistory
from rdzv_server.core.nodes.cordons import MOST_CORDONS
from rdzv_server.words import operations as words

MOST_ANSWERS = 256
"""Number of latest requests that are recognized when they are repeated."""


class NodesState:
    """Cordons of a server's nodes, for all present and future runs, and what is remembered of its nodes."""

    def __init__(self) -> None:
        self.cordons: dict[str, Cordon] = {}
        """Cordons by node."""
        self.next_uncordoning: float | None = None
        """Time at which the next cordon ends by itself; None if none does. Cached, since every event needs it."""
        self.history = NodeHistory()
        self.lifted: dict[str, float] = {}
        """Wall-clock time at which each node was last uncordoned early, which ends its exclusion in other shards."""
        self.answers: dict[str, str] = {}
        """Ids of the latest requests about nodes and of forgotten runs, each with the sentence that answered it."""
        self.idle: tuple[str, ...] = ()
        """Ids of requests in `answers` that changed nothing."""

    def apply(self, fact: NodeFact, at: float) -> None:
        """Apply a fact about nodes, both when it happens and in a replay."""
        match fact:
            case CordonsKept():
                self.cordons = {cordon.node_id: cordon for cordon in fact.cordons}
                self.answers, self.idle, self.lifted = dict(fact.answers), fact.idle, dict(fact.lifted)
                self.history.restore(fact.history)
            case NodeBlamed():
                incident = Incident(at, fact.fault, fact.run_id, fact.reason, fact.wall_at, fact.condition)
                self.history.note(fact.node_id, incident)
            case events.NodeCordoned():
                self._keep_out(fact, at)
            case events.NodeUncordoned():
                self._let_in(fact)
            case events.RunForgotten():
                self._answer(fact, words.forgotten(fact.run_id, 0, fact.reason))
        if isinstance(fact, events.NodeOperation):
            self._answer(fact, operations.BY_FACT[type(fact)].says(fact))
        ends = (cordon.until for cordon in self.cordons.values() if cordon.until is not None)
        self.next_uncordoning = min(ends, default=None)

    def expired(self, now: float) -> list[str]:
        """Return the ids of the nodes whose cordons have ended."""
        return [cordon.node_id for cordon in self.cordons.values() if cordon.until is not None and now >= cordon.until]

    def snapshot(self, incarnation: Incarnation) -> CordonsKept:
        """Return the fact that replaces all facts applied so far."""
        return CordonsKept(
            tuple(self.cordons.values()), self.answers, incarnation, self.history.by_node, self.lifted, self.idle
        )

    def _keep_out(self, fact: events.NodeCordoned, at: float) -> None:
        self.cordons[fact.node_id] = operations.cordon_of(fact, at)
        if fact.by == EXCLUDER:
            self.history.note(fact.node_id, Incident(at, EXCLUDED, "", fact.reason, fact.wall_at))

    def _let_in(self, fact: events.NodeUncordoned) -> None:
        self.cordons.pop(fact.node_id, None)
        if fact.by:
            self.history.forgive(fact.node_id)
        if fact.wall_at is not None:
            keep_latest(self.lifted, fact.node_id, fact.wall_at, MOST_CORDONS)

    def _answer(self, fact: events.Operation, sentence: str) -> None:
        self.idle = remember_answer(self.answers, self.idle, fact, sentence, MOST_ANSWERS)
