"""Time ledger of a run: how its time was spent."""

from rdzv_protocol.messages import RunningTime

from rdzv_server.core.policies import time_ledger
from rdzv_server.core.policies.hangs.examination import EXAMINED_WITHIN_S
from tests.support.scenario import Scenario, running
from tests.support.stories import SAVED, check, play, stories

STANDS_STILL = "tell a highest_step=40 step_s=1 age_s=20 telling_s=60 checkpoint_step=40 checkpoint_s=10"
TRAINS = "40s; tell a highest_step=30 step_s=1 telling_s=30; 20s"
"""A start of 10 s, and 50 s of training."""
HANGS = "join a b; 7s; suspect a 0 silent_s=5; suspect b 1 silent_s=4; 100s"
"""Two nodes without progress: from 3 s on the run stands still, which agents report."""
OTHERS_STEP_ON = (
    "tell a highest_step=0 step_s=1; 100s; tell a highest_step=100 step_s=1; "
    "tell b highest_step=100 lowest_step=100 step_s=1; 50s; tell a highest_step=150 step_s=1; 50s; "
    "tell a highest_step=200 step_s=1 checkpoint_step=90; "
    "tell b highest_step=100 lowest_step=100 step_s=1 age_s=100 checkpoint_step=90"
)
"""Two nodes, of which b does not make a step after the 100th, 100 s ago, while a makes one each second."""


