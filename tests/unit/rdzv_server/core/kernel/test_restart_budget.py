"""Budget of restarts: their cost, what ends a run, and which failure is to blame."""

import pytest
from rdzv_protocol.messages import Finish, Stop
from rdzv_protocol.queries import CauseSought, FindCause
from rdzv_protocol.words.run import worker_failed

from rdzv_server.core.events import QueryAnswered
from rdzv_server.core.kernel.liveness import HoldUp
from rdzv_server.core.kernel.restart_budget import CAUSE_WINDOW_S
from rdzv_server.core.kernel.run import HISTORY, Stage
from rdzv_server.words import failures as words
from rdzv_server.words import losses
from tests.support.scenario import Scenario, running
from tests.support.stories import check, stories

SUFFERS = "consequence=True"
"""A worker ends because another one has."""
LOST = losses.lost("b", losses.not_back(1))
NO_RESTARTS = words.no_restarts_left(0, None)


def failed(rank: int, node_id: str, verdict: str = "", *, cause: str = "exit code 1", error: str = "") -> str:
    """Return why a round was opened after this failure or, with a verdict, why the run has ended."""
    sentence = worker_failed(node_id, rank, cause, error)
    return words.ends_run(sentence, verdict) if verdict else sentence


def fatal(rank: int, node_id: str) -> str:
    return failed(rank, node_id, words.fatal_exit_code(42), cause="exit code 42")


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
         "reason spare": failed(1, "b", words.no_restarts_left(1, None), cause="SIGKILL"), "first": "a"},
    ),
    "without restarts the first failure ends the run": (
        "1", "join a; fail a exit_code=7",
        {"reason a": failed(0, "a", NO_RESTARTS, cause="exit code 7")},
    ),
    "with a window, only the restarts within it count": (
        "2 max_restarts=2 restart_window_s=100",
        "join a b; fail a; rejoin; 60s; fail a; rejoin; 60s; fail a; rejoin", {"stage": "running"},
        "fail b exit_code=7",
        {"stage": "failed",
         "reason a": failed(1, "b", words.no_restarts_left(2, 100), cause="exit code 7")},
    ),
    "a restart that has just left the window counts no more": (
        "2 max_restarts=1 restart_window_s=100", "join a b; fail a; rejoin; 100s; fail b; rejoin",
        {"stage": "running", "ledger": "worker_failure! worker_failure!"},
    ),
    "a run that waits for a cause continues if the window has moved on meanwhile": (
        "2 max_restarts=1 restart_window_s=100", f"join a b; fail a; rejoin; 99.5s; fail b {SUFFERS}; renew a",
        {"stage": "running"}, f"{CAUSE_WINDOW_S}s", {"stop": "a b"}, "rejoin",
        {"ledger": "worker_failure! worker_failure!"},
    ),
    # fatal exit codes
    "a fatal exit code fails the run with any budget": (
        "2 max_restarts=10 fatal_exit_codes=(42,)", "join a b; fail a exit_code=42",
        {"stage": "failed", "reason b": fatal(0, "a")},
    ),
    "it is fatal while the round stops already, and the first failure is to blame": (
        "2 max_restarts=10 fatal_exit_codes=(42,)", "join a b; fail a; fail b exit_code=42",
        {"stage": "failed", "reason a": fatal(1, "b"), "blamed": "a"},
    ),
    "it is fatal though its report was overtaken by its agent's join": (
        "2 max_restarts=5 fatal_exit_codes=(42,)", "join a b; fail a; join b; fail b round=1 exit_code=42",
        {"stage": "failed"},
    ),
    # rules of the user
    "a failure by a fatal rule fails the run with any budget": (
        "2 max_restarts=10", "join a b; fail a verdict=fatal rule=bad.record",
        {"stage": "failed",
         "reason b": failed(0, "a", words.fatal_rule("bad.record"))},
    ),
    "a failure by a retry rule costs nothing, also without a budget": (
        "2", "join a b; fail a verdict=retry rule=store; rejoin; fail b verdict=retry rule=store; rejoin",
        {"stage": "running", "ledger": "retried retried"},
    ),
    "a fatal exit code goes before a retry rule": (
        "2 fatal_exit_codes=(42,)", "join a b; fail a verdict=retry exit_code=42", {"stage": "failed"},
    ),
    "a free restart becomes a charged one with the root that is reported later": (
        "2 max_restarts=1", f"join a b; fail a verdict=retry {SUFFERS}; fail b; rejoin",
        {"ledger": "worker_failure!", "why": failed(1, "b")},
    ),
    "and a charged one becomes free": (
        "2 max_restarts=1", f"join a b; fail a {SUFFERS}; fail b verdict=retry; rejoin", {"ledger": "retried"},
    ),
    "a root that the budget cannot pay ends the run though a consequence was retried": (
        "2", f"join a b; fail a verdict=retry {SUFFERS}; fail b",
        {"stage": "failed", "reason a": failed(1, "b", NO_RESTARTS)},
    ),
    "a failure that was to be retried turns out to be a loss's doing": (
        "1:2", "join a b; fail a verdict=retry; lose b; rejoin", {"ledger": "node_lost"},
    ),
    # failures that a restart cannot fix
    "the server warns about such a failure, and restarts all the same": (
        "2 max_restarts=1", "join a b; fail a recurs=at_start", {"stage": "forming"},
    ),
    "or it ends the run": (
        "2 max_restarts=1 fail_when_hopeless=True", "join a b; fail a recurs=at_start",
        {"stage": "failed",
         "reason b": failed(0, "a", words.hopeless(words.restart_useless(words.FAILED_AT_START)))},
    ),
    "also when a consequence was reported first": (
        "2 max_restarts=1 fail_when_hopeless=True", f"join a b; fail b {SUFFERS}; fail a recurs=at_start",
        {"stage": "failed"},
    ),
    # membership changes are free
    "a loss is not charged": ("1:3", "join a b c; lose b; rejoin", {"ranks": "a c", "ledger": "node_lost"}),
    "an operator's drain of another node does not explain the failure before it": (
        "1:2 max_restarts=1", "join a b; fail a; drain b; leave b; join a", {"ranks": "a", "ledger": "worker_failure!"},
    ),
    "nor does the drain of an agent that does not know how to drain": (
        "1:2 max_restarts=1", "join a; join b drains=False; join a; fail a; drain b; join a",
        {"ranks": "a", "ledger": "worker_failure!"},
    ),
    "nor one of the node whose worker failed": (
        "1:2 max_restarts=1", "join a b; fail b; drain b; leave b; join a", {"ranks": "a", "ledger": "worker_failure!"},
    ),
    "nor the loss of the drained node, which may follow from the drain": (
        "1:2 max_restarts=1", "join a b; fail a; drain b; lose b; join a", {"ranks": "a", "ledger": "worker_failure!"},
    ),
    "the loss of a drained node explains a failure that shows a loss": (
        "1:2 max_restarts=1", "join a b; fail a consequence=True; drain b; lose b; join a",
        {"ranks": "a", "ledger": "node_lost"},
    ),
    "a drain that was announced before the failure explains it": (
        "1:2 max_restarts=1 notice_timeout_s=20", "join a b; drain b deadline_s=300; fail a consequence=True; leave b",
        {"drain": ""}, "join a", {"ranks": "a", "ledger": "node_drained"},
    ),
    "a leave is not charged": ("1:3", "join a b c; leave b; rejoin", {"ranks": "a c", "ledger": "node_left"}),
    "an arrival is not charged": ("1:2", "join a; form; join b; rejoin", {"ranks": "a b", "ledger": "node_arrived"}),
    "a failure turns out to be a loss's doing": (
        "1:3 max_restarts=1", "join a b c; fail a; lose b; rejoin",
        {"ledger": "node_lost", "why": LOST},
    ),
    "a failure turns out to be a leave's doing": (
        "1:3 max_restarts=1", "join a b c; fail a; leave b; rejoin",
        {"ledger": "node_left", "why": losses.left("b", "SIGTERM")},
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
        {"refused": "StaleRound", "refusal": words.round_over(1, "run", "b")},
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
    "a report from an unknown or a departed agent is fenced": (
        "1:2", "join a b; leave b; refused fail unknown round=1", {"refused": "AgentFenced"},
        "refused fail b round=1", {"refused": "AgentFenced"},
        "refused succeed unknown round=1", {"refused": "AgentFenced"},
        "refused succeed b round=1", {"refused": "AgentFenced"},
    ),
})  # fmt: skip
def test_budget(story):
    check(story)


