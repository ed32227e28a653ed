"""Learned limits: healthy scripts are never suspected for hours, and a hang is found within the documented time.

The times are those of the table in docs/how-to/detect-hangs.md.
"""

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from node_agent.features.hangs.progress_source import (
    SHORTEST_S,
    SHORTEST_START_S,
    STEPS_TO_LEARN,
    UNSEEN_S,
    UNSEEN_START_S,
    ProgressLimits,
)
from tests.unit.node_agent.features.hangs.watched_node import HOUR_S, Node

CHECK_INTERVAL_S = 2.0
"""Most seconds from a limit to the detector's next look."""
SCRIPTS = 40
"""Random scripts of each test, each with several rounds of some hours."""
KINDS_THAT_MUST_BE_SEEN = ("checkpoint", "evaluation", "evaluation", "epoch")


def auto(**limits: float) -> Node:
    return Node(range(1), world_size=1, progress=ProgressLimits(**limits))


def train(node: Node, steps: int, step_s: float, first: int = 0) -> None:
    for step in range(first, first + steps):
        node.progress(step=step)
        node.passes(step_s)
    node.progress(step=first + steps)


def take(node: Node, kind: str, seconds: float) -> None:
    node.passes(seconds)
    node.progress(kind=kind)


def experienced(longest_s: float = 15.0) -> Node:
    """Return a node whose workers have shown all kinds of phases, and then a start from a checkpoint."""
    node = auto()
    node.passes(5.0)
    train(node, 20, 1.0)
    for kind in KINDS_THAT_MUST_BE_SEEN:
        take(node, kind, longest_s)
    node.restarts()
    node.passes(40.0)
    train(node, 20, 1.0, first=20)
    assert node.found == []
    return node


def test_the_first_evaluation_is_not_a_hang() -> None:
    node = auto()
    train(node, 12, 0.5)
    take(node, "checkpoint", 1.0)
    take(node, "evaluation", 25.0)
    assert node.found == []


def test_a_second_start_may_take_longer_than_the_first() -> None:
    node = auto()
    node.passes(2.0)
    train(node, 12, 11.0)
    for start_s in (75.0, 75.0, 140.0):
        node.restarts()
        node.passes(start_s)
        train(node, 12, 11.0, first=5)
    assert node.found == []


def test_limits_are_learned_for_each_world_size() -> None:
    node = Node(progress=ProgressLimits())
    for world_size, step_s, phase_s in ((4, 0.5, 0.5), (2, 14.0, 40.0), (4, 0.5, 0.5), (2, 27.0, 70.0)):
        node.restarts(world_size)
        node.passes(30.0)
        train(node, 20, step_s)
        for kind in KINDS_THAT_MUST_BE_SEEN:
            take(node, kind, phase_s)
    assert node.found == []


def test_a_checkpoint_that_another_number_of_workers_has_saved_may_take_longer_to_load() -> None:
    node = experienced()
    node.restarts(2)
    node.passes(300.0)
    train(node, 20, 1.0, first=30)
    node.restarts(1)
    node.passes(300.0)
    node.progress(step=40)
    assert node.found == []


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_a_limit_that_found_a_hang_doubles_up_to_the_limit_for_unseen_phases(factor: float) -> None:
    node = auto(unseen_s=10.0, factor=factor)
    limits = []
    while len(limits) < 8:
        train(node, 12, 0.5)
        began, before = node.now, len(node.found)
        while len(node.found) == before:
            node.passes(1.0)
        limits.append(node.found[-1].limit_s or 0.0)
        assert node.now - began <= limits[-1] + CHECK_INTERVAL_S
        node.restarts()
    assert limits[0] == 10.0 and limits[-1] == UNSEEN_S
    assert all(later >= min(2 * earlier, UNSEEN_S) for earlier, later in pairwise(limits))


def test_limits_that_are_given_do_not_grow() -> None:
    node = auto(step_s=10.0, start_s=10.0)
    for _ in range(3):
        node.progress(step=1)
        node.passes(9.0)
        assert not any(found.local_ranks for found in node.passes(0.5))
        (found,) = node.passes(2.0)
        assert found.limit_s == 10.0
        node.restarts()


def test_the_growth_is_measured_in_the_phase_that_was_cut_off() -> None:
    node = experienced()
    node.progress(kind="saving")
    node.passes(500.0)
    node.restarts()
    node.passes(40.0)
    node.progress(step=30)
    node.progress(kind="saving")
    assert node.passes(590.0) == [], "as long as what has not been seen"
    node.progress(kind="checkpoint")
    node.progress(step=31)
    node.found.clear()
    assert node.passes(29.0) == [] and node.passes(CHECK_INTERVAL_S)[0].limit_s == 30.0


def saving(node: Node) -> None:
    node.progress(kind="saving")


def restarted(node: Node) -> None:
    node.restarts()