@stories({
    # phases
    "a run waits for its minimum, then forms, then runs": (
        "2:3 last_call_timeout_s=5", "join a; 10s; join b; 5s; 100s",
        {"time": "running 100, forming 5, waiting 10", "restarts": ""},
    ),
    "a restart counts from the failure to the start and under its cause": (
        "2 max_restarts=3", "join a b; 60s; fail a; 2s; join a b; 60s",
        {"time": "running 120, restarting 2", "restarts": "worker_failure 2"},
    ),
    "a lost node that is needed is waited for, and all of that was lost by its loss": (
        "2", "join a b; lose b; 30s", {"restarts": "node_lost 30"},  # as far as it goes
        "join a; 5s; join c", {"time": "running 1, waiting 35", "restarts": "node_lost 35"},
    ),
    "a failure that turns out to be a loss counts as the loss": (
        "1:2 max_restarts=3", "join a b; fail a; 1s; leave b; join a", {"restarts": "node_left 1"},
    ),
    "the ledger of an ended run stands still": ("1", "join a; 60s; succeed a; 60s", {"time": "running 60"}),
    # parts of the running phase
    "work since the last checkpoint is lost with a failure, and checkpoints took their time": (
        "1 max_restarts=3", f"join a; {SAVED}", {"parts": "training 55, checkpointing 5"},
        "3s; fail a", {"parts": "training 40, checkpointing 5, lost 18"},
    ),
    "a later round that saved nothing lost what it did since the checkpoint before": (
        "1 max_restarts=3",
        "join a; 50s; tell a highest_step=50 step_s=1 telling_s=50 checkpoint_step=50; fail a; "
        "join a; 20s; tell a highest_step=70 step_s=1 telling_s=20; fail a", {"parts": "training 50, lost 20"},
    ),
    "work that survivors have saved is not lost": (
        "1 max_restarts=3", f"join a; {SAVED}; 3s; fail a", {"parts": "training 40, checkpointing 5, lost 18"},
        "join a; 10s; tell a highest_step=56 step_s=1 telling_s=1 resumed_step=55",
        {"parts": "training 59, starting 9, checkpointing 5", "steps": "kept 15"},
        "5s; fail a; join a; 9s; tell a highest_step=51 step_s=1 resumed_step=50",
        {"parts": "training 58, starting 18, checkpointing 5, lost 6", "steps": "kept 15, repeated 6"},
    ),
    "workers that continue from the checkpoint repeat the steps since then, also if a round came to nothing": (
        "1 max_restarts=3", f"join a; {SAVED}; 3s; fail a; join a; 5s; fail a; join a; 5s",
        {"parts": "training 40, starting 10, checkpointing 5, lost 18"},
        "tell a highest_step=41 step_s=1 resumed_step=40",
        {"parts": "training 40, starting 10, checkpointing 5, lost 18", "steps": "repeated 15"},
    ),
    "the step after which workers continued is as good as a checkpoint": (
        "1 max_restarts=3", "join a; 20s; tell a highest_step=20 step_s=1 telling_s=20 resumed_step=0; fail a",
        {"parts": "lost 20"},
        "join a; 1s; tell a highest_step=21 step_s=1 resumed_step=20",
        {"parts": "training 20, starting 1", "steps": "kept 20"},
    ),
    "work whose fate is not known when the run ends is lost": (
        "1 max_restarts=1", f"join a; {SAVED}; fail a; join a; 5s; fail a",
        {"parts": "training 40, starting 5, checkpointing 5, lost 15"},
    ),
    "a standstill before a failure was detecting": (
        "1 max_restarts=3",
        "join a; 700s; tell a highest_step=99 step_s=1 age_s=601 telling_s=700 checkpoint_step=99; fail a",
        {"parts": "training 99, detecting 600, lost 1"},
    ),
    "a standstill before an operator's restart was detecting if the run was stalled": (
        "1", "join a; 700s; tell a highest_step=99 step_s=1 age_s=601 telling_s=700 checkpoint_step=99; restart_run",
        {"parts": "training 99, detecting 600, lost 1"}, "restart", {"parts": "training 99, detecting 600, lost 1"},
    ),
    "a shorter one may have been an evaluation": (
        "1", "join a; 100s; tell a highest_step=40 step_s=1 age_s=60 telling_s=100 checkpoint_step=40; restart_run",
        {"parts": "training 99, lost 1"},
    ),
    "as may a longer one before a restart for another reason": (
        "1:2",
        "join a b; 700s; tell a highest_step=99 step_s=1 age_s=601 telling_s=700 checkpoint_step=99; leave b",
        {"parts": "training 699, lost 1"},
    ),
    "a lost node was missed since it was heard last, but a restart that was asked for was not noticed": (
        "1:2 lease_s=10", "join a b; 5s; renew a b; 5s; renew a; 5s; renew a", {"parts": "running 5, detecting 10"},
        "join a; 8s; tell a highest_step=9 step_s=0.1 age_s=5 telling_s=8; leave a",
        {"parts": "training 8, starting 5, detecting 10"},
    ),
    "a standstill is shown while it is believed to be a hang, and entered when that ends the round": (
        "1 max_restarts=3", f"join a; 60s; {STANDS_STILL}",
        {"parts": "training 50, checkpointing 10"},  # an evaluation may take as long
        "suspect a 0", {"parts": "training 31, checkpointing 10, detecting 19"},
        "restart", {"parts": "training 60"},  # the workers' reports are signs, and the agent has not said since when
        STANDS_STILL, {"parts": "training 31, checkpointing 10, detecting 19"},
        f"{EXAMINED_WITHIN_S}s",
        {"stage": "forming", "parts": f"training 30, checkpointing 10, detecting {19 + EXAMINED_WITHIN_S:g}, lost 1"},
    ),
    # the start of a round
    "until the workers tell their first progress a round starts, and then it trains": (
        "1 max_restarts=3", "join a; 40s", {"parts": "running 40"},  # they may never report any
        "tell a highest_step=30 step_s=1 telling_s=30; 20s", {"parts": "training 50, starting 10"},
        "fail a; join a; 5s", {"parts": "training 50, starting 15"},
        "fail a; join a; 9s; tell a highest_step=2 step_s=1 telling_s=2", {"parts": "training 52, starting 22"},
        "restart", {"parts": "training 52, starting 22"},
        "succeed a", {"parts": "training 52, starting 22"},
    ),
    "an agent that does not tell when its workers' progress began began with the last one": (
        "1", "join a; 40s; tell a highest_step=30 step_s=1 age_s=2; 20s", {"parts": "training 22, starting 38"},
    ),
    "rounds that ended before the first progress were starting": (
        "1 max_restarts=3", "join a; 30s; fail a; join a; 10s", {"parts": "running 40"},
        "tell a highest_step=1", {"parts": "starting 40"},
    ),
    # a hang, with any end of its round
    "a run without progress has no training time, and a hang of which silence tells is detecting": (
        "1 max_restarts=3", "join a; 6s; 12s; suspect a 0 source=silence silent_s=12",
        {"parts": "running 6, detecting 12"}, "judge", {"stage": "forming", "parts": "running 6, detecting 14"},
    ),
    "a run is silent since the last of its nodes is": (
        "2 on_hang=report", "join a b; 20s; suspect a 0 source=silence silent_s=15", {"parts": "running 20"},
        "suspect b 1 source=silence silent_s=12", {"parts": "running 8, detecting 12"},
        "suspect a 0 source=fault; judge", {"parts": "running 8, detecting 14"},
    ),
    "a hang before the first progress was detecting, not starting": (
        "1 max_restarts=3", f"join a; {TRAINS}; fail a; join a; 100s; suspect a 0 silent_s=60",
        {"parts": "training 50, starting 50, detecting 60"},
        "judge", {"parts": "training 50, starting 50, detecting 62"},
    ),
    "steps that are reported later than the suspicion begins count": (
        "1 on_hang=report", f"join a; {TRAINS}; suspect a 0 silent_s=50; tell a highest_step=49 step_s=1 age_s=2; 10s",
        {"parts": "training 49, starting 10, detecting 11"},
    ),
    "while the first worker that hangs makes no step, the steps of others count for nothing": (
        "2 max_restarts=3 on_hang=report", f"join a b; {OTHERS_STEP_ON}", {"parts": "training 200"},
        "suspect b 1 silent_s=100", {"parts": "training 101, detecting 99"},
        "10s; tell a highest_step=210 step_s=1 checkpoint_step=90; 50s", {"parts": "training 101, detecting 159"},
        "suspect a 0 silent_s=50; 10s", {"parts": "training 101, detecting 169"},
        "restart_run", {"parts": "training 90, detecting 169, lost 11"},
        "restart", {"parts": "training 90, detecting 169, lost 11"},
    ),
    "they were training if the hang turns out to be none": (
        "2 on_hang=report",
        f"join a b; {OTHERS_STEP_ON}; suspect b 1 silent_s=100; 50s; tell b highest_step=101 step_s=1; suspect b",
        {"parts": "training 250"}, "restart_run", {"parts": "training 140, lost 110"},
    ),
    "a hang of a worker that has never made a step lasts since the start": (
        "2 on_hang=report", "join a b; 60s; tell a highest_step=55 step_s=1 telling_s=55; suspect b 1 silent_s=60; 5s",
        {"parts": "starting 5, detecting 60"},
    ),
    "a log rule or silence shows no standstill of workers that make steps": (
        "2 on_hang=report",
        f"join a b; {OTHERS_STEP_ON}; suspect a 0 source=fault; suspect a 0 source=silence silent_s=100; "
        "suspect b 1 source=silence silent_s=100", {"parts": "training 200"},
    ),
    "a standstill of one node before an operator's restart was detecting if the run was stalled": (
        "2", f"join a b; {OTHERS_STEP_ON}; restart_run", {"parts": "training 90, detecting 99, lost 11"},
    ),
    "a hang that ends in a success was none": (
        "2 on_hang=report", f"{HANGS}; succeed a b", {"stage": "succeeded", "parts": "running 107"},
    ),
    "a hang that is over was none": (
        "2 on_hang=report", f"{HANGS}; suspect a; suspect b; restart_run", {"parts": "running 107"},
    ),
    **{
        f"a hang is detecting if its round is ended by {what}": (
            f"1:2 max_restarts=3 on_hang=report {settings}", f"{HANGS}; {deed}",
            {"stage": stage, "parts": "running 3, detecting 104"},
            "restart", {"parts": "running 3, detecting 104"},
        )
        for what, settings, deed, stage in (
            ("a restart of the run", "", "restart_run", "forming"),
            ("its stop", "", "stop", "failed"),
            ("a restarted server and then its stop", "", "restart; stop", "failed"),
            ("a server from a snapshot and then its stop", "", "restart_from_snapshot; stop", "failed"),
            ("a resize", "", "resize 1:1", "forming"),
            ("the departure of the node that suspects", "", "leave a", "forming"),
            ("the departure of another node", "", "leave b", "forming"),
            ("an unfit node", "", "leave_unfit b", "forming"),
            ("a drain", "", "drain a", "forming"),
            ("a worker that is killed", "", "fail b", "forming"),
            ("a worker that is killed and no restart that is left", "max_restarts=0", "fail a", "failed"),
            ("an agent that is started again", "", "disconnect a; join a2 node=a", "forming"),
        )
    },
    "a hang is detecting if a notice ends its round": (
        "1:2 max_restarts=3 on_hang=report notice_timeout_s=20",
        f"{HANGS}; announce b; acknowledge a b", {"stage": "forming", "parts": "running 3, detecting 104"},
    ),
    "a hang is detecting if a node that arrives ends its round": (
        "2:3 on_hang=report last_call_timeout_s=0", f"{HANGS}; join c; 5s",
        {"stage": "forming", "parts": "running 3, detecting 104"},
    ),
    "a hang is detecting if the loss of a node ends its round": (
        "1:2 on_hang=report", f"{HANGS}; lose b", {"stage": "forming", "parts": "running 3, detecting 105"},
    ),
    "a restart that an operator asks for during an evaluation has noticed nothing": (
        "1", f"join a; 60s; {STANDS_STILL}; restart_run",
        {"parts": "training 49, checkpointing 10, lost 1"},
    ),
    # a restarted server
    "a restarted server loses nothing of it": (
        "1 max_restarts=3", f"join a; {SAVED}; fail a; 3s; restart",
        {"time": "running 60, restarting 3", "parts": "training 40, checkpointing 5, lost 15"},
    ),
    "nor one from a snapshot": (
        "1 max_restarts=3", f"join a; {SAVED}; fail a; 3s; restart_from_snapshot",
        {"time": "running 60, restarting 3", "parts": "training 40, checkpointing 5, lost 15"},
    ),
})  # fmt: skip
def test_the_time_of_a_run(story):
    check(story)


