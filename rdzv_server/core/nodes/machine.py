"""The machine of a server's nodes: `handle(event, now)` returns the effects, and `next_deadline()` the next deadline.

It acts on the server's runs through `Runs`, and takes from them what they blame nodes for.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace
from rdzv_protocol.errors import ServerUnavailable, UnknownNode
from rdzv_protocol.text import clip

from rdzv_server.core import events, journals
from rdzv_server.core.effects import Effect, Record
from rdzv_server.core.events import EXCLUDER, Incarnation, NodeJoined
from rdzv_server.core.kernel import admission
from rdzv_server.core.kernel.machine import RunMachine
from rdzv_server.core.kernel.run import Run, Stage
from rdzv_server.core.node_facts import NodeBlamed, NodeFact
from rdzv_server.core.node_history import REASON_BYTES, Blame, Incident
from rdzv_server.core.nodes.cordons import MOST_CORDONS, MOST_EXCLUSIONS, MOST_OF_RUN, for_others
from rdzv_server.core.nodes.exclusion import ExclusionPolicy, sharing, verdict
from rdzv_server.core.nodes.state import NodesState
from rdzv_server.words import costs, operations
from rdzv_server.words import nodes as words

MOST_NAMED = 3
"""Most runs that the answer to a drain names."""


class Runs(Protocol):
    """Everything that the nodes' machine may do to the runs."""

    def with_node(self, node_id: str) -> list[RunMachine]:
        """Return the runs that have not ended and that have agents of the node, or its cordon."""

    def deliver(self, machine: RunMachine, event: events.Event, now: float) -> list[Effect]:
        """Let a run handle an event."""


