"""Hangs that one limit finds in each round: three cost a restart, and what follows then."""

from rdzv_server.core.kernel.failed_rounds import STEADY_BACKOFFS
from rdzv_server.core.kernel.run import Stage
from rdzv_server.core.policies.hangs import words
from rdzv_server.core.policies.hangs.examination import EXAMINED_WITHIN_S
from rdzv_server.core.policies.hangs.hang_policy import SETTLE_S, Hangs
from rdzv_server.core.policies.hangs.repeated_hangs import MOST_IN_ROW, STANDSTILL_S
from rdzv_server.core.views import status_view
from tests.support.message_search import message_fields
from tests.support.scenario import HUNG, Scenario
from tests.support.stories import check, stories

HANG = "suspect a 0 limit_s=30; judge"
RESTART = f"{HANG}; join a"
SILENCE = HANG.replace("limit_s", "source=silence limit_s")
BOTH = "suspect a 0 limit_s=30; suspect b 1 limit_s=30; judge"
THREE = "; ".join([RESTART] * MOST_IN_ROW)
TOLD = f"worker rank 0 on node a failed: {words.hang(HUNG)}"
REPORTED = words.reported("a", 0, words.hang(HUNG), "", singled_out=True)
WITHHELD = words.limit_doubted(3, "--progress-timeout", 30.0, STANDSTILL_S)
STEADY_S = 300.0 * STEADY_BACKOFFS
STEP, LONG = "tell a lowest_step=9 highest_step=9", f"{STEADY_S + 30}s"
ON = {"stage": "running", "ledger": "hang! hang! hang!"}
RESTARTS = {"stage": "forming"}
END = f"{TOLD}; no restarts left: 3 of 3 used"


@stories({
    "the fourth in a row is only reported": (
        "1 max_restarts=9", f"join a; {THREE}", {"told warning": WITHHELD}, HANG,
        {**ON, "told hang_found": f"{TOLD}; {TOLD}; {TOLD}; {REPORTED}; {WITHHELD}"},
    ),
    "also if no restart is left": ("1 max_restarts=3", f"join a; {THREE}; {HANG}", ON),
    "the third is none yet": ("1 max_restarts=9", f"join a; {RESTART}; {RESTART}; {HANG}", RESTARTS),
    # when it still costs a restart
    "it is charged if the standstill lasts": (
        "1 max_restarts=9", f"join a; {THREE}; {HANG}; {STANDSTILL_S - EXAMINED_WITHIN_S}s", {**ON, "examined": "a"},
        f"judge; {EXAMINED_WITHIN_S}s; join a", {"ledger": "hang! hang! hang! hang!"},
    ),
    "and the next one is reported again": (
        "1 max_restarts=9", f"join a; {THREE}; {HANG}; {STANDSTILL_S}s; {EXAMINED_WITHIN_S}s; join a; {HANG}",
        {"stage": "running", "ledger": "hang! hang! hang! hang!"},
    ),
    "it ends the run if no restart is left then": (
        "1 max_restarts=3", f"join a; {THREE}; {HANG}; {STANDSTILL_S}s; {EXAMINED_WITHIN_S}s", {"end": END},
    ),
    "it costs nothing if the workers continue before": (
        "1 max_restarts=9", f"join a; {THREE}; {HANG}; {STANDSTILL_S - 1}s; suspect a; 9999s", ON,
    ),
    "the next hang of the round has its own time": (
        "1 max_restarts=9", f"join a; {THREE}; {HANG}; 900s; suspect a; {HANG}; {STANDSTILL_S - 10}s", ON,
    ),
    "however far and long the round gets meanwhile": (
        "1 max_restarts=9", f"join a; {THREE}; {HANG}; suspect a; {STEP}; {LONG}; {HANG}", ON,
    ),
    # which hangs are consecutive
    "another source's hang ends the row": (
        "1 max_restarts=9", f"join a; {RESTART}; {RESTART}; {SILENCE}; join a; {HANG}", RESTARTS,
    ),
    "so does a failure": ("1 max_restarts=9", f"join a; {RESTART}; {RESTART}; {RESTART}; fail a; join a; {HANG}",
                          RESTARTS),
    "a free restart does not": (
        "1 max_restarts=9", f"join a; {THREE}; restart_run; join a; {HANG}",
        {"stage": "running", "ledger": "hang! hang! hang! run_restarted"},
    ),
    "a hang that a lost node explains is none of it": (
        "1:2 max_restarts=9", f"join a b; {BOTH}; rejoin; {BOTH}; rejoin; {BOTH}; lose b; join a; {HANG}",
        RESTARTS,
    ),
    "a round that gets further and lasts ends it": (
        "1 max_restarts=9", f"join a; {THREE}; {STEP}; {LONG}; {HANG}", RESTARTS,
    ),
    "one that only gets further does not": (
        "1 max_restarts=9", f"join a; {THREE}; {STEP}; {STEADY_S - 10}s; {HANG}", ON,
    ),
    "nor does one that only lasts, if workers tell steps": (
        "1 max_restarts=9", f"join a; {STEP}; {RESTART}; {RESTART}; {RESTART}; {STEP}; {LONG}; {HANG}", ON,
    ),
    "it does if the steps fall within a round": (
        "1 max_restarts=9",
        f"join a; tell a highest_step=99; {STEP}; {RESTART}; {RESTART}; {RESTART}; {STEP}; {LONG}; {HANG}", RESTARTS,
    ),
    "else it does": ("1 max_restarts=9", f"join a; {THREE}; {LONG}; {HANG}", RESTARTS),
    "a standstill does not count as lasting": (
        "1 max_restarts=9", f"join a; {THREE}; {STEADY_S}s; {HANG}", ON,
    ),
    "a raised limit is believed if the run has got further and has lasted": (
        "1 max_restarts=9", f"join a; {THREE}; {HANG}; suspect a; {STEP}; {LONG}; suspect a 0 limit_s=31; judge",
        RESTARTS,
    ),
    "and not before": (
        "1 max_restarts=9", f"join a; {THREE}; {HANG}; suspect a; {STEP}; 9s; suspect a 0 limit_s=31; judge", ON,
    ),
    "a failure ends no row of which a hang was only reported": (
        "1 max_restarts=9", f"join a; {THREE}; {HANG}; fail a; join a; {HANG}",
        {"stage": "running", "ledger": "hang! hang! hang! worker_failure!"},
    ),
    # which hangs do not count
    "agents that tell no limit are charged as before": (
        "1 max_restarts=9", "join a" + "; suspect a 0; judge; join a" * 4, {"ledger": "hang! hang! hang! hang!"},
    ),
    "so is a hang that the evidence proves": (
        "1 max_restarts=9", "join a" + "; suspect a 0 limit_s=30; judge a=STOPPED; join a" * 4,
        {"ledger": "hang! hang! hang! hang!"},
    ),
    "a sure source ends the wait": (
        "1 max_restarts=9", f"join a; {THREE}; {HANG}; suspect a 0 source=timer; judge", RESTARTS,
    ),
    # precedence
    "a run that is to fail over a hang fails": (
        "1 max_restarts=9 on_hang=fail", f"join a; {HANG}", {"end": f"{TOLD}; --on-hang fail"},
    ),
    "one that may not restart without progress fails": (
        "1 max_restarts=9 max_restarts_without_progress=3", f"join a; {THREE}; {HANG}", {"stage": "failed"},
    ),
    "one whose hangs are only reported has no limit to doubt": (
        "1 on_hang=report", "join a" + f"; {HANG}; suspect a" * 5, {"told warning": ""},
    ),
    # a restarted server
    "a restarted server counts on": ("1 max_restarts=9", f"join a; {THREE}; restart; renew a; {HANG}", ON),
    "and charges when the time has come": (
        "1 max_restarts=9",
        f"join a; {THREE}; {HANG}; restart_from_snapshot; renew a; {STANDSTILL_S}s; {EXAMINED_WITHIN_S}s", RESTARTS,
    ),
})  # fmt: skip
def test_a_limit_that_finds_a_hang_in_each_round(story):
    check(story)