def test_the_share_of_training_is_that_of_the_whole_time():
    run = check(("1 max_restarts=3", f"join a; {SAVED}; 3s; fail a; 7s"))
    assert time_ledger.view(run.run, run.now).ettr == round(40 / 70, 4)
    run = check(("1", f"join a; 60s; {STANDS_STILL}; suspect a 0"))
    assert time_ledger.view(run.run, run.now).ettr == round(31 / 60, 4)


def test_a_standstill_that_ends_by_itself_counts_as_training_without_lowering_a_counter():
    run = running("1", "a", on_hang="report")
    run.passes(60.0)
    run.tells("a", highest_step=40, step_s=1.0, age_s=20.0, telling_s=60.0, checkpoint_s=10.0)
    counted = time_ledger.counted(run.run, run.now)
    run.suspects("a", 0)
    assert time_ledger.standstill_s(run.run, run.now) == 19.0
    assert time_ledger.counted(run.run, run.now) == counted
    run.passes(EXAMINED_WITHIN_S)
    assert run.stage.value == "running" and time_ledger.standstill_s(run.run, run.now) == 19.0 + EXAMINED_WITHIN_S, (
        "it is reported"
    )
    run.suspects("a")
    assert time_ledger.standstill_s(run.run, run.now) == 0.0
    assert time_ledger.view(run.run, run.now).training == 50.0 + EXAMINED_WITHIN_S


