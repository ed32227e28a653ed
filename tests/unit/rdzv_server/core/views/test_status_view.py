"""Status of a run, as an operator reads it."""

import json

import pytest
from msgspec import to_builtins
from msgspec.structs import asdict
from rdzv_protocol.messages import RestartCost
from rdzv_protocol.text import ranks
from rdzv_protocol.words.run import worker_failed

from rdzv_server.core.views import status_view
from rdzv_server.words import completion, failures, finishing, losses, runs
from tests.support.scenario import Scenario, running
from tests.support.stories import check, until

FINISHING = finishing.finishing(ranks([0]), finishing.on_node(ranks([1]), "b"))
SPENT = failures.ends_run(worker_failed("a", 0, "exit code 1", ""), failures.no_restarts_left(0, None))


def view(run):
    return json.loads(json.dumps(to_builtins(status_view.view(run.run, run.now))))


def node(run, node_id):
    (found,) = (node for node in view(run)["nodes"] if node["node_id"] == node_id)
    return found


def missing(more_nodes, stopping="", gone=""):
    why = {
        "round": 1,
        "group_rank": 2,
        "had_ranks": [2, 2],
        "log_dir": "",
        "left": False,
        "cause": losses.not_back(1.0),
        "age_s": 0.0,
    }
    departures = [{"node_id": node_id, "agent_id": node_id, **why} for node_id in gone]
    return {
        "more_nodes": more_nodes,
        "stopping": [*stopping],
        "gone": [*gone],
        "departures": departures,
        "more_gone": 0,
        "refused": {},
    }


@pytest.mark.parametrize(
    ("nodes", "happens", "seen"),
    [
        ("3", "join a; 10s", {
            "phase": "forming", "missing": missing(2), "deadline_s": 590.0,
            "reason": until(completion.too_few(2, 1, 3, "a"), "gives_up", 590), "world_size": 0,
        }),
        ("1:4", "join a b", {"missing": missing(0), "deadline_s": 5.0}),
        ("3", "join a b c; lose c; join a", {
            "phase": "restarting", "missing": missing(2, stopping="b", gone="c"),
        }),
        ("2", "join a b local_world_size=4", {
            "phase": "running", "round": 1, "world_size": 8, "reason": completion.running(1, 2), "min_nodes": 2,
            "max_nodes": 2, "deadline_s": None, "missing": None,
        }),
        ("2 max_restarts=1", "join a b; fail a", {"world_size": 0}),
        ("2", "join a b; succeed a", {
            "phase": "finishing", "reason": completion.running(1, 2, also=[FINISHING]),
        }),
        ("1", "join a; succeed a", {"phase": "succeeded", "reason": runs.succeeded(1)}),
        ("1", "join a; fail a", {
            "phase": "failed", "reason": SPENT,
        }),
    ],
    ids=["forming", "last call", "restarting", "running", "stopping", "finishing", "succeeded", "failed"],
)  # fmt: skip
def test_a_run_shows_its_state_and_the_reason(nodes, happens, seen):
    found = view(check((nodes, happens)))
    assert {name: found[name] for name in seen} == seen


def test_nodes_of_past_rounds_are_not_missing_once_the_next_round_runs():
    run = running("2:3", "a", "b", "c", max_restarts=1)
    run.is_lost("c")
    run.join("a", "b")
    assert view(run)["missing"] is None
    run.fails("a")
    assert view(run)["missing"]["gone"] == []


@pytest.mark.parametrize(
    ("nodes", "happens", "phase_age_s"),
    [
        ("2", "join a; 5s", 5.0),
        ("2", "5s; join a b; 3s", 3.0),
        ("2 max_restarts=1", "join a b; 3s; fail a; 2s", 2.0),
        ("1", "join a; 3s; fail a; 7s", 7.0),
    ],
    ids=["forming", "running", "restarting", "ended"],
)
def test_a_run_shows_since_when_it_is_in_its_state(nodes, happens, phase_age_s):
    assert view(check((nodes, happens)))["phase_age_s"] == phase_age_s


@pytest.mark.parametrize("end", ["succeeds", "fails"])
def test_the_nodes_of_an_ended_run_show_its_end(end):
    run = running("1", "a")
    getattr(run, end)("a")
    assert node(run, "a")["state"] == view(run)["phase"]


def test_nodes_are_listed_by_rank_with_standbys_last():
    run = running("2", "b", "a")
    run.join("0-spare")
    assert [(node["node_id"], node["group_rank"], node["state"]) for node in view(run)["nodes"]] == [
        ("b", 0, "running"),
        ("a", 1, "running"),
        ("0-spare", None, "standby"),
    ]


