"""The machine of a server's nodes: `handle(event, now)` gives the effects, `next_deadline()` says when time is due.

It acts on the server's runs through `Runs`, and takes from them what they blame nodes for.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

from msgspec.structs import replace
from rdzv_protocol.errors import ServerUnavailable, UnknownNode
from rdzv_protocol.text import clip

from rdzv_server.core import events, journals
from rdzv_server.core.effects import Effect, Record
from rdzv_server.core.events import EXCLUDER, Life, NodeJoined
from rdzv_server.core.kernel.machine import RunMachine
from rdzv_server.core.kernel.run import Run
from rdzv_server.core.node_facts import NodeBlamed, NodeFact
from rdzv_server.core.node_history import REASON_BYTES, Blame, Incident
from rdzv_server.core.nodes.cordons import MOST_CORDONS, MOST_OF_RUN, for_others
from rdzv_server.core.nodes.exclusion import ExclusionPolicy, verdict
from rdzv_server.core.nodes.state import NodesState
from rdzv_server.words import nodes as words
from rdzv_server.words import operations


class Runs(Protocol):
    """Protocol of all that the nodes' machine may do to the runs."""

    def with_node(self, node_id: str) -> list[RunMachine]:
        """Runs that have not ended and have agents of the node, or its cordon."""

    def tell(self, machine: RunMachine, event: events.Event, now: float) -> list[Effect]:
        """Let a run handle an event."""


