"""The core agrees with the model and keeps its promises, in any order of a run's events."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from rdzv_server.core.kernel.run import Stage
from tests.property.run_story import RunStory
from tests.support.scenario import nnodes


@hypothesis_settings(max_examples=40)
@given(steps=st.lists(st.sampled_from([6, 7, 8]), min_size=1, max_size=5), ends=st.booleans(), most=st.integers(0, 4))
def test_rounds_that_fail_at_the_same_step_by_an_error_that_recurs_there(steps: list[int], ends: bool, most: int):
    """Settings that meet this rule are rare in the stories of `RunStory`."""
    story = RunStory()
    story.found(nnodes("1:2"), {"max_restarts": most, "fail_when_hopeless": ends}, joined=2)
    story.rounds_fail_at_a_step_by_an_error_that_recurs_there(steps)
    story.the_model_agrees()
    story.the_records_bring_the_run_back()
    again = [step == before for before, step in pairwise(steps)]
    is_hopeless = ends and True in again[:most]
    assert (story.run_.stage is Stage.FAILED) == (is_hopeless or len(steps) > most)


SELDOM: dict[str, tuple[str, dict[str, Any], int, tuple[Callable[[RunStory], None], ...]]] = {
    "who announced to leave finishes and is gone: the notice that the others had is not taken back": (
        "2:3", {"notice_timeout_s": 10.0}, 3, (
            lambda story: story.an_agent_announces_that_it_leaves(0, 30.0),
            lambda story: story.workers_succeed(0, 0),
            lambda story: story.an_agent(0, "leaves"),
        ),
    ),
    "the server restarts before the one that announced it has finished": (
        "2:3", {"max_restarts": 9}, 4, (
            lambda story: story.an_agent_announces_that_it_leaves(0, 2.0),
            lambda story: story.the_server_restarts(),
            lambda story: story.workers_seem_to_hang_while_others_finish("silence", False, True, False),
        ),
    ),
    "a join arrives again of an agent whose loss would explain a failure": (
        "2", {"max_restarts": 0}, 2, (
            lambda story: story.a_failure_and_a_disconnect_elsewhere(0, 1, True, True),
            lambda story: story.everything_arrives_again(),
        ),
    ),
    "a join arrives again of the witness of a loss in a round that went on after the server's restart": (
        "2", {"max_restarts": 0}, 2, (
            lambda story: story.the_server_restarts(),
            lambda story: story.an_agent_falls_silent(0, 2, False),
            lambda story: story.a_consequence_is_reported(9, "time"),
            lambda story: story.everything_arrives_again(),
        ),
    ),
    "nodes vanish together: their leases count from then": (
        "3:4", {}, 3, (
            lambda story: story.time_passes(1.25, False),
            lambda story: story.an_agent(1, "disconnects"),
            lambda story: story.an_agent(0, "blinks"),
            lambda story: story.time_passes(19.0, False),
            lambda story: story.time_passes(1.0, False),
        ),
    ),
    "a connection closes while no agent has been heard since the server started": (
        "1:2", {"last_call_timeout_s": None}, 0, (
            lambda story: story.a_new_agent_joins("d", None, 1),
            lambda story: story.the_server_restarts(),
            lambda story: story.a_new_agent_joins("b", None, 1),
            lambda story: story.an_agent(1, "disconnects"),
            lambda story: story.a_new_agent_joins("d", None, 1),
            lambda story: story.the_next_deadline_comes(),
        ),
    ),
    "a participant of a silent round joins again beside nodes that stand by": (
        "2", {"max_restarts": 9}, 4, (
            lambda story: story.time_passes(20.0, True),
            lambda story: [story.an_agent(place, "is heard") for place in (1, 2, 3)],
            lambda story: story.workers_fail(1, 0, 1, False),
            lambda story: story.an_agent_rejoins(_Chosen("agent1"), 1),
        ),
    ),
}  # fmt: skip
"""Limits, settings, joined agents and steps of stories that random choices rarely produce."""


class _Chosen:
    """Replacement for what hypothesis draws."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def draw(self, strategy: object) -> Any:
        return self._value


@pytest.mark.parametrize("name", SELDOM)
def test_rare_stories_are_still_replayed(name: str) -> None:
    limits, chosen, joined, steps = SELDOM[name]
    story = RunStory()
    story.found(nnodes(limits), chosen, joined)
    for step in steps:
        step(story)
        story.the_model_agrees()
        story.the_records_bring_the_run_back()


class KernelStory(RunStory):
    """Stories of a run without policies: no agent suspects its workers, and no time is counted."""

    policies = ()

    def _suspect(self, name: str, delay: int, source: str, is_back: bool, *, is_untold: bool = False) -> None:
        pass

    def the_time_ledger_sums_up_to_the_age_of_the_run(self) -> None:
        pass


TestKernelStory = pytest.mark.timeout(900)(KernelStory.TestCase)
TestKernelStory.settings = hypothesis_settings(max_examples=25)

TestRunStory = pytest.mark.timeout(900)(RunStory.TestCase)
"""A counterexample takes minutes to shrink, which is worth it."""