def test_a_node_shows_its_ranks_address_and_lease():
    run = Scenario("2", lease_s=10)
    run.join("a", "b", local_world_size=4)
    run.passes(3)
    run.disconnects("b")
    seen = node(run, "b")
    assert seen["ranks"] == [4, 7]
    assert (seen["addr"], seen["port"], seen["local_world_size"]) == ("host-b", 29_500, 4)
    assert (seen["lease_age_s"], seen["lease_left_s"]) == (3.0, 7.0)
    assert (seen["connected"], node(run, "a")["connected"]) == (False, True)


def test_an_expired_lease_that_is_not_judged_yet_has_zero_seconds_left():
    run = Scenario("2", lease_s=10)
    run.join("a", "b")
    run.now += 12  # a server that is held up judges later
    assert node(run, "a")["lease_left_s"] == 0.0


def test_a_stopping_node_keeps_showing_its_ranks():
    run = running("2", "a", "b", max_restarts=1)
    run.fails("a")
    seen = node(run, "b")
    assert (seen["state"], seen["group_rank"], seen["ranks"]) == ("stopping", 1, [1, 1])


def test_restarts_are_counted_apart():
    run = running("1:2", "a", "b", max_restarts=3)
    run.fails("a")
    run.join("a", "b")
    run.is_lost("b")
    run.join("a")
    run.join("c")
    run.join("a")
    seen = view(run)
    assert seen["restarts"] == {
        "worker_failure": 1,
        "node_lost": 1,
        "node_left": 0,
        "node_arrived": 1,
        "node_drained": 0,
        "hang": 0,
        "retried": 0,
        "run_restarted": 0,
        "run_resized": 0,
    }
    assert (seen["restart_count"], seen["max_restarts"]) == (1, 3)


def test_the_history_says_what_each_restart_was_for_and_how_long_ago():
    run = running("1:2", "a", "b", max_restarts=3)
    run.fails("a", exit_code=3)
    run.join("a", "b")
    run.passes(60)
    assert view(run)["history"] == [
        {
            "round": 2,
            "cause": "worker_failure",
            "charged": True,
            "reason": worker_failed("a", 0, "exit code 3", ""),
            "age_s": 60.0,
            "took_s": None,
            "cost": asdict(RestartCost()),
        }
    ]


def test_the_first_failure_is_shown_with_its_evidence():
    run = running("2", "a", "b", max_restarts=3)
    traceback = ("Traceback (most recent call last):", "ValueError: boom")
    run.fails("b", exit_code=3, error="ValueError: boom", traceback=traceback, hint="mind the gap")
    run.join("a", "b")
    run.fails("a", exit_code=4)
    run.passes(5)
    seen = view(run)
    assert seen["end_failure"] is None
    assert seen["first_failure"] == {
        "round": 1,
        "node_id": "b",
        "rank": 1,
        "local_rank": 0,
        "pid": 100,
        "exit_code": 3,
        "cause": "exit code 3",
        "error": "ValueError: boom",
        "traceback": ["Traceback (most recent call last):", "ValueError: boom"],
        "stderr_tail": ["Traceback", "Boom on b"],
        "both_streams": False,
        "hint": "mind the gap",
        "consequence": False,
        "error_file": "",
        "blame": "unknown",
        "verdict": "count",
        "rule": "",
        "recurs": "unknown",
        "failed_at": None,
        "singled_out": True,
        "age_s": 5.0,
    }
    assert [failure["node_id"] for failure in seen["failures"]] == ["b", "a"]
    assert node(run, "b")["failures"] == 1


def test_departures_distinguish_nodes_that_left_from_lost_nodes():
    run = running("1:3", "a", "b", "c")
    run.leaves("c", "SIGTERM")
    run.is_lost("b")
    run.passes(2)
    gone = {departure["node_id"]: departure for departure in view(run)["departures"]}
    assert gone["c"] == {
        "node_id": "c",
        "agent_id": "c",
        "round": 1,
        "group_rank": 2,
        "had_ranks": [2, 2],
        "left": True,
        "cause": "SIGTERM",
        "age_s": 3.0,
        "log_dir": "",
    }
    assert (gone["b"]["left"], gone["b"]["age_s"]) == (False, 2.0)


def test_the_view_is_plain_json_at_every_stage():
    run = Scenario("2", max_restarts=1, fatal_exit_codes=(42,))
    for happens in (
        lambda: run.join("a"),
        lambda: run.join("b", "spare"),
        lambda: run.fails("a"),
        lambda: run.leaves("b"),
        lambda: run.join("a"),
        lambda: run.fails("a", exit_code=42),
    ):
        happens()
        assert json.loads(json.dumps(view(run)))["run_id"] == "run"
    assert view(run)["settings"]["fatal_exit_codes"] == [42]
    assert view(run)["attempt"] == 1
    assert view(run)["age_s"] == run.now
