"""Several runs, their attempts, and the nodes that are excluded from them, under any events.

Attempts are never confused, and a node is excluded exactly as long as a naive model says.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from rdzv_protocol.errors import AgentFenced, ProtocolError, RunSucceeded, UnknownNode
from rdzv_protocol.messages import Finish
from rdzv_protocol.node_conditions import condition

from rdzv_server.core import journals
from rdzv_server.core.effects import Effect, ForgetRun, Record
from rdzv_server.core.events import (
    EXCLUDER,
    AgentDisconnected,
    Event,
    LeaseRenewed,
    NodeCordoned,
    NodeDrained,
    NodeJoined,
    NodeLeft,
    NodeOperation,
    NodeUncordoned,
    WorkersFailed,
    WorkersSucceeded,
)
from rdzv_server.core.kernel.run import AgentState, Run, Stage
from rdzv_server.core.node_facts import NodeBlamed
from rdzv_server.core.nodes.exclusion import ExclusionPolicy
from rdzv_server.core.runs.registry import Registry
from rdzv_server.storage.record_codec import pack, unpack
from tests.support.scenario import SERVER_ADDR, a_failure, a_join, durable, settings_of, snapshot

RETENTION_S = 100.0
RUNS = ["one", "two"]

runs = st.sampled_from(RUNS)
agents = st.integers(0, 12).map("agent{}".format)
NODES = ["node0", "node1", "node2", "node3"]
nodes = st.sampled_from(NODES)
steps = st.one_of(st.sampled_from([0.0, 1.0, 10.0, RETENTION_S, 1_000.0]), st.floats(0.0, 50.0))


POLICY = ExclusionPolicy(after=2, window_s=400.0, for_s=150.0)
TOGETHER, TOGETHER_S = 3, 30.0
"""Nodes that are lost, or found unfit in the same way, within this time share the cause if they are this many. None of
them is then to blame. Two that are found unfit are enough if their run has no other node."""
IMMEDIATE_FAULTS = ("hardware", "unfit =", "unfit GpuMissing")
"""Beginnings of faults that exclude a node at once. What a check has found stands behind the name of the fault."""
FINDINGS = ("its fan", "no room (DiskFull, temporary)", "no GPU 3 (GpuMissing, permanent)")
"""Findings of checks, with the names and classes of two conditions."""
WALL_AT = 1_750_000_000.0


@dataclass
class KeptOut:
    """The excluded nodes, as simply as possible: lists that are searched."""

    until: dict[str, tuple[str, float | None]] = field(default_factory=dict)
    """Excluder of each node, and the end of its exclusion."""
    blamed: list[tuple[str, str, float]] = field(default_factory=list)
    """Node, fault and time of all blame, including exclusions."""
    reasons: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Fault because of which the server excludes each node, and when."""
    words: dict[str, str] = field(default_factory=dict)
    """Words of each finding without a name, without the node's name."""

    def follow(self, journal: Sequence[Record], nodes_of: Callable[[str], Collection[str]]) -> None:
        """Apply the journal of one event. This model alone decides which nodes the server may exclude, and when.

        `nodes_of`: returns the nodes that take part in a run.
        """
        suspects: dict[str, list[Blamed]] = {}
        for record in journal:
            match record.fact:
                case NodeBlamed(node_id=node, run_id=run_id):
                    fault = self._fault(record.fact)
                    self.blamed.append((node, fault, record.at))
                    suspects.setdefault(node, []).append(Blamed(fault, nodes_of(run_id)))
                case NodeCordoned(node_id=node, by=by, for_s=for_s, condition=found):
                    if by == EXCLUDER:
                        assert node not in self.until and self._is_excluded(node, suspects[node], record.at)
                        self.blamed.append((node, "excluded", record.at))
                        cause = found if found == "lost" else f"unfit {found}"
                        self.reasons[node] = cause, record.at
                        assert not found or cause in [each.fault for each in suspects[node]]
                    self.until[node] = by, None if for_s is None else record.at + for_s
                case NodeUncordoned(node_id=node, by=by):
                    _, until = self.until.pop(node, (by, None))
                    cause = self.reasons.pop(node, None)
                    if by:
                        self.blamed = [each for each in self.blamed if each[0] != node]
                    else:
                        assert until is not None
                        assert until <= record.at or (cause and self._is_now_shared(cause[0], suspects, record.at))
        for node, latest in suspects.items():
            is_spared = self._is_excluded(node, latest, journal[-1].at) and node not in self.until
            assert not is_spared, f"{node} should have been excluded"
        for node, (cause, at) in self.reasons.items() if suspects else ():
            now = journal[-1].at
            is_known_now = abs(now - at) <= TOGETHER_S and self._is_now_shared(cause, suspects, now)
            assert not is_known_now, f"{node} should no longer be excluded"

    def _fault(self, fact: NodeBlamed) -> str:
        """Return the name of the fault with what a check has found: its name, or a mark that stands for its words."""
        if fact.fault != "unfit":
            return fact.fault
        if name := condition(fact.reason)[0]:
            assert fact.condition == name
        else:
            words = fact.reason.replace(fact.node_id, "")
            assert self.words.setdefault(fact.condition, words) == words
            assert list(self.words.values()).count(words) == 1
        return f"unfit {fact.condition}"

    def _is_excluded(self, node: str, latest: "list[Blamed]", now: float) -> bool:
        own = [(fault, at) for each, fault, at in self.blamed if each == node]
        while "excluded" in (faults := [fault for fault, _ in own]):
            own = own[faults.index("excluded") + 1 :]
        counted = [(fault, at) for fault, at in own if at > now - POLICY.window_s and not self._is_shared(fault, at)]
        own_faults = [each.fault for each in latest if not self._is_shared(each.fault, now, each.nodes)]
        is_enough = bool(own_faults) and len(counted) >= POLICY.after
        return is_enough or any(fault.startswith(IMMEDIATE_FAULTS) for fault in own_faults)

    def _is_now_shared(self, fault: str, suspects: "Mapping[str, list[Blamed]]", now: float) -> bool:
        """Return whether a blame of this event shows that nodes share this fault."""
        latest = [each for those in suspects.values() for each in those if each.fault == fault]
        return any(self._is_shared(fault, now, each.nodes) for each in latest)

    def _is_shared(self, fault: str, at: float, of_run: Collection[str] = NODES) -> bool:
        alike = {node for node, each, when in self.blamed if each == fault and abs(when - at) <= TOGETHER_S}
        if fault.startswith("unfit ") and len(alike) == 2 and alike.issuperset(of_run):
            return True
        return (fault == "lost" or fault.startswith("unfit ")) and len(alike) >= TOGETHER


