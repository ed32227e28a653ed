"""Stragglers: who is found to be slow, and what follows, by what nodes tell of their steps."""

from itertools import pairwise
from random import Random

import pytest
from rdzv_protocol.queries import Notice

from rdzv_server.core import status_view, watch_view
from rdzv_server.core.run import Stage
from rdzv_server.core.stragglers import LOOKS, REPLACED_AGAIN_AFTER_S
from tests.support.scenario import Scenario, durable, running

LEASE_S = 10.0
POLL_S = LEASE_S / 2


class Steps:
    """Nodes that tell of their steps as agents do, twice in a lease."""

    def __init__(self, run: Scenario) -> None:
        self.run, self.step = run, 0

    def go_on(self, seconds: float, work_s: dict[str, float] | None = None, **step_s: float) -> None:
        """Steps for so many seconds, of which each takes `step_s`; `work_s`: the part that is own work."""
        for _ in range(int(seconds / POLL_S)):
            self.run.passes(POLL_S)
            self.step += 5
            for agent_id, taken_s in step_s.items():
                if agent_id in self.run.run.agents:
                    work = (work_s or {}).get(agent_id)
                    self.run.tells(agent_id, lowest_step=self.step, step_s=taken_s, work_s=work)


LONG_S = (LOOKS + 1) * LEASE_S


def told(run: Scenario) -> list[tuple[str, str | None]]:
    return [(event.kind, event.node_id) for event in run.events if event.kind.startswith("straggler")]


def test_a_node_that_is_slow_for_a_while_is_named_once_until_it_is_slow_no_more() -> None:
    run = running("3", "a", "b", "c", lease_s=LEASE_S)
    steps = Steps(run)
    steps.go_on(LONG_S, a=1.0, b=1.0, c=1.0)
    steps.go_on(LOOKS * LEASE_S - LEASE_S, a=1.0, b=2.0, c=1.1)
    assert told(run) == [], "it is too early to tell"
    steps.go_on(LONG_S, a=1.0, b=2.0, c=1.1)
    assert told(run) == [("straggler_found", "b")]
    assert run.events[-1].reason == "node b is slow: a step takes 2 s, 1.8 times as long as usual (1.1 s)"
    shown = {node.node_id: node.slow for node in status_view.nodes(run.run, run.now)}
    assert shown == {"a": "", "b": run.events[-1].reason, "c": ""}
    watched = {agent_id: watch_view.node(run.run, agent).get("slow") for agent_id, agent in run.run.agents.items()}
    assert watched == {"a": None, "b": run.events[-1].reason, "c": None}
    steps.go_on(LONG_S, a=1.0, b=1.0, c=1.1)
    assert told(run)[1:] == [("straggler_over", "b")] and run.run.stragglers == {}
    assert run.stage is Stage.RUNNING


def test_in_lockstep_the_own_work_tells_who_is_slow() -> None:
    run = running("3", "a", "b", "c", lease_s=LEASE_S)
    lockstep = {"a": 2.0, "b": 2.0, "c": 2.0}
    Steps(run).go_on(LONG_S, **lockstep)
    assert told(run) == [], "all wait for the slowest"
    Steps(run).go_on(2 * LONG_S, {"a": 0.9, "b": 0.8, "c": 1.9}, **lockstep)
    assert told(run) == [("straggler_found", "c")]
    assert run.events[-1].reason == "node c is slow: a step's own work takes 1.9 s, 2.1 times as long as usual (0.9 s)"


def test_own_work_is_compared_only_if_all_nodes_tell_it() -> None:
    run = running("3", "a", "b", "c", lease_s=LEASE_S)
    Steps(run).go_on(2 * LONG_S, {"a": 0.1, "b": 1.9}, a=2.0, b=2.0, c=2.0)
    assert told(run) == []


@pytest.mark.parametrize(
    "step_s",
    [{"a": 0.002, "b": 0.004}, {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "e": 5.0}, {"a": 1.0}],
    ids=["a few milliseconds", "nodes that all differ", "one node"],
)
def test_differences_that_mean_nothing(step_s: dict[str, float]) -> None:
    run = running(str(len(step_s)), *step_s, lease_s=LEASE_S)
    Steps(run).go_on(3 * LONG_S, **step_s)
    assert told(run) == []


