"""Completion of runs with a fixed set of nodes: they end when too few of these can be fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdzv_server.core.events import EXCLUDER
from rdzv_server.core.kernel.run import Stage
from rdzv_server.words import completion as words
from rdzv_server.words import operations
from tests.support.scenario import Scenario, running
from tests.support.stories import check, stories, until

UNFIT_A, UNFIT_B = words.unfit("a", "no GPU 3"), words.unfit("b", "no GPU 3")
TOO_FEW = words.too_few_fit(1, 3, 2, words.all_unfit([UNFIT_A, UNFIT_B], 2))


@stories({
    "a run of fixed nodes ends when too few of them can be fit": (
        "2:3 fixed_nodes=3", "join a b c; leave_unfit a; rejoin", {"ranks": "b c"}, "leave_unfit b",
        {"finish": "c", "end": TOO_FEW},
    ),
    "a node that is lost or leaves may be back, and so may one that was repaired": (
        "2 fixed_nodes=3", "join a b; leave_unfit a; lose b", {"stage": "forming"},  # the third node may join
        "join a2 node=a; join b2 node=b", {"start": "a2 b2"}, "leave b2", {"stage": "forming"},  # a is fit again
    ),
    "nodes beyond the given number count while they are there": (
        "2 fixed_nodes=2", "join a b c; leave_unfit a", {"stage": "forming"}, "join b", {"start": "b c"},
    ),
    "without a fixed number the run waits": ("2", "join a b; leave_unfit b", {"stage": "forming"}),
    # before it joins
    "a node that is unfit before it joins is out, and the run says so": (
        "2 fixed_nodes=3", "join_unfit a", {"agents": "", "faults": "a:unfit"}, "join c",
        {"reason c": until(words.too_few(1, 1, 2, "c", unfit=UNFIT_A), "gives_up", 600)},
        "join_unfit b", {"finish": "c", "end": TOO_FEW},
    ),
    "a run does not end before all that it has been given can hear of it": (
        "3 fixed_nodes=3", "join_unfit c; join a", {"stage": "forming"}, "join b", {"finish": "a b"},
    ),
    "an unfit node that comes back fit is part of the run, and all of it outlives the server": (
        "2 fixed_nodes=2", "join_unfit b; restart", {"unfit": UNFIT_B},
        "join b2 node=b; join a", {"start": "a b2", "unfit": ""},
    ),
    "a copy of an unfit join says nothing new": (
        "2", "join_unfit b; ignored join_unfit b", {"kinds node_unfit": "node_unfit"},
    ),
})  # fmt: skip
def test_fixed_nodes(story):
    check(story)


@pytest.mark.parametrize(("for_s", "by", "stage"), [
    (86_400.0, EXCLUDER, Stage.FAILED), (60.0, EXCLUDER, Stage.FORMING), (None, "an operator", Stage.FORMING),
])  # fmt: skip
def test_an_exclusion_counts_if_the_run_would_give_up_before_its_end(for_s, by, stage):
    run = running("2", "a", "b", fixed_nodes=2, max_restarts=3)
    run.cordons("b", reason="blamed 3 times", by=by, for_s=for_s)
    assert run.stage is Stage.RUNNING
    run.fails("b")
    run.join("a", "b")
    assert run.stage is stage
    if stage is Stage.FAILED:
        excluded = operations.excluded("b", None, "blamed 3 times")
        assert run.run.end_reason == words.too_few_fit(1, 2, 2, excluded)


@given(st.integers(1, 5), st.integers(0, 3), st.lists(st.sampled_from(["unfit", "lost", "left"]), max_size=8))
def test_a_run_of_fixed_nodes_lasts_while_enough_of_its_nodes_can_be_fit(low: int, spare: int, ends: list[str]):
    names = "abcdefgh"[: low + spare]
    run = running(f"{low}:{low + spare}", *names, fixed_nodes=len(names))
    unfit = 0
    for name, end in zip(names, ends, strict=False):
        if run.stage.is_end:
            break
        unfit += end == "unfit"
        {"unfit": Scenario.leaves_unfit, "lost": Scenario.is_lost, "left": Scenario.leaves}[end](run, name)
        run.join(*list(run.run.stopping))
        assert (run.stage is Stage.FAILED) == (unfit > spare)
