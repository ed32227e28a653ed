"""Cost of restarts: what each second from a fault to the next progress went into."""

from rdzv_protocol.messages import RestartCosts
from rdzv_protocol.words.run import restarts_took

from rdzv_server.core.policies import restart_cost
from rdzv_server.core.views import run_view, status_view
from tests.support.scenario import running
from tests.support.stories import check, play, stories

FAILS = "join a b; 60s; fail a ago_s=0.5; 2s; join a; 3s; join b; 10s"
"""Failure that is reported after 0.5 s. The workers of `a` stop within 2 s, those of `b` within 5 s."""
STARTED = "tell a telling_s=1 spawned_ago_s=8 imported_ago_s=5 initialized_ago_s=4 loaded_ago_s=2"
UNKNOWN = "spawning ?, importing ?, initializing ?, loading ?, first_step ?"
TWICE = "2 of 2: detecting 0.5, stopping 6, spawning 4, importing 6, initializing 2, loading 4, first_step 2"
SERVER_SEES = "detecting 0.5, stopping 5"


@stories({
    "a run without restarts has no cost": (
        "2", "join a b; 60s; tell a telling_s=1", {"costs": f"0 of 0: {UNKNOWN}"},
    ),
    "without progress the time after the start of the workers is unknown": (
        "2 max_restarts=3", FAILS, {"costs": f"0 of 1: {SERVER_SEES}, {UNKNOWN}"},
    ),
    "workers that report no phases have one part after their start": (
        "2 max_restarts=3", f"{FAILS}; tell a telling_s=1 spawned_ago_s=9",
        {"costs": f"1 of 1: {SERVER_SEES}, spawning 1, importing ?, initializing ?, loading ?, first_step 8"},
    ),
    "with an older agent the start is one part": (
        "2 max_restarts=3", f"{FAILS}; tell a telling_s=1",
        {"costs": f"1 of 1: {SERVER_SEES}, spawning ?, importing ?, initializing ?, loading ?, first_step 9"},
    ),
    "phases split the start, and the slowest node ends each": (
        "2 max_restarts=3", f"{FAILS}; {STARTED}",
        {"costs": f"1 of 1: {SERVER_SEES}, spawning 2, importing 3, initializing 1, loading 2, first_step 1"},
        "tell b telling_s=1 imported_ago_s=4.5 initialized_ago_s=4",
        {"costs": f"1 of 1: {SERVER_SEES}, spawning 2, importing 3.5, initializing 0.5, loading 2, first_step 1"},
    ),
    "a phase that is left out is in the next one": (
        "2 max_restarts=3", f"{FAILS}; tell a telling_s=1 spawned_ago_s=9 initialized_ago_s=4",
        {"costs": f"1 of 1: {SERVER_SEES}, spawning 1, importing ?, initializing 5, loading ?, first_step 3"},
    ),
    "phases in another order, or after the first progress, take no time away from others": (
        "2 max_restarts=3", f"{FAILS}; tell a telling_s=3 spawned_ago_s=9 imported_ago_s=4 initialized_ago_s=8",
        {"costs": f"1 of 1: {SERVER_SEES}, spawning 1, importing 5, loading ?, first_step 1"},
        "tell b telling_s=1 loaded_ago_s=1",
        {"costs": f"1 of 1: {SERVER_SEES}, spawning 1, importing 5, loading 1"},
    ),
    "nodes that are missing are waited for": (
        "2", "join a b; 60s; lose b; 2s; join a; 20s; join c; 10s; tell a telling_s=1",
        {"costs": "1 of 1: detecting 1, stopping 2, waiting 20, spawning ?, importing ?, initializing ?, loading ?, "
         "first_step 9"},
    ),
    "a hang is detected late": (
        "1 max_restarts=3", "join a; 60s; tell a highest_step=40 step_s=1 age_s=20 telling_s=50; suspect a 0; judge",
        {"costs": f"0 of 0: {UNKNOWN}"},
        "join a; 5s; tell a telling_s=1", {
            "costs": "1 of 1: detecting 21, spawning ?, importing ?, initializing ?, loading ?, first_step 4"
        },
    ),
    "an operator's restart has nothing to detect": (
        "1", "join a; 60s; restart_run; 1s; join a; 5s; tell a telling_s=1",
        {"costs": "1 of 1: stopping 1, spawning ?, importing ?, initializing ?, loading ?, first_step 4"},
    ),
    "a restart that fails before its first progress is counted, and the next one is another": (
        "1 max_restarts=3", "join a; 60s; fail a; 1s; join a; 5s; fail a; 2s; join a; 7s; tell a telling_s=1",
        {"costs": "1 of 2: stopping 3, spawning ?, importing ?, initializing ?, loading ?, first_step 6"},
    ),
    "restarts add up, also over those of the server": (
        "2 max_restarts=3", f"{FAILS}; {STARTED}; fail a; restart; 1s; join a b; restart; 10s; {STARTED}",
        {"costs": TWICE},
        "succeed a b; restart",
        {"costs": TWICE},
    ),
    "phases are recorded once all nodes have reported, and survive a restart of the server": (
        "1 max_restarts=3", f"join a; 5s; fail a; join a; 10s; {STARTED}; restart_from_snapshot",
        {"costs": "1 of 1: spawning 2, importing 3, initializing 1, loading 2, first_step 1"},
    ),
})  # fmt: skip
def test_the_cost_of_restarts(story):
    check(story)


def test_status_report_and_page_contain_the_same_sentence():
    run = running("2", "a", "b", max_restarts=3)
    play(run, f"60s; fail a ago_s=0.5; 2s; join a; 3s; join b; 10s; {STARTED}")
    told = status_view.view(run.run, run.now)
    assert [(each.took_s, each.cost) for each in told.history] == [(14.5, told.restart_costs.cost)]
    assert run_view.restart_sentence(run.run) == told.restart_costs.sentence
    run.succeeds("a", "b")
    assert run.directive("a").restart_costs == told.restart_costs
    assert restart_cost.counted(run.run) == told.restart_costs


def test_status_report_and_page_count_the_steps_that_survivors_kept():
    run = running("1", "a", max_restarts=3)
    saved = "60s; tell a highest_step=55 step_s=1 telling_s=60 checkpoint_step=40 checkpoint_s=5"
    play(run, f"{saved}; 3s; fail a; join a; 10s")
    assert "kept" not in run_view.restart_sentence(run.run)
    play(run, "tell a highest_step=56 step_s=1 telling_s=1 resumed_step=55")
    told = status_view.view(run.run, run.now).restart_costs
    assert (told.kept_steps, told.repeated_steps) == (15, 0)
    assert "kept 15 steps" in run_view.restart_sentence(run.run)
    run.succeeds("a")
    assert run.directive("a").restart_costs == told


def test_a_run_without_restarts_does_not_report_a_cost():
    run = running("1", "a")
    run.succeeds("a")
    assert run.directive("a").restart_costs is None and run_view.restart_sentence(run.run) == ""


def test_unknown_parts_are_named_with_the_part_that_includes_them():
    seconds = {"detecting_s": 0.01, "spawning_s": 1.0, "importing_s": None, "loading_s": None, "first_step_s": 5.0}
    told = restarts_took(1, 1, seconds)
    assert "importing, loading and first step" in told and "detecting" not in told
    assert "unknown" not in told and "unknown" in restarts_took(2, 1, seconds)
    assert RestartCosts(restarts=1).sentence == restarts_took(1, 0, dict.fromkeys(seconds))
