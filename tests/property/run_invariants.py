"""Promises of the core to a run, and its agreement with the model."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant
from rdzv_protocol.messages import Assignment, Drain, Finish, Start, Stop, Wait
from rdzv_protocol.queries import TailLog
from rdzv_protocol.states import HEALTH

from rdzv_server.core.effects import Record
from rdzv_server.core.events import (
    NodeJoined,
    RunCreated,
)
from rdzv_server.core.kernel import admission, legal_sizes
from rdzv_server.core.kernel.machine import WALL_CLOCK_SLACK_S, RunMachine
from rdzv_server.core.kernel.policy import Policies
from rdzv_server.core.kernel.queries import MOST_OPEN
from rdzv_server.core.kernel.run import Cause, Run, Stage
from rdzv_server.core.policies import time_ledger
from rdzv_server.core.policies.hangs import words as hang_words
from rdzv_server.core.policies.hangs.hang_policy import Hangs
from rdzv_server.core.views import health
from tests.property import model as rules
from tests.property.model import Model
from tests.support.scenario import durable, replayed, snapshot

DIRECTIVES = {
    "waiting": Wait,
    "running": Start,
    "succeeded": Start,
    "stopping": Stop,
    "cordoned": Wait,
    "draining": Drain,
}

places = st.integers(0, 9)
"""Places of the agents that events are about: see `_who`."""
steps = st.one_of(st.sampled_from([0.25, 0.5, 1.0, 5.0, 11.0, 19.0]), st.floats(0.0, 2.0))


class RunInvariants(RuleBasedStateMachine):
    """Checks after every event that the core agrees with the model and keeps its promises."""

    policies: Policies
    machine: RunMachine
    model: Model
    created: RunCreated
    now: float
    wall_ahead_s: float
    hangs: int
    """Number of the hangs that were found."""
    told_steps: set[int]
    records: list[Record]
    numbers: list[int]
    """Numbers of the reported events."""
    joins: list[NodeJoined]
    open_questions: set[str]
    """Tokens of the questions to agents that are open."""
    limits: list[tuple[int, int]]
    """Limits of the number of nodes, at each formation."""
    formations: list[dict[str, Assignment]]
    counters: list[int]
    failures_by_node: dict[str, int]
    end: object
    counted: dict[str, float]
    """Seconds of the running phase's parts that only grow."""

    @property
    def run_(self) -> Run:
        return self.machine.run

    @invariant()
    def the_model_agrees(self) -> None:
        run, model = self.run_, self.model
        assert (run.stage.value, run.round, run.restart_count) == (model.stage, model.round, model.restart_count)
        assert {name: agent.state.value for name, agent in run.agents.items()} == {
            agent.name: agent.state for agent in model.agents
        }
        assert set(run.membership.seats if run.membership else ()) == set(model.seated)
        root = run.first_of_round
        if root and root.failure.cause.startswith(hang_words.hang("")):
            assert model.root == rules.HUNG
        else:
            assert (root.agent_id if root else None) == model.root
        assert [(entry.cause.value, entry.charged) for entry in run.ledger] == model.ledger
        assert Counter({cause.value: count for cause, count in run.restarts.items()}) == Counter(
            cause for cause, _ in model.ledger
        )

    @invariant()
    def the_health_is_known(self) -> None:
        run = self.run_
        found = health.findings(run, self.now)
        assert [each.state for each in found] == sorted({each.state for each in found}, key=HEALTH.index)
        assert all(each.sentence.isprintable() and 0.0 <= each.since <= self.now and each.next for each in found)

    @invariant()
    def every_agent_is_told_what_its_state_means(self) -> None:
        for name, agent in self.run_.agents.items():
            directive = self.machine.directive_for(name, self.now)[1]
            assert type(directive) is (Finish if self.run_.stage.is_end else DIRECTIVES[agent.state.value])
            assert directive.reason
            if isinstance(directive, Stop | Start):
                told = directive.round if isinstance(directive, Stop) else directive.assignment.round
                assert told <= self.run_.round and (agent.round == told or isinstance(directive, Stop))

    @invariant()
    def every_question_is_open_at_an_agent_that_is_there_or_has_ended(self) -> None:
        queries = self.run_.queries
        assert queries.by_agent.keys() <= self.run_.agents.keys()
        opened = [
            query for name in queries.by_agent for query in queries.of(name, self.now) if isinstance(query, TailLog)
        ]
        assert len(opened) == len(self.open_questions) and all(query.remaining_s > 0 for query in opened)
        assert all(0 < len(asked) <= MOST_OPEN + 1 for asked in queries.by_agent.values())
        assert not (opened and self.run_.stage.is_end)

    @invariant()
    def a_hang_is_of_the_running_round_and_judged_once(self) -> None:
        run, model, hang = self.run_, self.model, Hangs.of(self.run_).hang
        assert self.hangs == model.hangs
        if run.stage is Stage.RUNNING:
            known = {(each.source, each.agent_id) for each in hang.suspicions.values()} if hang else set()
            assert known == model.suspected.keys()
            assert (hang.judge_at if hang else None) == model.judge_at
        else:
            assert hang is None
        if run.settings.max_hang_restarts is not None:
            assert run.restarts.get(Cause.HANG, 0) <= run.settings.max_hang_restarts

    @invariant()
    def no_restart_comes_before_its_wait_is_over(self) -> None:
        run, model = self.run_, self.model
        if run.stage is Stage.FORMING:
            assert (run.opening.backoff_until or 0.0) == model.waits_until
        assert (run.restarts_in_row, run.restarts_without_progress) == (model.in_row, model.fruitless)
        assert (run.lost_nodes, run.losses_without_progress) == (model.lost, model.losses)
        most = max(run.restarts_without_progress, *run.losses_without_progress.values(), 0)
        assert not run.no_progress or most >= (run.settings.max_restarts_without_progress or 0)

    @invariant()
    def every_step_that_was_written_down_was_told(self) -> None:
        assert _number(self.run_.highest_step) in self.told_steps
        assert _number(self.run_.checkpoint_step) in self.told_steps

    @invariant()
    def counters_never_fall(self) -> None:
        run = self.run_
        now = [
            _number(run.highest_step),
            _number(run.checkpoint_step),
            run.round,
            run.restart_count,
            run.revision,
            sum(run.restarts.values()),
        ]
        assert all(before <= after for before, after in zip(self.counters, now, strict=False))
        assert all(before <= run.failures_by_node[node_id] for node_id, before in self.failures_by_node.items())
        self.counters, self.failures_by_node = now, dict(run.failures_by_node)

    @invariant()
    def the_last_formation_is_sound(self) -> None:
        for formation in self.formations[-1:]:
            _check_formation(formation, self.run_, *self.limits[-1])

    @invariant()
    def only_an_agent_that_would_get_a_seat_keeps_a_round_with_spares_uncertain(self) -> None:
        run = self.run_
        if run.stage is Stage.FORMING and len(run.waiting) > legal_sizes.largest(run.settings):
            chosen = {agent.agent_id for agent in admission.choose(run)}
            assert admission.is_uncertain(run) == bool(chosen & run.leases.uncertain.keys())

    @invariant()
    def ranks_follow_the_policy(self) -> None:
        policy = self.run_.settings.rank_policy
        for before, after in pairwise(self.formations[-2:]):
            if _round_of(after) != _round_of(before) + 1 or any(
                self._claims_a_rank(name) for name in (*before, *after)
            ):
                continue
            stayed = [name for name in after if name in before]
            if policy == "topology":
                self._check_blocks(after)
                continue
            if policy == "fill-gaps":
                assert all(
                    before[name].group_rank == after[name].group_rank
                    for name in stayed
                    if before[name].group_rank < len(after)
                )
                continue
            assert sorted(stayed, key=lambda n: before[n].group_rank) == sorted(
                stayed, key=lambda n: after[n].group_rank
            )
            if len(after) >= len(before):
                assert all(before[name].group_rank == after[name].group_rank for name in stayed)

    @invariant()
    def an_end_is_final(self) -> None:
        if self.end is not None:
            assert snapshot(self.run_) == self.end
        elif self.run_.stage.is_end:
            self.end = snapshot(self.run_)

    @invariant()
    def the_time_ledger_sums_up_to_the_age_of_the_run(self) -> None:
        time_s = time_ledger.view(self.run_, self.now)
        phases = (time_s.running, time_s.forming, time_s.restarting, time_s.waiting)
        parts = [getattr(time_s, part) for part in time_ledger.PARTS]
        rest = time_s.running - sum(parts) if time_s.training is None else time_s.training
        assert sum(parts) + rest == pytest.approx(time_s.running, abs=0.01) and min(*parts, rest) >= -0.01
        assert (time_s.training is None) == (not time_ledger.TimeLedger.of(self.run_).time.is_told)
        counted = time_ledger.counted(self.run_, self.now)
        assert all(counted[part] >= self.counted.get(part, 0.0) - 0.01 for part in ("starting", "detecting", "lost"))
        self.counted = counted
        assert time_s.ettr is None or 0.0 <= time_s.ettr <= 1.0
        ended_at = self.run_.ended_at
        assert sum(phases) == pytest.approx(self.now if ended_at is None else ended_at, abs=0.01)
        assert min(phases) >= 0.0
        assert sum(time_s.restarts.values()) <= time_s.restarting + time_s.waiting + 0.01

    @invariant()
    def a_run_that_goes_on_has_the_wall_clocks_time(self) -> None:
        off_s = self.run_.wall_clock(self.now) - (self.now + self.wall_ahead_s)
        assert self.run_.stage.is_end or abs(off_s) <= WALL_CLOCK_SLACK_S

    @invariant()
    def the_events_are_numbered_without_a_gap(self) -> None:
        """Only the creation's event may be missing: it comes with the next one, and a snapshot may come before."""
        last = self.run_.event_number
        if self.numbers:
            assert self.numbers == list(range(self.numbers[0], last + 1))
        assert (self.numbers or [last + 1])[0] <= 2

    @invariant()
    def the_records_bring_the_run_back(self) -> None:
        assert durable(replayed(self.created, self.records, policies=self.policies)) == durable(self.run_)

    def _check_blocks(self, formation: dict[str, Assignment]) -> None:
        """Check that nodes of one block have adjacent ranks."""
        blocks = {event.join.agent_id: event.join.sort_key for event in self.joins}
        ordered = [blocks[name] for name in sorted(formation, key=lambda name: formation[name].group_rank)]
        assert ordered == sorted(ordered)

    def _claims_a_rank(self, name: str) -> bool:
        return any(event.join.agent_id == name and event.join.node_rank is not None for event in self.joins)


def _round_of(formation: dict[str, Assignment]) -> int:
    return next(iter(formation.values())).round


def _check_formation(formation: dict[str, Assignment], run: Run, low: int, high: int) -> None:
    places = sorted(formation.values(), key=lambda place: place.group_rank)
    assert [place.group_rank for place in places] == list(range(len(places)))
    assert low <= len(places) <= high
    ranks = [rank for place in places for rank in place.ranks]
    assert ranks == list(range(places[0].world_size))
    shared = {
        (p.round, p.master_addr, p.master_port, p.restart_count, p.max_restarts, p.world_size, p.group_world_size)
        for p in places
    }
    assert len(shared) == 1
    if run.membership and run.membership.round == places[0].round:
        master = next(seat for seat in run.membership.seats.values() if seat.group_rank == 0)
        assert places[0].master_addr == f"host-{master.node_id}"
        assert places[0].restart_count == run.restart_count


def _number(step: int | None) -> int:
    return -1 if step is None else step