class Blamed(NamedTuple):
    """Blame on a node: its fault, and the nodes that take part in the run that blames it."""

    fault: str
    nodes: Collection[str]


class RegistryStory(RuleBasedStateMachine):
    """Story of many runs: the attempt of each agent, and the excluded nodes. The registry does the rest."""

    @initialize()
    def start(self) -> None:
        self.now = 0.0
        self.registry = Registry(RETENTION_S, exclusion=POLICY)
        self.kept_out = KeptOut()
        self.answered: dict[str, str] = {}
        """Sentences that have answered the requests about nodes."""
        self.records: dict[tuple[str, int], list[Record]] = {}
        self.homes: dict[tuple[str, str], int] = {}
        """The attempt that first accepted an agent of a run."""

    # Events.

    @rule(
        run_id=runs,
        agent=agents,
        explicit=st.booleans(),
        rerun=st.booleans(),
        after_round=st.sampled_from([0, 0, 0, 0, 1]),
        nodes=st.sampled_from(["1", "1", "1:2"]),
        drains=st.booleans(),
    )
    def an_agent_joins(
        self, run_id: str, agent: str, explicit: bool, rerun: bool, after_round: int, nodes: str, drains: bool
    ) -> None:
        latest = self._latest(run_id)
        known = (run_id, agent) in self.homes
        settings = settings_of(nodes, last_call_timeout_s=5.0, join_timeout_s=20.0, lease_s=30.0)
        join = a_join(
            agent,
            node=f"node{int(agent.removeprefix('agent')) % 4}",
            run_id=run_id,
            explicit_run_id=explicit,
            rerun=rerun,
            after_round=after_round,
            settings=settings,
            drains=drains,
        )
        refusal = self._handle(run_id, NodeJoined(join, SERVER_ADDR))
        if known:
            assert refusal in (None, AgentFenced)
            assert self._latest(run_id) is latest, "an agent that is known begins nothing"
        elif refusal is None:
            now = self._latest(run_id)
            assert now is not None and not now.stage.is_end
            assert agent in now.agents
            self.homes[run_id, agent] = now.attempt
        elif refusal is RunSucceeded:
            assert latest.stage is Stage.SUCCEEDED and latest.explicit and explicit and not rerun

    @rule(run_id=runs, agent=agents, failed=st.booleans(), blame=st.sampled_from(["unknown", "node", "program"]))
    def its_workers_end(self, run_id: str, agent: str, failed: bool, blame: str) -> None:
        round_ = self._round(run_id, agent)
        failure = a_failure(agent, blame=blame)
        self._handle(run_id, WorkersFailed(agent, round_, failure) if failed else WorkersSucceeded(agent, round_))

    @rule(run_id=runs, agent=agents, event=st.sampled_from([LeaseRenewed, AgentDisconnected]))
    def a_sign(self, run_id: str, agent: str, event: type[LeaseRenewed | AgentDisconnected]) -> None:
        self._handle(run_id, event(agent))

    @rule(run_id=runs, agent=agents, reason=st.sampled_from(["SIGTERM", *FINDINGS]))
    def an_agent_leaves(self, run_id: str, agent: str, reason: str) -> None:
        self._handle(run_id, NodeLeft(agent, reason, reason in FINDINGS))

    @rule(run_id=runs, nodes=st.lists(nodes, unique=True, min_size=2), finding=st.sampled_from(FINDINGS))
    def checks_find_nodes_unfit(self, run_id: str, nodes: list[str], finding: str) -> None:
        for node in nodes:
            join = a_join(f"unfit {node}", node=node, run_id=run_id, settings=settings_of("1:2"), unfit=finding)
            self._handle(run_id, NodeJoined(join, SERVER_ADDR))

    @rule(
        node=nodes,
        kind=st.sampled_from([NodeCordoned, NodeUncordoned, NodeDrained]),
        for_s=st.sampled_from([None, 10.0, 100.0]),
        request_id=st.sampled_from(["", "", "1", "2"]),
    )
    def an_operator_acts_on_a_node(
        self, node: str, kind: type[NodeOperation], for_s: float | None, request_id: str
    ) -> None:
        given: dict[str, Any] = {"by": "me", "request_id": request_id, "node_id": node, "wall_at": WALL_AT + self.now}
        given |= {} if kind is NodeUncordoned else {"for_s": for_s}
        given |= {"deadline_s": 30.0} if kind is NodeDrained else {}
        known = [run for run in self._live() if run.agents_of(node)]
        was_known = bool(known) or node in self.kept_out.until or any(node in run.cordons for run in self._live())
        refusal = self._handle(None, kind(**given))
        if request_id in self.answered:
            assert self.registry.answer_to(None, request_id) == self.answered[request_id], "twice is once"
            return
        assert refusal is (UnknownNode if kind is NodeDrained and not was_known else None)
        if request_id and not refusal:
            self.answered[request_id] = self.registry.answer_to(None, request_id)
            assert self.answered[request_id]
        if kind is NodeDrained and not refusal:
            there = [agent for run in known if not run.stage.is_end for agent in run.agents_of(node)]
            assert all(agent.state is AgentState.DRAINING for agent in there)
            assert all(agent.drain_until <= self.now + 30.0 for agent in there)

    @rule(seconds=steps)
    def time_passes(self, seconds: float) -> None:
        end = self.now + seconds
        while (at := self.registry.next_deadline()) is not None and at <= end:
            self.now = max(self.now, at)
            self._catch_up()
        self.now = end

    @rule(seconds=steps)
    def the_server_stalls(self, seconds: float) -> None:
        self.now += seconds
        self._catch_up()

    @rule()
    def the_server_restarts(self) -> None:
        again = Registry(RETENTION_S, exclusion=POLICY)
        for records in self.records.values():
            for record in records:
                again.replay(record)
        assert self._surviving(again) == self._surviving(self.registry)
        self.registry = again
        self._catch_up()

    @rule()
    def the_journal_is_compacted(self) -> None:
        if (key := journals.NODES) in self.records:
            kept = self.registry.snapshot(key, self.now)
            self.records[key] = [unpack(*key, record.at, *pack(record)) for record in kept]

    def _handle(self, run_id: str | None, event: Event) -> type[ProtocolError] | None:
        before, kept_out = self._state(), dict(self.kept_out.until)
        rounds = {(run.run_id, run.attempt): run.membership for run in self.registry.runs()}
        try:
            machine, effects = self.registry.handle(run_id, event, self.now)
            for run in [machine.run] if machine else self.registry.runs():
                run.validate()
            self._note(effects)
        except ProtocolError as error:
            assert self._state() == before
            return type(error)
        self._catch_up()
        all_the_time = {node for node, until in kept_out.items() if self.kept_out.until.get(node) == until}
        for run in self._live():
            if run.membership and run.membership is not rounds.get((run.run_id, run.attempt)):
                assert not all_the_time & {run.agents[agent].node_id for agent in run.membership.seats}
        return None

    def _catch_up(self) -> None:
        """Carry out what is due. The server handles what becomes due thereby at once, until nothing is left."""
        for _ in range(3):
            self._note(self.registry.pass_time(self.now))
            if (at := self.registry.next_deadline()) is None or at > self.now:
                break

    def _note(self, effects: Sequence[Effect]) -> None:
        journal = [
            each for each in effects if isinstance(each, Record) and (each.run_id, each.attempt) == journals.NODES
        ]
        self.kept_out.follow(journal, self._nodes_of)
        for effect in effects:
            if isinstance(effect, Record):
                self.records.setdefault((effect.run_id, effect.attempt), []).append(effect)
            elif isinstance(effect, ForgetRun):
                key = (effect.run_id, effect.attempt)
                self.records.pop(key, None)
                self.homes = {agent: home for agent, home in self.homes.items() if (agent[0], home) != key}

    def _nodes_of(self, run_id: str) -> Collection[str]:
        run = self._latest(run_id)
        return {agent.node_id for agent in run.agents.values()} if run else ()

    def _latest(self, run_id: str):
        found = [run for run in self.registry.runs() if run.run_id == run_id]
        return max(found, key=lambda run: run.attempt, default=None)

    def _round(self, run_id: str, agent: str) -> int:
        found = [
            run.agents[agent].round for run in self.registry.runs() if run.run_id == run_id and agent in run.agents
        ]
        return found[-1] if found else 1

    def _state(self) -> list[Any]:
        nodes = self.registry.nodes.state
        return [[snapshot(run) for run in self.registry.runs()], dict(nodes.cordons), dict(nodes.answers)]

    def _live(self) -> list[Run]:
        return [run for run in self.registry.runs() if not run.stage.is_end]

    @staticmethod
    def _surviving(registry: Registry) -> dict[str, Any]:
        """Return all that a restart of the server must restore."""
        nodes, runs = registry.nodes.state, registry.runs()
        return {
            "runs": {(run.run_id, run.attempt): durable(run) for run in runs},
            "attempts": {run_id: [run.attempt for run in registry.attempts_of(run_id)] for run_id in RUNS},
            "cordons": nodes.cordons,
            "answers": list(nodes.answers.items()),
            "blamed": list(nodes.history.by_node.items()),
            "lifted": nodes.lifted,
            "uncordons at": nodes.next_uncordoning,
        }

    # Invariants.

    @invariant()
    def only_the_latest_attempt_goes_on(self) -> None:
        for run in self.registry.runs():
            assert run.stage.is_end or run is self._latest(run.run_id)

    @invariant()
    def what_is_remembered_is_what_is_recorded(self) -> None:
        assert {(run.run_id, run.attempt) for run in self.registry.runs()} == set(self.records) - {
            journals.NODES, journals.NUMBERS,
        }  # fmt: skip

    @invariant()
    def a_node_is_kept_out_as_long_as_the_model_says(self) -> None:
        given = {node: (cordon.by, cordon.until) for node, cordon in self.registry.nodes.state.cordons.items()}
        assert given == self.kept_out.until
        assert all(until is None or until > self.now for _, until in given.values())

    @invariant()
    def every_run_keeps_out_those_of_its_nodes_and_nobody_else(self) -> None:
        for run in self._live():
            for agent in run.agents.values():
                is_kept_out = agent.node_id in self.kept_out.until
                assert (agent.node_id in run.cordons) == is_kept_out
                assert agent.state is not (AgentState.WAITING if is_kept_out else AgentState.CORDONED)

    @invariant()
    def nothing_is_remembered_longer_than_the_retention_time(self) -> None:
        for run in self.registry.runs():
            assert run.ended_at is None or self.now < run.ended_at + RETENTION_S

    @invariant()
    def a_run_that_is_remembered_has_a_deadline(self) -> None:
        at = self.registry.next_deadline()
        assert at is None or at > self.now
        assert not self.registry.runs() or at is not None

    @invariant()
    def every_agent_reads_the_directive_of_its_own_attempt(self) -> None:
        for (run_id, agent), attempt in self.homes.items():
            machine = self.registry.machine_of(run_id, agent)
            run = machine.run
            assert run.attempt == attempt
            if agent in run.agents:
                directive = machine.directive_for(agent, self.now)[1]
                assert isinstance(directive, Finish) is run.stage.is_end


TestRegistryStory = pytest.mark.timeout(600)(RegistryStory.TestCase)
