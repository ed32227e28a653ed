"""Contract of all policies. A new policy needs a story below that produces each of its facts."""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec import msgpack

from rdzv_server.core.events import Event, PolicyFact
from rdzv_server.core.kernel import machine as machine_module
from rdzv_server.core.kernel.policy import Policies, Policy
from rdzv_server.core.kernel.run import RunState, Stage
from rdzv_server.core.node_history import EXCLUDED
from rdzv_server.core.policies import POLICIES
from rdzv_server.core.policies.hangs.examination import StacksAsked
from rdzv_server.core.policies.restart_cost import RestartTimes
from rdzv_server.core.policies.time_ledger import TimeLedger
from rdzv_server.core.views.node_costs import FAULTS, FaultName
from rdzv_server.http.metrics import METRICS
from tests.support.scenario import Scenario, durable, replayed, snapshot
from tests.support.stories import play

PAIRS = "queries=('pair_test',) secret=s"
STORIES = {
    "network_check": ("3", {}, f"join a b c {PAIRS}; test; test; fail a; join a b c {PAIRS}; test; test"),
    "hangs": ("2", {"max_restarts": 3}, "join a b; suspect a 0; judge; join a b; stacks; suspect b 1; suspect b"),
    "consoles": ("2", {}, "join a b; renew a console_held_s=12; 5s; renew a; renew b console_held_s=12"),
    "ended_scripts": ("2", {}, "join a b; ended a 0; 5s; renew a; ended b 1"),
    "stragglers": ("2", {"replace_stragglers": True, "lease_s": 10.0}, "join a b c; steps 85 a=1.0 b=3.0 c=0.0"),
    "timeline": (
        "1", {"max_restarts": 1},
        "join a; tell a highest_step=7; 11s; tell a highest_step=9; restart; tell a; fail a; join a",
    ),
    "time_ledger": (
        "1", {"max_restarts": 3}, "join a; tell a highest_step=7 step_s=1.0 checkpoint_step=5; 9s; fail a; join a; 5s"
    ),
    "restart_cost": (
        "1", {"max_restarts": 1},
        "join a; 9s; fail a; 2s; join a; 9s; tell a telling_s=1 spawned_ago_s=8 loaded_ago_s=3",
    ),
}  # fmt: skip
QUIET = "join a b; 1s; fail a; 1s; join a b; 1s; succeed a b"


class Watched(Scenario):
    """Scenario that calls all questions of all policies, before and after every event."""

    def handle(self, event: Event) -> None:
        self._ask_all()
        super().handle(event)
        self._ask_all()

    def _ask_all(self) -> None:
        before = snapshot(self.run)
        for policy in self.machine.policies:
            policy.deadline()
            policy.report()
            assert policy.node_remarks(self.run, "an agent that the run does not have") == {}
            for agent_id in self.run.agents:
                assert all(policy.node_remarks(self.run, agent_id).values()), "a remark without a sentence"
            if self.stage is not Stage.SUCCEEDED and self.stage is not Stage.FAILED:
                policy.due(self.now)
            if self.stage is Stage.FORMING:
                policy.holds_round(self.now)
            if self.stage is Stage.RUNNING:
                policy.run_remark(self.run, self.now)
            if not self.stage.is_end:
                assert all(
                    sample.metric in policy.metrics and len(sample.labels) == len(sample.metric.labels)
                    for sample in policy.samples(self.run, self.now, "a run")
                )
                policy.finding(self.run, self.now)
        assert snapshot(self.run) == before, "a question has a side effect"


def told(name: str, kind: type[Scenario] = Scenario, policies: Policies = POLICIES) -> Scenario:
    nodes, settings, steps = STORIES[name]
    run = kind(nodes, policies=policies, **settings)
    for step in steps.split("; "):
        if step == "stacks":
            run.handle(StacksAsked(token="token", rank=None, reason="", by="admin", within_s=5.0))
        else:
            play(run, step)
    return run


def facts(run: Scenario) -> Iterator[Any]:
    return (record.fact for record in run.records if isinstance(record.fact, PolicyFact))


every_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)


@every_policy
def test_each_fact_of_a_policy_happens_in_its_story(policy: type[Policy]) -> None:
    happened = {type(fact) for fact in facts(told(policy.name))}
    assert {kind for kind in policy.rules if issubclass(kind, PolicyFact)} <= happened