class Nodes:
    """Machine of a server's nodes. Times are in seconds by the server's clock."""

    def __init__(self, runs: Runs, exclusion: ExclusionPolicy | None, *, knows_all_runs: bool = True) -> None:
        """Begin without cordons.

        `exclusion`: policy by which the server itself excludes nodes; None if it never does.
        """
        self.state = NodesState()
        self.excludes = exclusion is not None
        """Whether every run has to wait for a verdict on the nodes that it blames."""
        self.knows_all_runs = knows_all_runs
        """Whether there are no other shards. If there are, all shards were asked before whether they know the node."""
        self._runs = runs
        self._exclusion = exclusion
        self._incarnation = Incarnation()
        self.suspects: dict[str, list[tuple[RunMachine, Blame]]] = {}
        """Blame on each node, with the attempts that it came from, waiting for the verdict of `judge`."""

    def begin_incarnation(self, incarnation: Incarnation) -> None:
        """Begin a new incarnation of the server."""
        self._incarnation = incarnation

    def handle(self, event: events.NodeOperation, now: float) -> list[Effect]:
        """Act on a node in all its runs, then for later runs, unless the request was carried out before.

        Raises `ProtocolError`, with nothing changed, if it is refused.
        """
        if event.request_id in self.state.answers:
            return []
        return self._operate(event, self._runs.with_node(event.node_id), "", now)

    def forgotten(self, fact: events.RunForgotten, now: float) -> list[Effect]:
        """Remember the request to forget a run, since the run itself is forgotten."""
        return self._record(fact, now)

    def answer_to(self, request_id: str) -> str:
        """Return the sentence that answered a request about a node or to forget a run; empty if it is unknown."""
        return self.state.answers.get(request_id, "")

    def pass_time(self, now: float) -> list[Effect]:
        """Uncordon the nodes whose cordons end by themselves."""
        effects: list[Effect] = []
        for node_id in self.state.expired(now):
            effects += self.handle(events.NodeUncordoned(operations.TIME_OVER, node_id=node_id), now)
        return effects

    def next_deadline(self) -> float | None:
        """Return the time at which `pass_time` is due next; None if it is not."""
        return self.state.next_uncordoning

    def with_cordon(self, event: NodeJoined, run: Run) -> NodeJoined:
        """Return the join with its node's cordon, if there is one that the run does not already have."""
        cordon = self.state.cordons.get(event.join.node_id)
        return event if cordon is None or cordon.node_id in run.cordons else replace(event, cordon=for_others(cordon))

    # Records.

    def replay(self, fact: NodeFact, at: float) -> None:
        """Apply a recorded fact or a snapshot again."""
        self.state.apply(fact, at)

    def snapshot(self, now: float) -> list[Record]:
        """Return the records that replace all records before them in a replay."""
        return [Record(*journals.NODES, now, self.state.snapshot(self._incarnation))]

    def _record(self, fact: NodeFact, now: float) -> list[Effect]:
        self.state.apply(fact, now)
        return [Record(*journals.NODES, now, fact)]

    def _operate(
        self, event: events.NodeOperation, concerned: Collection[RunMachine], quoted: str, now: float
    ) -> list[Effect]:
        """Act on a node in the runs that it concerns.

        `quoted`: id of the run that the reason quotes; other runs get the general reason. The request is remembered
        last: if only part of the batch is written, a repetition of the request completes it.
        """
        self._check(event, concerned)
        lacked = {machine.run.run_id: admission.lacks(machine.run) for machine in concerned}
        effects: list[Effect] = []
        for machine in concerned:
            if isinstance(event, events.NodeUncordoned) and event.by:
                machine.history.forgive(event.node_id)
            shown = event if machine.run.run_id == quoted else for_others(event)
            effects += self._runs.deliver(machine, shown, now)
        if isinstance(event, events.NodeCordoned) and event.by not in ("", EXCLUDER):
            event = replace(event, waits=_waits([machine.run for machine in concerned], lacked))
        return effects + self._record(replace(event, incarnation=self._incarnation), now)

    def _check(self, event: events.NodeOperation, concerned: Collection[RunMachine]) -> None:
        """Raise a `ProtocolError` for a drain of a node that is in no run, and for a cordon beyond the limit."""
        is_cordoned = event.node_id in self.state.cordons
        if isinstance(event, events.NodeDrained) and self.knows_all_runs and not (concerned or is_cordoned):
            raise UnknownNode(words.unknown_node(event.node_id))
        if isinstance(event, events.NodeCordoned) and not is_cordoned and not self._has_room:
            raise ServerUnavailable(words.too_many_cordons(MOST_CORDONS))

    @property
    def _has_room(self) -> bool:
        return len(self.state.cordons) < MOST_CORDONS

    @property
    def _has_room_for_exclusion(self) -> bool:
        excluded = sum(cordon.excludes for cordon in self.state.cordons.values())
        return self._has_room and excluded < MOST_EXCLUSIONS

    # Blame.

    def take_blames(self, machine: RunMachine, now: float) -> list[Effect]:
        """Remember what an attempt blames nodes for; `judge` decides what follows.

        If a run's agents may join only some runs, its blame is remembered for this run only.
        """
        run, effects = machine.run, list[Effect]()
        for blame in machine.take_blames():
            self.suspects.setdefault(blame.node_id, []).append((machine, blame))
            if run.is_scoped:
                _note(machine, blame, now)
                continue
            fact = NodeBlamed(
                node_id=blame.node_id, fault=blame.fault.name, run_id=run.run_id, wall_at=run.wall_clock(now),
                reason=clip(blame.reason, REASON_BYTES), incarnation=self._incarnation, condition=blame.condition,
            )  # fmt: skip
            effects += self._record(fact, now)
        return effects

    def take_replayed_blames(self, machine: RunMachine, at: float) -> None:
        """Take the blame from a replayed fact. The journal has it already, and all verdicts are recorded."""
        for blame in machine.take_blames():
            if machine.run.is_scoped:
                _note(machine, blame, at)
        machine.awaits_verdict = False

    def judge(self, now: float) -> list[Effect]:
        """Exclude the nodes that have been blamed enough, once all blame of this instant is known.

        Nodes that are lost together are not to blame, even if each is lost by another run.
        """
        effects: list[Effect] = []
        machines: dict[RunMachine, None] = {}
        while self.suspects:
            node_id = next(iter(self.suspects))
            blames = self.suspects.pop(node_id)
            effects += self._exclude(node_id, blames, now) + self._lift(blames, now)
            machines |= dict.fromkeys(machine for machine, _ in blames)
        for machine in machines:
            if machine.awaits_verdict:
                machine.awaits_verdict = False
                effects += self._runs.deliver(machine, events.TimePassed(), now)
        return effects + self.judge(now) if self.suspects else effects

    def _exclude(self, node_id: str, blames: Sequence[tuple[RunMachine, Blame]], now: float) -> list[Effect]:
        """Cordon the node if one of the blames excludes it, unless it is cordoned or there is no room for more."""
        effects: list[Effect] = []
        for machine, blame in blames:
            run = machine.run
            history = machine.history if run.is_scoped else self.state.history
            if node_id in self.state.cordons or (why := verdict(blame, history, self._exclusion, now, run)) is None:
                continue
            event = events.NodeCordoned(
                why.reason, EXCLUDER, node_id=node_id, for_s=why.for_s, wall_at=run.wall_clock(now),
                general=why.general, is_of_run=run.is_scoped, condition=blame.condition,
            )  # fmt: skip
            if not run.is_scoped and self._has_room_for_exclusion:
                blaming = [each for each, _ in blames if not each.run.stage.is_end]  # the node may be gone from them
                concerned = dict.fromkeys([*self._runs.with_node(node_id), *blaming])
                effects += self._operate(event, concerned, run.run_id, now)
            elif run.is_scoped and node_id not in run.cordons and len(run.cordons) < MOST_OF_RUN:
                effects += self._runs.deliver(machine, event, now)
        return effects

    def _lift(self, blames: Sequence[tuple[RunMachine, Blame]], now: float) -> list[Effect]:
        """Uncordon the nodes that were excluded for a cause that turns out to be shared."""
        effects: list[Effect] = []
        for machine, blame in blames:
            run = machine.run
            history, cordons = (
                (machine.history, run.cordons) if run.is_scoped else (self.state.history, self.state.cordons)
            )
            for node_id, incident in sharing(blame, history, now, run):
                cordon = cordons.get(node_id)
                if cordon is None or (cordon.condition, cordon.wall_at) != (blame.condition, incident.wall_at):
                    continue
                event = events.NodeUncordoned(words.SHARED, node_id=node_id, wall_at=run.wall_clock(now))
                if run.is_scoped:
                    effects += self._runs.deliver(machine, event, now)
                else:
                    effects += self.handle(event, now)
        return effects


def _note(machine: RunMachine, blame: Blame, at: float) -> None:
    run = machine.run
    incident = Incident(at, blame.fault.name, run.run_id, blame.reason, run.wall_clock(at), blame.condition)
    machine.history.note(blame.node_id, incident)


def _waits(runs: Collection[Run], lacked: Mapping[str, int]) -> str:
    """Return the sentence about the runs that have too few nodes after a drain or a cordon; empty if there are none.

    `lacked`: number of nodes that each run lacked before. A run with running workers waits only at its next restart.
    """
    named, lacking = list[str](), 0
    for run in runs:
        missing, stops = admission.lacks(run), run.stage is Stage.FORMING or bool(run.leaving)
        if not missing or (not stops and missing <= lacked[run.run_id]):
            continue
        lacking += 1
        if len(named) < MOST_NAMED:
            told = costs.stands_still if stops else costs.stands_still_later
            named.append(costs.of_run(run.run_id, told(missing, run.settings.join_timeout_s)))
    return operations.waiting_runs(named, lacking - len(named))