def test_a_failure_stops_every_node_in_the_same_instant():
    run = running("3", "a", "b", "c", max_restarts=1)
    run.fails("b", exit_code=3)
    assert run.told(Stop) == set(run.woken()) == set("abc")
    assert run.directive("a") == Stop(round=1, reason=failed(1, "b", cause="exit code 3"))


def test_every_node_logs_whether_the_restart_is_charged():
    run = running("2", "a", "b", max_restarts=1)
    run.fails("b")
    run.join("a", "b")
    assert {run.assignment(name).restart_count for name in "ab"} == {run.run.restart_count} == {1}


def test_every_node_logs_how_many_restarts_count():
    run = running("1", "a", max_restarts=2, restart_window_s=15.0)
    counted = []
    for _ in range(3):
        run.fails("a")
        run.join("a")
        place = run.assignment("a")
        counted.append((place.restart_count, place.used_restarts))
        run.now += 10.0
    assert counted == [(1, 1), (2, 2), (3, 2)]


def test_the_end_brings_the_failures_evidence_to_every_node():
    run = running("2", "a", "b")
    run.fails("b")
    finish = run.directive("a")
    assert isinstance(finish, Finish) and not finish.succeeded
    assert (finish.failure.node_id, run.run.end_failure.node_id) == ("b", "b")
    assert finish.failure.stderr_tail == ("Traceback", "Boom on b")


