"""What a restart costs, and what ends a run."""

from rdzv_protocol.messages import Finish, Stop

from rdzv_server.core.run import HISTORY, Stage
from tests.support.scenario import running
from tests.support.stories import check, stories

FATAL = "exit code 42; exit code 42 is fatal for this run"


@stories({
    # one charge a round
    "a failure is charged once the next round completes": (
        "3 max_restarts=1", "join a b c; fail b", {"ledger": ""}, "rejoin", {"ledger": "worker_failure!"},
    ),
    "a round is charged once however many workers fail": (
        "3 max_restarts=1", "join a b c; fail a; fail b; fail c; rejoin",
        {"ledger": "worker_failure!", "start": "a b c"},
    ),
    "a repeated report counts once": ("2 max_restarts=1", "join a b; fail a; ignored fail a", {"stop": "a b"}),
    "each failed round is charged": (
        "2 max_restarts=3", "join a b; fail a; rejoin; fail a; rejoin; fail a; rejoin",
        {"ledger": "worker_failure! worker_failure! worker_failure!"},
    ),
    # the end of the budget
    "a spent budget fails the run everywhere at once": (
        "2 max_restarts=1", "join a b spare; fail a; rejoin; fail b cause=SIGKILL",
        {"stage": "failed", "finish": "a b spare", "woken": "a b spare",
         "reason spare": "worker rank 1 on node b failed: SIGKILL; no restarts left: 1 of 1 used", "first": "a"},
    ),
    "without restarts the first failure ends the run": (
        "1", "join a; fail a exit_code=7",
        {"reason a": "worker rank 0 on node a failed: exit code 7; no restarts left: 0 of 0 used"},
    ),
    # fatal exit codes
    "a fatal exit code fails the run whatever the budget": (
        "2 max_restarts=10 fatal_exit_codes=(42,)", "join a b; fail a exit_code=42",
        {"stage": "failed", "reason b": f"worker rank 0 on node a failed: {FATAL}"},
    ),
    "it is fatal while the round stops already, and the first failure is to blame": (
        "2 max_restarts=10 fatal_exit_codes=(42,)", "join a b; fail a; fail b exit_code=42",
        {"stage": "failed", "reason a": f"worker rank 1 on node b failed: {FATAL}", "blamed": "a"},
    ),
    "it is fatal though its report was overtaken by its agent's join": (
        "2 max_restarts=5 fatal_exit_codes=(42,)", "join a b; fail a; join b; fail b round=1 exit_code=42",
        {"stage": "failed"},
    ),
    # membership changes are free
    "a loss is not charged": ("1:3", "join a b c; lose b; rejoin", {"ranks": "a c", "ledger": "node_lost"}),
    "a leave is not charged": ("1:3", "join a b c; leave b; rejoin", {"ranks": "a c", "ledger": "node_left"}),
    "an arrival is not charged": ("1:2", "join a; form; join b; rejoin", {"ranks": "a b", "ledger": "node_arrived"}),
    "a failure turns out to be a loss's doing": (
        "1:3 max_restarts=1", "join a b c; fail a; lose b; rejoin",
        {"ledger": "node_lost", "why": "node b lost: its connection closed and other nodes' workers failed"},
    ),
    "a failure turns out to be a leave's doing": (
        "1:3 max_restarts=1", "join a b c; fail a; leave b; rejoin",
        {"ledger": "node_left", "why": "node b left: SIGTERM"},
    ),
    "a restart for an arrival is counted as the departure that overtook it": (
        "1:3", "join a b; form; join c; lose b; rejoin", {"ranks": "a c", "ledger": "node_lost"},
    ),
    "a departure after the next round has completed is a change of its own": (
        "1:3 max_restarts=1", "join a b c; fail a; rejoin; lose b; rejoin", {"ledger": "worker_failure! node_lost"},
    ),
    "a standby that goes does not excuse a failure": (
        "2 max_restarts=1", "join a b spare; fail a; leave spare; rejoin", {"ledger": "worker_failure!"},
    ),
    "a failure after a loss is the loss's doing, and remembered all the same": (
        "1:3", "join a b c; lose b; fail a; rejoin", {"ranks": "a c", "ledger": "node_lost", "first": "a"},
    ),
    # stale reports
    "a report about an earlier round is stale": (
        "2 max_restarts=5", "join a b; fail a; rejoin; refused fail b round=1",
        {"refused": "StaleRound", "refusal": "round 1 of run run is over for node b"},
        "refused succeed b round=1", {"refused": "StaleRound"},
    ),
    "a report that its agent's join overtook is evidence and changes nothing else": (
        "2 max_restarts=5", "join a b; fail a; join b; fail b round=1; ignored fail b round=1",
        {"failed": "a b", "first": "a", "wait": "b", "stop": "a"}, "join a", {"ledger": "worker_failure!"},
    ),
    "a standby's report about a round before is stale": (
        "1:2 max_restarts=5", "join a b; fail a; join b; lose a", {"ranks": "b"},
        "refused fail b round=1", {"refused": "StaleRound"},
    ),
    "a report from a stranger or a departed agent is fenced": (
        "1:2", "join a b; leave b; refused fail stranger round=1", {"refused": "AgentFenced"},
        "refused fail b round=1", {"refused": "AgentFenced"},
        "refused succeed stranger round=1", {"refused": "AgentFenced"},
        "refused succeed b round=1", {"refused": "AgentFenced"},
    ),
})  # fmt: skip
def test_budget(story):
    check(story)


def test_a_failure_stops_every_node_in_the_same_instant():
    run = running("3", "a", "b", "c", max_restarts=1)
    run.fails("b", exit_code=3)
    assert run.told(Stop) == set(run.woken()) == set("abc")
    assert run.directive("a") == Stop(round=1, reason="worker rank 1 on node b failed: exit code 3")


def test_the_charge_is_told_to_every_node():
    run = running("2", "a", "b", max_restarts=1)
    run.fails("b")
    run.join("a", "b")
    assert {run.assignment(name).restart_count for name in "ab"} == {run.run.restart_count} == {1}


def test_the_end_brings_the_failures_evidence_to_every_node():
    run = running("2", "a", "b")
    run.fails("b")
    finish = run.directive("a")
    assert isinstance(finish, Finish) and not finish.succeeded
    assert (finish.failure.node_id, run.run.end_failure.node_id) == ("b", "b")
    assert finish.failure.stderr_tail == ("Traceback", "Boom on b")


# Memory is bounded, counters are not.


def test_the_ledger_forgets_but_the_counters_do_not():
    run = running("1", "a", max_restarts=1_000)
    for _ in range(HISTORY + 10):
        run.fails("a")
        run.join("a")
    assert len(run.run.ledger) == len(run.run.failures) == HISTORY
    assert run.run.restart_count == run.run.failures_by_node["a"] == HISTORY + 10
    assert run.run.first_failure.round == 1


def test_restarts_are_counted_by_cause():
    run = check(("1:3 max_restarts=5", "join a b c; fail a; rejoin; leave c; rejoin; fail a; rejoin"))
    assert run.run.restarts == {"worker_failure": 2, "node_left": 1}


def test_of_a_round_where_every_node_fails_the_first_failures_are_kept():
    names = [f"n{index}" for index in range(20)]
    run = running("20", *names, max_restarts=1)
    for name in names:
        run.fails(name)
    assert run.stage is Stage.FORMING
    assert [record.agent_id for record in run.run.failures] == names[:8]
    assert sum(run.run.failures_by_node.values()) == 20