@pytest.mark.parametrize("seed", range(5))
def test_ordinary_jitter_is_no_straggler_in_a_day(seed: int) -> None:
    """Steps differ by some percent, and one in ten takes three times as long: a checkpoint that nobody tells."""
    random, names = Random(seed), "abcdefgh"
    run = running("8", *names, lease_s=LEASE_S)
    steps = Steps(run)
    for _ in range(8_640 // 4):
        taken = {name: random.gauss(1.0, 0.08) * (3.0 if random.random() < 0.1 else 1.0) for name in names}
        steps.go_on(LEASE_S, **taken)
    assert told(run) == []


def test_a_node_without_new_steps_is_no_straggler() -> None:
    """A node without new steps may hang, which others notice."""
    run = running("2", "a", "b", lease_s=LEASE_S)
    for number in range(8 * LOOKS):
        run.passes(POLL_S)
        run.tells("a", lowest_step=number, step_s=1.0)
        run.tells("b", lowest_step=7, step_s=9.0)
    assert told(run) == []


def test_a_run_that_tells_no_steps_is_not_looked_at() -> None:
    run = running("2", "a", "b", lease_s=LEASE_S)
    run.tells("a", lowest_step=3)
    assert run.run.slowness.look_at is None


def test_one_that_stands_by_takes_the_place_of_a_straggler_for_free() -> None:
    run = running("2", "a", "b", lease_s=LEASE_S, replace_stragglers=True)
    steps = Steps(run)
    steps.go_on(2 * LONG_S, a=1.0, b=3.0)
    assert run.stage is Stage.RUNNING and told(run) == [("straggler_found", "b")], "nobody stands by"
    run.join("c")
    steps.go_on(2 * LEASE_S, a=1.0, b=3.0, c=0.0)
    assert run.stage is Stage.FORMING
    blame = run.machine.blamed[-1]
    assert (blame.node_id, blame.fault) == ("b", "slow") and blame.reason.startswith("node b is slow: a step takes 3 s")
    assert run.events[-1].reason.endswith("; a node that stands by takes its place")
    assert run.run.stragglers == {}
    run.join("a", "b", "c")
    assert run.ledger() == [("node_drained", False)]


def test_how_much_longer_its_steps_take_is_a_setting() -> None:
    for factor, found in ((1.2, [("straggler_found", "b")]), (1.4, [])):
        run = running("2", "a", "b", lease_s=LEASE_S, straggler_factor=factor)
        Steps(run).go_on(2 * LONG_S, a=1.0, b=1.3)
        assert told(run) == found


def replaced_after_notice() -> tuple[Scenario, Steps]:
    """The workers of a run have been told that its slow node makes room."""
    run = running("2", "a", "b", lease_s=LEASE_S, replace_stragglers=True, notice_timeout_s=60.0)
    run.join("c")
    steps = Steps(run)
    steps.go_on(LONG_S + LEASE_S, a=1.0, b=3.0, c=0.0)
    assert run.stage is Stage.RUNNING and not run.machine.blamed
    return run, steps


def test_workers_are_told_before_a_straggler_makes_room() -> None:
    run, _ = replaced_after_notice()
    asked = run.asked(Notice)
    assert {agent: (notice.source, notice.node_id) for agent, notice in asked.items()} == {
        "a": ("node_drained", "b"), "b": ("node_drained", "b"),
    }  # fmt: skip
    assert asked["a"].reason.startswith("node b is slow: a step takes 3 s")
    run.acknowledges("a")
    assert run.stage is Stage.RUNNING
    run.acknowledges("b")
    assert run.stage is Stage.FORMING
    assert [(blame.node_id, blame.fault) for blame in run.machine.blamed] == [("b", "slow")]
    run.join("a", "b", "c")
    assert run.ledger() == [("node_drained", False)]


def test_a_notice_for_a_straggler_ends_at_its_time_and_outlives_the_server() -> None:
    run, _ = replaced_after_notice()
    until = run.run.replacement.until
    run.restarts()
    run.renews("a", "b", "c")
    assert run.asked(Notice).keys() == {"a", "b"}
    while run.now < until:
        assert run.stage is Stage.RUNNING
        run.passes(min(POLL_S, until - run.now))
        run.renews(*(agent for agent in "abc" if agent in run.run.agents))
    assert run.stage is Stage.FORMING and [blame.fault for blame in run.machine.blamed] == ["slow"]


def test_a_straggler_stays_if_nobody_stands_by_any_more_when_all_have_saved() -> None:
    run, _ = replaced_after_notice()
    run.leaves("c")
    run.acknowledges("a", "b")
    assert run.stage is Stage.FORMING and not run.machine.blamed, "workers that have saved may have ended"
    run.join("a", "b")
    assert run.participants() == ["a", "b"]


def test_a_round_that_ends_before_all_have_saved_leaves_the_straggler_where_it_is() -> None:
    run, _ = replaced_after_notice()
    run.is_lost("a")
    assert run.stage is Stage.FORMING and run.run.replacement is None and not run.asked(Notice)
    assert [blame.fault for blame in run.machine.blamed] == ["lost"]


def test_replacements_are_far_apart() -> None:
    run = running("2", "a", "b", lease_s=LEASE_S, replace_stragglers=True)
    run.join("c")
    steps, at = Steps(run), []
    for _ in range(40):
        steps.go_on(LONG_S, a=1.0, b=3.0, c=3.0)
        if run.stage is Stage.FORMING:
            at.append(run.run.opening.at)
            run.join("a", "b", "c")
    assert len(at) > 2
    assert all(later - earlier >= REPLACED_AGAIN_AFTER_S for earlier, later in pairwise(at))


def test_stragglers_outlive_the_server() -> None:
    run = running("2", "a", "b", lease_s=LEASE_S)
    Steps(run).go_on(2 * LONG_S, a=1.0, b=3.0)
    assert durable(run.run)["stragglers"] != {}
    run.restarts()
    assert [each.node_id for each in run.run.stragglers.values()] == ["b"]
    run.renews("a", "b")
    Steps(run).go_on(2 * LONG_S, a=1.0, b=1.0)
    assert told(run)[-1] == ("straggler_over", "b")
