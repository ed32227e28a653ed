"""Time ledger of a run: what its time has gone into."""

from rdzv_server.core import time_ledger
from rdzv_server.core.examination import EXAMINED_WITHIN_S
from tests.support.scenario import running
from tests.support.stories import check, stories

SAVED = "60s; tell a highest_step=55 step_s=1 checkpoint_step=40 checkpoint_s=5"
STANDS_STILL = "tell a highest_step=40 step_s=1 age_s=20 checkpoint_step=40 checkpoint_s=10"


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
    "a failure that turns out to be a loss is put down to the loss": (
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
        "join a; 50s; tell a highest_step=50 step_s=1 checkpoint_step=50; fail a; "
        "join a; 20s; tell a highest_step=70 step_s=1; fail a", {"parts": "training 50, lost 20"},
    ),
    "a standstill before a failure was detecting": (
        "1 max_restarts=3", "join a; 700s; tell a highest_step=99 step_s=1 age_s=601 checkpoint_step=99; fail a",
        {"parts": "training 99, detecting 600, lost 1"},
    ),
    "a lost node was missed since it was heard last, but a restart that was asked for was not noticed": (
        "1:2 lease_s=10", "join a b; 5s; renew a b; 5s; renew a; 5s", {"parts": "training 5, detecting 10"},
        "join a; 8s; tell a highest_step=9 step_s=0.1 age_s=5; leave a", {"parts": "training 13, detecting 10"},
    ),
    "a standstill is shown while it is believed to be a hang, and entered when that ends the round": (
        "1 max_restarts=3", f"join a; 60s; {STANDS_STILL}",
        {"parts": "training 50, checkpointing 10"},  # an evaluation may take as long
        "suspect a 0", {"parts": "training 31, checkpointing 10, detecting 19"},
        "restart", {"parts": "training 60"},  # what the workers tell is a sign
        STANDS_STILL, {"parts": "training 31, checkpointing 10, detecting 19"},
        f"{EXAMINED_WITHIN_S}s",
        {"stage": "forming", "parts": f"training 30, checkpointing 10, detecting {19 + EXAMINED_WITHIN_S:g}, lost 1"},
    ),
    # a restarted server
    "a restart of the server loses nothing of it": (
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


def test_a_standstill_that_ends_by_itself_was_training_and_no_counter_goes_back():
    run = running("1", "a", on_hang="report")
    run.passes(60.0)
    run.tells("a", highest_step=40, step_s=1.0, age_s=20.0, checkpoint_s=10.0)
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
    run.tells("a", highest_step=90, step_s=1.0, checkpoint_step=50, checkpoint_s=10.0)
    run.succeeds("a")
    told = run.directive("a").time
    assert (told.training_s, told.checkpointing_s, told.lost_s, told.ettr) == (90.0, 10.0, 0.0, 0.9)
    assert run.events[-1].time == told


def test_the_page_has_the_parts_of_a_round_that_lasts():
    """The page shows the time that is entered for the round, and the time since, which counts as running."""
    run = running("2", "a", "b", max_restarts=3)
    run.passes(60.0)
    run.tells("a", highest_step=55, step_s=1.0, checkpoint_step=40, checkpoint_s=5.0)
    shown = time_ledger.entered(run.run, run.now)
    shown["running"] += run.now - run.run.time.since
    assert {word: seconds for word, seconds in shown.items() if seconds} == {"running": 55.0, "checkpointing": 5.0}