class Nodes:
    """Machine of a server's nodes. Times are the server's, in seconds."""

    def __init__(self, runs: Runs, exclusion: ExclusionPolicy | None, *, knows_all_runs: bool = True) -> None:
        """Begin without cordons. `exclusion`: policy by which the server keeps a node out by itself; None: never."""
        self.state = NodesState()
        self.excludes = exclusion is not None
        """Whether every run has to await a verdict on the nodes that it blames."""
        self.knows_all_runs = knows_all_runs
        """Whether there are no other shards; else all shards have been asked before whether a node is known."""
        self._runs = runs
        self._exclusion = exclusion
        self._life = Life()
        self.suspects: dict[str, list[tuple[RunMachine, Blame]]] = {}
        """Blames on each node, and the attempts that they came from, which await the verdict of `judge`."""

    def begin_life(self, life: Life) -> None:
        """Begin a life of the server."""
        self._life = life

    def handle(self, event: events.NodeOperation, now: float) -> list[Effect]:
        """Act on a node in all its runs, then for later runs, unless the request was carried out before.

        Raises `ProtocolError`, with nothing changed, if it is refused.
        """
        if event.request_id in self.state.answers:
            return []
        return self._operate(event, self._runs.with_node(event.node_id), "", now)

    def forgotten(self, fact: events.RunForgotten, now: float) -> list[Effect]:
        """Remember the request to forget a run, since the run will not."""
        return self._record(fact, now)

    def answer_to(self, request_id: str) -> str:
        """Sentence that answered a request about a node, or to forget a run; empty if the request is not known."""
        return self.state.answers.get(request_id, "")

    def pass_time(self, now: float) -> list[Effect]:
        """Uncordon the nodes whose cordons end by themselves."""
        effects: list[Effect] = []
        for node_id in self.state.expired(now):
            effects += self.handle(events.NodeUncordoned(operations.TIME_OVER, node_id=node_id), now)
        return effects

    def next_deadline(self) -> float | None:
        """Time at which `pass_time` is due next; None: it is not."""
        return self.state.next_uncordoning

    def with_cordon(self, event: NodeJoined, run: Run) -> NodeJoined:
        """Join with the cordon of its node, if it has one that the run does not know in its own words."""
        cordon = self.state.cordons.get(event.join.node_id)
        return event if cordon is None or cordon.node_id in run.cordons else replace(event, cordon=for_others(cordon))

    # What is recorded.

    def replay(self, fact: NodeFact, at: float) -> None:
        """Apply a recorded fact again, or a snapshot."""
        self.state.apply(fact, at)

    def snapshot(self, now: float) -> list[Record]:
        """Records to replay in place of all before them."""
        return [Record(*journals.NODES, now, self.state.snapshot(self._life))]

    def _record(self, fact: NodeFact, now: float) -> list[Effect]:
        self.state.apply(fact, now)
        return [Record(*journals.NODES, now, fact)]

    def _operate(
        self, event: events.NodeOperation, concerned: Collection[RunMachine], quoted: str, now: float
    ) -> list[Effect]:
        """Act on a node in the runs that it concerns. `quoted`: id of the run that the reason quotes; other runs get
        the general reason.

        The request is remembered last: if only a part of the batch is written, a repetition carries the rest out.
        """
        self._check(event, concerned)
        effects: list[Effect] = []
        for machine in concerned:
            if isinstance(event, events.NodeUncordoned) and event.by:
                machine.history.forgive(event.node_id)
            told = event if machine.run.run_id == quoted else for_others(event)
            effects += self._runs.tell(machine, told, now)
        return effects + self._record(replace(event, life=self._life), now)

    def _check(self, event: events.NodeOperation, concerned: Collection[RunMachine]) -> None:
        """Refuse a drain of a node that is part of no run, and a cordon too many. Raises `ProtocolError`."""
        is_cordoned = event.node_id in self.state.cordons
        if isinstance(event, events.NodeDrained) and self.knows_all_runs and not (concerned or is_cordoned):
            raise UnknownNode(words.unknown_node(event.node_id))
        if isinstance(event, events.NodeCordoned) and not is_cordoned and not self._has_room:
            raise ServerUnavailable(words.too_many_cordons(MOST_CORDONS))

    @property
    def _has_room(self) -> bool:
        return len(self.state.cordons) < MOST_CORDONS

    # What nodes are blamed for.

    def take_blames(self, machine: RunMachine, now: float) -> list[Effect]:
        """Remember what an attempt blames nodes for; `judge` decides what follows.

        What a run blames nodes for on the word of agents that may join only some runs is remembered for this run only.
        """
        run, effects = machine.run, list[Effect]()
        for blame in machine.take_blames():
            self.suspects.setdefault(blame.node_id, []).append((machine, blame))
            if run.is_scoped:
                _note(machine, blame, now)
                continue
            fact = NodeBlamed(
                node_id=blame.node_id, fault=blame.fault, run_id=run.run_id, reason=clip(blame.reason, REASON_BYTES),
                wall_at=run.wall_clock(now), life=self._life,
            )  # fmt: skip
            effects += self._record(fact, now)
        return effects

    def take_replayed_blames(self, machine: RunMachine, at: float) -> None:
        """Take what a replayed fact blames nodes for: the journal has it, and all verdicts are recorded."""
        for blame in machine.take_blames():
            if machine.run.is_scoped:
                _note(machine, blame, at)
        machine.awaits_verdict = False

    def judge(self, now: float) -> list[Effect]:
        """Exclude the nodes that have been blamed enough, once all blames of this instant are known.

        Nodes that are lost together are not to blame, also if each is lost by another run.
        """
        effects: list[Effect] = []
        machines: dict[RunMachine, None] = {}
        while self.suspects:
            node_id = next(iter(self.suspects))
            blames = self.suspects.pop(node_id)
            effects += self._exclude(node_id, blames, now)
            machines |= dict.fromkeys(machine for machine, _ in blames)
        for machine in machines:
            if machine.awaits_verdict:
                machine.awaits_verdict = False
                effects += self._runs.tell(machine, events.TimePassed(), now)
        return effects + self.judge(now) if self.suspects else effects

    def _exclude(self, node_id: str, blames: Sequence[tuple[RunMachine, Blame]], now: float) -> list[Effect]:
        """Cordon the node if one of the blames excludes it, unless it is cordoned, or there is no room for more."""
        effects: list[Effect] = []
        for machine, blame in blames:
            run = machine.run
            history = machine.history if run.is_scoped else self.state.history
            if node_id in self.state.cordons or (why := verdict(blame, history, self._exclusion, now)) is None:
                continue
            event = events.NodeCordoned(
                why.reason, EXCLUDER, node_id=node_id, for_s=why.for_s, wall_at=run.wall_clock(now),
                general=why.general, is_of_run=run.is_scoped,
            )  # fmt: skip
            if not run.is_scoped and self._has_room:
                blaming = [each for each, _ in blames if not each.run.stage.is_end]  # the node may be gone from them
                concerned = dict.fromkeys([*self._runs.with_node(node_id), *blaming])
                effects += self._operate(event, concerned, run.run_id, now)
            elif run.is_scoped and node_id not in run.cordons and len(run.cordons) < MOST_OF_RUN:
                effects += self._runs.tell(machine, event, now)
        return effects


def _note(machine: RunMachine, blame: Blame, at: float) -> None:
    run = machine.run
    incident = Incident(at, blame.fault, run.run_id, blame.reason, run.wall_clock(at))
    machine.history.note(blame.node_id, incident)
