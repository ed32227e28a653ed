"""Which of a round's failures its end is blamed on, and how long a consequence waits for its cause."""

from rdzv_server.core.root_cause import CAUSE_WINDOW_S
from tests.support.scenario import running
from tests.support.stories import check, stories

SUFFERS = "consequence=True"
"""A worker ends because another one is gone."""
SPENT = "failed: exit code 1; no restarts left: 0 of 0 used"


@stories({
    # the root of a round
    "the first failure": ("3 max_restarts=1", "join a b c; fail a; fail b; fail c", {"blamed": "a"}),
    "of consequences alone the first": (
        "3 max_restarts=1", f"join a b c; fail b {SUFFERS}; fail a {SUFFERS}", {"blamed": "b"},
    ),
    "a failure of its own, though a consequence was reported before": (
        "3 max_restarts=1", f"join a b c; fail b {SUFFERS}; fail a error=boom; fail c", {"blamed": "a", "first": "a"},
        "join a b c", {"ledger": "worker_failure!", "why": "worker rank 0 on node a failed: exit code 1: boom"},
    ),
    "that of a later round does not touch the first failure of the run": (
        "3 max_restarts=5", f"join a b c; fail b {SUFFERS}; join a b c; fail c {SUFFERS}; fail a",
        {"blamed": "a", "first": "b"},
    ),
    "a departure still explains what a cause was found for": (
        "1:3 max_restarts=1", f"join a b c; fail b {SUFFERS}; lose c; fail a; join a b",
        {"ledger": "node_lost", "why": "node c lost: its connection closed and other nodes' workers failed"},
    ),
    # a run without restarts left
    "a consequence alone does not end the run at once": (
        "3", f"join a b c; fail b {SUFFERS}", {"stage": "running", "start": "a b c"},
    ),
    "without a cause the run ends over the consequence": (
        "3", f"join a b c; fail b {SUFFERS}; {CAUSE_WINDOW_S / 2}s; fail c {SUFFERS}; {CAUSE_WINDOW_S / 2 - 0.01}s",
        {"stage": "running"}, "0.01s", {"reason a": f"worker rank 1 on node b {SPENT}", "blamed": "b"},
    ),
    "nobody waits for a cause when every node has reported": (
        "2", f"join a b; fail a {SUFFERS}; fail b {SUFFERS}", {"stage": "failed"},
    ),
    "nor when there is one node": ("1", f"join a; fail a {SUFFERS}", {"stage": "failed"}),
    "nor for that of a fatal exit code": (
        "2 fatal_exit_codes=(42,)", f"join a b; fail a {SUFFERS} exit_code=42", {"stage": "failed"},
    ),
    "a loss is a cause and makes the restart free": (
        f"1:2 disconnect_grace_s={CAUSE_WINDOW_S / 2}", f"join a b; fail b {SUFFERS}; lose a", {"stop": "b"},
        f"join b; {10 * CAUSE_WINDOW_S}s", {"ranks": "b", "ledger": "node_lost"},
    ),
    "so is a leave": (
        "1:2", f"join a b; fail b {SUFFERS}; leave a", {"stop": "b"},
        f"join b; {10 * CAUSE_WINDOW_S}s", {"ranks": "b", "ledger": "node_left"},
    ),
    "an arrival meanwhile is no way out": (
        "1:4 scale_up_window_s=0.1", f"join a b; form; fail b {SUFFERS}; join c; {CAUSE_WINDOW_S}s",
        {"stage": "failed"},
    ),
    "the work of the others is no success": (
        "2", f"join a b; fail b {SUFFERS}; succeed a", {"stage": "running"}, f"{CAUSE_WINDOW_S}s", {"stage": "failed"},
    ),
})  # fmt: skip
def test_the_root(story):
    check(story)


def test_the_cause_ends_the_run_at_once():
    run = running("3", "a", "b", "c")
    run.fails("b", consequence=True)
    run.fails("a", error="ValueError: boom")
    assert set(run.woken()) == set("abc")
    finish = run.directive("c")
    assert finish.reason == (
        "worker rank 0 on node a failed: exit code 1: ValueError: boom; no restarts left: 0 of 0 used"
    )
    assert finish.failure.node_id == "a"
    assert [other.node_id for other in finish.others] == ["b"]


def test_the_root_of_a_large_round_is_kept_though_the_others_fill_the_record():
    names = [f"n{index}" for index in range(20)]
    run = running("20", *names, max_restarts=1)
    for name in names[1:]:
        run.fails(name, consequence=True)
    run.fails("n0")
    assert run.run.first_of_round.agent_id == "n0"
    assert "n0" in [record.agent_id for record in run.run.failures]