@every_policy
def test_a_policy_does_the_same_with_the_same_events(policy: type[Policy]) -> None:
    one, other = told(policy.name), told(policy.name)
    assert one.records == other.records and one.events == other.events
    assert durable(one.run) == durable(other.run)


@every_policy
def test_a_policy_is_brought_back_by_the_records_and_by_a_snapshot(policy: type[Policy]) -> None:
    run = told(policy.name)
    state = durable(run.run)["policies"]
    assert durable(replayed(run.created, run.records))["policies"] == state
    if not run.stage.is_end:
        run.restarts_from_a_snapshot()
        assert durable(run.run)["policies"] == state


@every_policy
def test_questions_to_a_policy_have_no_side_effects(policy: type[Policy]) -> None:
    assert list(facts(told(policy.name, Watched))) == list(facts(told(policy.name)))


@every_policy
def test_a_policy_is_silent_in_a_run_without_its_subject(policy: type[Policy]) -> None:
    run = Scenario("2", max_restarts=1)
    play(run, QUIET)
    bare = Scenario("2", max_restarts=1, policies=())
    play(bare, QUIET)
    assert [event.kind for event in run.events] == [event.kind for event in bare.events]
    assert not list(facts(run)) and run.stage is bare.stage is Stage.SUCCEEDED


@every_policy
def test_only_the_costs_of_restarts_depend_on_the_order_of_policies(policy: type[Policy]) -> None:
    """They come after the ledger of the time, whose record of the first progress they read."""
    states = dict(durable(told(policy.name).run)["policies"])
    assert POLICIES.index(TimeLedger) < POLICIES.index(RestartTimes)
    for number, neighbours in enumerate(pairwise(POLICIES)):
        if neighbours != (TimeLedger, RestartTimes):
            others = *POLICIES[:number], *reversed(neighbours), *POLICIES[number + 2 :]
            assert dict(durable(told(policy.name, policies=others).run)["policies"]) == states, neighbours


def test_the_kernel_does_not_name_policies() -> None:
    kernel = list(Path(machine_module.__file__).parent.rglob("*.py"))
    names = "|".join([*(policy.__name__ for policy in POLICIES), r"core\.policies\.", r"policies import [a-z]"])
    named = {path.name: found for path in kernel if (found := re.findall(rf"\b(?:{names})\b", path.read_text()))}
    assert named == {} and len(kernel) > 20


def test_the_kernel_knows_policies_subjects_only_as_hang_the_cause_of_restarts() -> None:
    subjects = re.compile(r"(?i)hang(?!e|_up)|straggler|slow[_ ]node|network test|time ledger|running_time")
    kernel = Path(machine_module.__file__).parent
    known = {
        path.name: sorted({found.lower() for found in subjects.findall(path.read_text())})
        for path in (*kernel.rglob("*.py"), *kernel.with_name("nodes").rglob("*.py"))
    }
    assert {name: found for name, found in known.items() if found} == {"run.py": ["hang"]}


def test_each_metric_of_a_policy_is_of_one_run_or_counts_events_and_has_a_name_of_its_own() -> None:
    assert all(metric.labels[0] == "run_id" for policy in POLICIES for metric in policy.metrics)
    assert not any(metric.labels for policy in POLICIES for metric in policy.counters)
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_no_two_faults_of_the_kernel_and_the_policies_have_the_same_name() -> None:
    names = [EXCLUDED, *(fault.name for fault in FAULTS)]
    assert len(set(names)) == len(names) and get_args(FaultName) == (*names[1:], EXCLUDED)


def test_the_states_of_policies_have_no_name_in_common_with_each_other_or_with_the_run() -> None:
    """A snapshot holds them side by side."""
    names = [*RunState.__struct_fields__, *(name for policy in POLICIES for name in policy.State.__struct_fields__)]
    assert [name for name, times in Counter(names).items() if times > 1] == []
    assert len({policy.name for policy in POLICIES}) == len(POLICIES)


def test_a_policy_has_its_first_state_after_a_snapshot_from_before_the_policy() -> None:
    for policy in POLICIES:
        assert msgpack.decode(msgpack.encode({"run_id": "run"}), type=policy.State) == policy.State()


def test_a_run_without_policies_ignores_their_events() -> None:
    run = Scenario("2", max_restarts=3, policies=())
    play(run, "join a b; suspect a 0; 60s; steps 20 a=1 b=9; fail a; join a b; succeed a b")
    assert run.stage is Stage.SUCCEEDED and run.run.policies == {} and not list(facts(run))