def test_a_success_has_lost_nothing_and_its_report_and_last_event_say_what_its_time_went_into():
    run = running("1", "a")
    run.passes(100.0)
    run.tells("a", highest_step=90, step_s=1.0, telling_s=95.0, checkpoint_step=50, checkpoint_s=10.0)
    run.succeeds("a")
    told = run.directive("a").time
    assert (told.training_s, told.starting_s, told.checkpointing_s, told.lost_s) == (85.0, 5.0, 10.0, 0.0)
    assert told.ettr == 0.85
    assert run.events[-1].time == told
    assert run.directive("a").running_time is run.events[-1].running_time is None


def test_the_report_of_a_run_without_progress_has_no_ratio():
    run = check(("2 on_hang=report", f"{HANGS}; restart_run; rejoin; 10s; succeed a b"))
    told = run.directive("a")
    assert told.time is run.events[-1].time is None
    assert told.running_time == run.events[-1].running_time == RunningTime(running_s=13.0, detecting_s=104.0)
    assert time_ledger.view(run.run, run.now).ettr is None


def test_starting_time_never_decreases():
    run = running("2", "a", "b", max_restarts=3, on_hang="report")
    grown, seen = [], 0.0
    for steps in (
        "30s", "fail a; rejoin; 10s", "tell a highest_step=1", "30s", "fail b; rejoin; 60s",
        "suspect a 0 silent_s=60", "9s", "restart", "restart_run; rejoin; 5s", "tell b highest_step=9",
    ):  # fmt: skip
        play(run, steps)
        grown.append(time_ledger.counted(run.run, run.now)["starting"])
        assert grown[-1] >= seen
        seen = grown[-1]
    assert grown == [0.0, 0.0, 40.0, 40.0, 40.0, 40.0, 40.0, 40.0, 40.0, 45.0]


def test_the_page_has_the_parts_of_a_round_that_lasts():
    """The page shows the time that is entered for the round, and the time since, which counts as running."""
    run = running("2", "a", "b", max_restarts=3)
    run.passes(60.0)
    assert _shown(run) == {"running": 60.0}
    run.tells("a", highest_step=55, step_s=1.0, telling_s=58.0, checkpoint_step=40, checkpoint_s=5.0)
    assert _shown(run) == {"training": 53.0, "starting": 2.0, "checkpointing": 5.0}
    run.fails("a")
    run.join("a", "b")
    run.passes(30.0)
    assert _shown(run) == {"training": 38.0, "starting": 32.0, "checkpointing": 5.0, "lost": 15.0}
    run.suspects("a", 0, silent_s=20.0)
    assert _shown(run) == {"training": 38.0, "starting": 12.0, "checkpointing": 5.0, "lost": 15.0, "detecting": 20.0}


def _shown(run: Scenario) -> dict[str, float]:
    shown = time_ledger.entered(run.run, run.now)
    word = time_ledger.present(run.run)
    shown[word] = shown.get(word, 0.0) + run.now - time_ledger.since(run.run)
    return {word: seconds for word, seconds in shown.items() if seconds}