def first_steps(node: Node) -> None:
    node.restarts()
    node.passes(40.0)
    train(node, 3, 1.0, first=40)


def other_size(node: Node) -> None:
    node.restarts(7)


def other_size_steps(node: Node) -> None:
    node.restarts(7)
    train(node, 2 * STEPS_TO_LEARN, 1.0)


@pytest.mark.parametrize(
    ("node", "leads_to", "limit_s"),
    [
        (auto, lambda node: None, UNSEEN_START_S),
        (auto, lambda node: train(node, STEPS_TO_LEARN - 2, 0.1), UNSEEN_S),
        (auto, lambda node: train(node, 1_000, 0.1), UNSEEN_S),
        (auto, lambda node: [train(node, 1_000, 0.1), take(node, "checkpoint", 1.0)], UNSEEN_S),
        (auto, saving, UNSEEN_S),
        (experienced, lambda node: None, 30.0),
        (experienced, lambda node: take(node, "evaluation", 20.0), 40.0),
        (experienced, saving, 30.0),
        (experienced, restarted, 80.0),
        (experienced, first_steps, 30.0),
        (experienced, other_size, UNSEEN_START_S),
        (experienced, other_size_steps, UNSEEN_S),
        (lambda: experienced(1.0), lambda node: None, SHORTEST_S),
    ],
    ids=[
        "first start", "first steps", "before a checkpoint", "before an evaluation", "first checkpoint",
        "after a step", "after a longer evaluation", "a checkpoint", "a start", "first steps of a later round",
        "start of another world size", "steps of another world size", "the shortest limit",
    ],
)  # fmt: skip
def test_a_hang_is_found_within_the_documented_time(
    node: Callable[[], Node], leads_to: Callable[[Node], object], limit_s: float
) -> None:
    watched = node()
    leads_to(watched)
    assert watched.found == []
    assert watched.passes(limit_s - 0.5) == []
    (found,) = watched.passes(CHECK_INTERVAL_S)
    assert found.source == "progress" and found.limit_s == pytest.approx(limit_s)


def test_an_evaluation_at_the_very_beginning_does_not_teach_how_long_evaluations_take() -> None:
    node = auto()
    node.progress(step=0)
    take(node, "evaluation", 2.0)
    take(node, "epoch", 1.0)
    train(node, 20, 1.0)
    take(node, "checkpoint", 1.0)
    take(node, "evaluation", 200.0)
    assert node.found == []


def test_the_longest_evaluation_counts_even_if_it_was_the_only_one_of_its_round() -> None:
    node = experienced(10.0)
    node.restarts(2)
    for evaluations_s in ((128.0,), (83.0, 83.0)):
        node.passes(5.0)
        train(node, 20, 1.0, first=20)
        take(node, "checkpoint", 1.0)
        take(node, "epoch", 1.0)
        for evaluation_s in evaluations_s:
            take(node, "evaluation", evaluation_s)
        node.restarts()
    node.passes(5.0)
    train(node, 20, 1.0, first=20)
    take(node, "evaluation", 185.0)
    assert node.found == []


def test_a_round_that_ends_during_a_phase_does_not_teach_wrong_limits() -> None:
    node = experienced()
    node.progress(kind="end")
    node.passes(HOUR_S)
    node.restarts()
    node.passes(40.0)
    node.progress(step=41)
    assert len(node.passes(30.0 + CHECK_INTERVAL_S)) == 1