# Blame.


@stories({
    # the root of a round
    "the first failure": ("3 max_restarts=1", "join a b c; fail a; fail b; fail c", {"blamed": "a"}),
    "of consequences alone the first": (
        "3 max_restarts=1", f"join a b c; fail b {SUFFERS}; fail a {SUFFERS}", {"blamed": "b"},
    ),
    "a failure of its own, though a consequence was reported before": (
        "3 max_restarts=1", f"join a b c; fail b {SUFFERS}; fail a error=boom; fail c", {"blamed": "a", "first": "a"},
        "join a b c", {"ledger": "worker_failure!", "why": failed(0, "a", error="boom")},
    ),
    "that of a later round does not touch the first failure of the run": (
        "3 max_restarts=5", f"join a b c; fail b {SUFFERS}; join a b c; fail c {SUFFERS}; fail a",
        {"blamed": "a", "first": "b"},
    ),
    "a departure still explains what a cause was found for": (
        "1:3 max_restarts=1", f"join a b c; fail b {SUFFERS}; lose c; fail a; join a b",
        {"ledger": "node_lost", "why": losses.lost("c", losses.not_back(1))},
    ),
    # a run without restarts left
    "a consequence alone does not end the run at once": (
        "3", f"join a b c; fail b {SUFFERS}", {"stage": "running", "start": "a b c"},
    ),
    "without a cause the run ends over the consequence": (
        "3", f"join a b c; fail b {SUFFERS}; {CAUSE_WINDOW_S / 2}s; fail c {SUFFERS}; {CAUSE_WINDOW_S / 2 - 0.01}s",
        {"stage": "running"}, "0.01s", {"reason a": failed(1, "b", NO_RESTARTS), "blamed": "b"},
    ),
    "the run does not wait for a cause when every node has reported": (
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
        "1:4 scale_up_window_s=0.1", f"join a b; form; fail b {SUFFERS}; renew a; join c; {CAUSE_WINDOW_S}s",
        {"stage": "failed"},
    ),
    "the work of the others is no success": (
        "2", f"join a b; fail b {SUFFERS}; succeed a", {"stage": "running"}, f"{CAUSE_WINDOW_S}s", {"stage": "failed"},
    ),
})  # fmt: skip
def test_the_root(story):
    check(story)