def withheld() -> Scenario:
    return check(("1 max_restarts=9", f"join a; {THREE}; {HANG}"))


def test_the_status_says_why_a_hang_costs_nothing_and_which_setting_to_change() -> None:
    run = withheld()
    status = status_view.view(run.run, run.now)
    assert status.reason == f"round 4 runs on 1 node; {WITHHELD}"
    assert status.hang and (status.hang.withheld, status.hang.restarts_in_s) == (WITHHELD, STANDSTILL_S)
    run.suspects("a")
    status = status_view.view(run.run, run.now)
    assert status.hang is None and status.reason.endswith(WITHHELD)
    run.passes(STEADY_S)
    assert status_view.view(run.run, run.now).reason == "round 4 runs on 1 node", "it has done no harm for long"


def test_the_workers_are_not_examined_while_the_standstill_lasts() -> None:
    run = withheld()
    run.passes(STANDSTILL_S - EXAMINED_WITHIN_S - 1.0)
    assert run.stage is Stage.RUNNING and not run.examined() and run.run.signs[Hangs.name].examined is None
    run.passes(1.0)
    assert set(run.examined()) == {"a"}


def test_the_setting_is_named_after_the_source() -> None:
    names = []
    for source in ("silence", "log rule step", "own", "preparation (--progress-timeout)"):
        run = check(("1 max_restarts=9", "join a"))
        for _ in range(MOST_IN_ROW):
            run.suspects("a", 0, source=source, limit_s=5.0)
            run.judges()
            run.passes(SETTLE_S)
            run.join("a")
        names += [message_fields(run.reasons("warning")[0], words.limit_doubted)["setting"]]
    assert names == ["--silence-timeout", "--log-rule", words.limit_of("own"), "--progress-timeout"]