class Script(Struct):
    """A healthy training script with random times. Each kind lasts at most 1.9 times its longest time so far."""

    chance: random.Random
    step_s: float
    warm_up_s: float
    warm_up_steps: int
    checkpoint_s: float
    steps_a_checkpoint: int
    announces: bool
    evaluation_s: float
    steps_an_evaluation: int
    begins_with_an_evaluation: bool
    load_s: float
    steps_an_epoch: int
    first_start_s: float
    later_start_s: float
    tells_steps: bool
    step: int = 0
    done: int = 0
    """Phases that are complete, including starts."""
    hangs_at: int | None = None
    """Number of the phase that never ends, None if all end."""
    seen_s: dict[tuple[str, int], float] = {}
    """Longest time of each kind so far, by world size."""

    @classmethod
    def drawn(cls, chance: random.Random) -> "Script":
        step_s = chance.choice([0.2, 1.0, 10.0, 40.0])

        def long() -> float:
            return chance.choice([0.5, 5.0, 25.0, 120.0, 500.0])

        return cls(
            chance=chance, step_s=step_s, warm_up_s=chance.choice([step_s, 30.0, 500.0]),
            warm_up_steps=chance.randint(0, STEPS_TO_LEARN - 1), checkpoint_s=long(),
            steps_a_checkpoint=chance.randint(5, 60), announces=chance.random() < 0.5, evaluation_s=long(),
            steps_an_evaluation=chance.randint(5, 90), begins_with_an_evaluation=chance.random() < 0.3, load_s=long(),
            steps_an_epoch=chance.randint(20, 150), first_start_s=long(), later_start_s=3 * long(),
            tells_steps=chance.random() < 0.7,
        )  # fmt: skip

    def runs(self, node: Node, steps: int) -> bool:
        """Run a round of `steps` steps from the last checkpoint. Return whether it hangs."""
        if self._lasts(node, "start", self.later_start_s if self.step else self.first_start_s):
            return True
        node.progress(step=self._told)
        if self.begins_with_an_evaluation and self._phase(node, "evaluation", min(2.0, self.evaluation_s)):
            return True
        return any(self._steps(node, number) for number in range(steps))

    def _steps(self, node: Node, number: int) -> bool:
        self.step += 1
        is_warm = number >= self.warm_up_steps
        if self._phase(node, "step" if is_warm else "warm-up", self.step_s if is_warm else self.warm_up_s):
            return True
        due = (
            ("checkpoint", self.checkpoint_s, self.steps_a_checkpoint),
            ("evaluation", self.evaluation_s, self.steps_an_evaluation),
            ("epoch", self.load_s, self.steps_an_epoch),
        )
        return any(self._phase(node, kind, lasts_s) for kind, lasts_s, each in due if self.step % each == 0)

    def _phase(self, node: Node, kind: str, lasts_s: float) -> bool:
        if kind == "checkpoint" and self.announces:
            node.progress(kind="saving")
        hangs = self._lasts(node, kind, lasts_s)
        if not hangs:
            node.progress(step=self._told, kind="step" if kind == "warm-up" else kind)
        return hangs

    def _lasts(self, node: Node, kind: str, lasts_s: float) -> bool:
        if self.done == self.hangs_at:
            return True
        longest_s = self.seen_s.get((kind, node.world_size), 0.0)
        drawn_s = lasts_s * self.chance.lognormvariate(0.0, 0.3)
        most_s = UNSEEN_START_S - 1.0 if kind == "start" else UNSEEN_S - 1.0
        took_s = min(drawn_s, most_s, max(1.9 * longest_s, SHORTEST_S - 1.0) if longest_s else most_s)
        self.seen_s[kind, node.world_size] = max(longest_s, took_s)
        node.passes(took_s)
        self.done += 1
        return False

    @property
    def _told(self) -> int | None:
        return self.step if self.tells_steps else None


def healthy_rounds(script: Script, node: Node) -> bool:
    """Run rounds with restarts between them, some of which change the world size. Return whether one hangs."""
    for number, world_size in enumerate((4, 4, 2, 2, 4, 4)):
        if number:
            node.restarts(world_size)
        script.step = script.step // script.steps_a_checkpoint * script.steps_a_checkpoint
        if script.runs(node, script.chance.randint(20, 250)):
            return True
    return False


@pytest.mark.timeout(300)
@settings(max_examples=SCRIPTS, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_healthy_script_does_not_cause_an_alarm(seed: int) -> None:
    node = Node(range(1), world_size=4, progress=ProgressLimits())
    healthy_rounds(Script.drawn(random.Random(seed)), node)
    assert node.found == []


@pytest.mark.timeout(300)
@settings(max_examples=SCRIPTS, deadline=None)
@given(seed=st.integers(0, 2**32), at=st.integers(0, 600))
def test_a_hang_at_any_point_of_a_healthy_script_is_found(seed: int, at: int) -> None:
    node = Node(range(1), world_size=4, progress=ProgressLimits())
    script = Script.drawn(random.Random(seed))
    script.hangs_at = at
    if not healthy_rounds(script, node):
        return
    assert node.found == []
    longest_s = max(script.seen_s.values(), default=0.0)
    in_start = not node.readings
    (found,) = node.passes(max(UNSEEN_START_S if in_start else UNSEEN_S, 2.0 * longest_s) + CHECK_INTERVAL_S)
    assert found.source == "progress" and found.local_ranks == (0,)


@pytest.mark.timeout(300)
@settings(max_examples=SCRIPTS, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_pauses_of_the_agent_and_the_server_are_not_hangs(seed: int) -> None:
    chance = random.Random(seed)
    node = experienced(chance.choice([60.0, 250.0]))
    for step in range(50, 250):
        node.passes(chance.uniform(0.5, 1.5))
        node.progress(step=step)
        if chance.random() < 0.1:
            node.stands_still(chance.uniform(0.1, 600.0))
        elif chance.random() < 0.1:
            node.server_answers = False
            node.passes(chance.uniform(1.0, 300.0))
            node.server_answers = True
            node.progress(step=step)
    assert node.found == []


def test_starts_are_learned_from_starts_that_loaded_a_checkpoint() -> None:
    node = experienced()
    assert SHORTEST_START_S < 80.0
    node.restarts()
    node.passes(79.0)
    assert node.found == []
    assert len(node.passes(CHECK_INTERVAL_S)) == 1