def test_a_consequence_asks_the_other_agents_for_a_sign_of_life():
    run = running("3", "a", "b", "c")
    run.woken()
    run.fails("b", consequence=True)
    assert set(run.woken()) == set("ac")
    run.fails("c", consequence=True)
    assert not run.woken()


def test_a_worker_that_has_lost_another_one_does_not_count_as_a_failure_of_its_node():
    run = running("3", "a", "b", "c", max_restarts=1)
    run.fails("a", consequence=True)
    run.fails("b")
    run.fails("c", consequence=True)
    assert run.run.failures_by_node == {"b": 1}
    assert len(run.run.failures) == 3


def test_a_consequence_ends_no_run_before_agents_with_a_fresh_lease_after_trouble_of_the_server_are_heard():
    """Their leases are new, but the server has not heard them since the failure: one of them may report the cause."""
    run = running("3", "a", "b", "c", lease_s=10.0)
    run.fails("a", consequence=True)
    run.now += 6.0
    run.run.leases.resume(run.now, HoldUp(silent_s=6.0))
    run.renews("b")
    run.passes(3.0)
    assert run.stage is Stage.RUNNING
    run.renews("c")
    run.passes(CAUSE_WINDOW_S)
    assert run.stage is Stage.FAILED


def test_agents_are_asked_once_for_the_cause_of_a_consequence_that_would_end_the_run():
    run = Scenario("3")
    for name in "abc":
        run.join(name, queries=() if name == "c" else ("find_cause",))
    run.fails("b", consequence=True)
    assert [*run.asked(FindCause)] == ["a"], "c is older, and b has failed"
    run.handle(QueryAnswered("a", run.asked(FindCause)["a"].number, CauseSought(found=False)))
    run.now += CAUSE_WINDOW_S / 2
    run.renews("a")
    assert not run.asked(FindCause)


def test_agents_are_not_asked_for_a_cause_that_is_known_or_that_a_restart_will_find():
    for max_restarts, changes in ((0, {}), (1, {"consequence": True})):
        run = Scenario("2", max_restarts=max_restarts)
        for name in "ab":
            run.join(name, queries=("find_cause",))
        run.fails("b", **changes)
        assert not run.asked(FindCause)


@pytest.mark.parametrize("consequence", [True, False])
def test_agents_that_stop_after_a_consequence_are_asked_for_the_cause(consequence):
    run = running("2", "a", "b", max_restarts=1)
    run.fails("b", consequence=consequence)
    assert run.directive("a").seeks_cause == consequence


def test_agents_that_stop_without_a_failure_are_not_asked_for_a_cause():
    run = running("2", "a", "b", max_restarts=1)
    run.leaves("b")
    assert not run.directive("a").seeks_cause


def test_the_cause_ends_the_run_at_once():
    run = running("3", "a", "b", "c")
    run.fails("b", consequence=True)
    run.fails("a", error="ValueError: boom")
    assert set(run.woken()) == set("abc")
    finish = run.directive("c")
    assert finish.reason == failed(0, "a", NO_RESTARTS, error="ValueError: boom")
    assert finish.failure.node_id == "a"
    assert [other.node_id for other in finish.others] == ["b"]


def test_the_root_cause_is_kept_when_other_failures_fill_the_record():
    names = [f"n{index}" for index in range(20)]
    run = running("20", *names, max_restarts=1)
    for name in names[1:]:
        run.fails(name, consequence=True)
    run.fails("n0")
    assert run.run.first_of_round.agent_id == "n0"
    assert "n0" in [record.agent_id for record in run.run.failures]


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


def test_if_every_node_of_a_round_fails_the_first_failures_are_kept():
    names = [f"n{index}" for index in range(20)]
    run = running("20", *names, max_restarts=1)
    for name in names:
        run.fails(name)
    assert run.stage is Stage.FORMING
    assert [record.agent_id for record in run.run.failures] == names[:8]
    assert sum(run.run.failures_by_node.values()) == 20
