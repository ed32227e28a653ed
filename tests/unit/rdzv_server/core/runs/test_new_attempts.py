"""Joins that begin another attempt of their run."""

import pytest
from rdzv_protocol.errors import (
    RunFailed,
    RunSucceeded,
    SettingsConflict,
)
from rdzv_protocol.errors import RunStopped as RunWasStopped

from rdzv_server.core.events import RunStopped
from rdzv_server.core.kernel.run import Stage
from rdzv_server.words import admission, attempts, runs
from tests.support.message_search import pattern
from tests.support.scenario import ManyRuns, settings_of


@pytest.fixture
def server():
    return ManyRuns()


# The next agent.


ENDS = {"succeeds": "succeeded", "fails": "failed", "leaves": "failed"}


ONE, TWO = ({"settings": settings_of(nodes, max_restarts=0)} for nodes in ("1", "2"))


NOBODYS = {"explicit": False}


@pytest.mark.parametrize(
    ("ends", "first", "second", "stage"),
    [
        ("succeeds", {}, {"rerun": True}, "running"),
        ("succeeds", NOBODYS, NOBODYS, "running"),
        ("succeeds", {}, NOBODYS, "running"),
        ("succeeds", NOBODYS, {}, "running"),
        ("fails", {}, {}, "running"),
        ("fails", ONE, TWO, "forming"),
        ("leaves", ONE, TWO, "forming"),
        ("leaves", NOBODYS, NOBODYS, "running"),
    ],
    ids=[
        "--rerun", "no run id was given", "nor is one given now", "nor was one given then", "after a failure",
        "which may have other settings", "in place of a deserted one with other settings",
        "in place of a deserted run without an explicit id",
    ],
)  # fmt: skip
def test_a_new_agent_begins_a_new_attempt(server, ends, first, second, stage):
    server.join("a", **first)
    getattr(server, ends)("a")
    server.join("b", **second)
    assert server.attempts() == [("run", 1, Stage(ENDS[ends])), ("run", 2, Stage(stage))]


def test_a_named_deserted_run_continues_with_its_next_agent(server):
    server.join("a", settings=settings_of("1", max_restarts=1))
    server.leaves("a")
    server.join("b", settings=settings_of("1", max_restarts=1))
    (run,) = server.registry.runs()
    assert (run.attempt, run.round) == (1, 2)


def test_an_unfit_node_does_not_begin_an_attempt_of_a_failed_run(server):
    server.join("a")
    server.fails("a")
    with pytest.raises(RunFailed):
        server.join("b", unfit="node b is unfit: no GPU")
    assert [attempt for _, attempt, _ in server.attempts()] == [1]


def test_the_deserted_attempt_ends_when_a_new_one_begins(server):
    server.join("a", explicit=False)
    server.leaves("a")
    server.join("b", explicit=False)
    old, new = server.registry.runs()
    assert (old.stage, old.end_reason) == (Stage.FAILED, runs.superseded(has_agents=False))
    assert new.stage is Stage.RUNNING


# After an operator's stop.


@pytest.mark.parametrize("restarts", [False, True])
def test_a_late_agent_of_a_stopped_run_does_not_start_it_again(server, restarts):
    server.join("a")
    server.handle("run", RunStopped("wrong data", "admin", "1"))
    known = server.restarted() if restarts else server
    with pytest.raises(RunWasStopped, match=pattern(attempts.was_stopped, run_id="run")):
        known.join("late")
    assert len(known.registry.runs()) == 1
    known.join("late", rerun=True)
    known.join("later")
    assert [attempt for _, attempt, _ in known.attempts()] == [1, 2]


@pytest.mark.parametrize(("first", "late"), [(NOBODYS, NOBODYS), (NOBODYS, {}), ({}, NOBODYS)])
def test_a_stopped_run_without_an_explicit_id_has_a_new_attempt(server, first, late):
    server.join("a", **first)
    server.handle("run", RunStopped("", "admin", "1"))
    server.join("b", **late)
    assert [attempt for _, attempt, _ in server.attempts()] == [1, 2]


# After a success.


def test_a_late_agent_of_a_succeeded_run_gets_its_outcome(server):
    server.join("a")
    server.succeeds("a")
    with pytest.raises(RunSucceeded, match=pattern(attempts.already_succeeded, run_id="run")):
        server.join("late")


def test_another_program_does_not_get_the_runs_success(server):
    server.join("a", program="train.py")
    server.succeeds("a")
    refused = pattern(admission.other_program("run", "train.py", "a", "eval.py", "late"))
    with pytest.raises(SettingsConflict, match=refused):
        server.join("late", program="eval.py")
    with pytest.raises(RunSucceeded):
        server.join("late", program="train.py")
    server.join("late", program="eval.py", rerun=True)


def test_another_command_does_not_get_the_runs_success(server):
    server.join("a", program="train.py", command="00000001")
    server.succeeds("a")
    refused = pattern(admission.succeeded_with_another("run", "a", "train.py", "program"))
    for known in (server, server.restarted()):
        with pytest.raises(SettingsConflict, match=refused):
            known.join("sweep", program="train.py", command="00000002")
        with pytest.raises(RunSucceeded):
            known.join("late", program="train.py", command="00000001")
    server.join("sweep", program="train.py", command="00000002", rerun=True)
    assert len(server.registry.runs()) == 2


@pytest.mark.parametrize("late", ["", "00000002"])
@pytest.mark.parametrize("first", ["", "00000001"])
def test_an_unknown_command_or_a_nameless_function_is_compared_by_its_known_parts(server, first, late):
    server.join("a", command=first)
    server.succeeds("a")
    with pytest.raises(SettingsConflict if first and late else RunSucceeded):
        server.join("late", command=late)


def test_a_late_command_is_not_compared_if_the_nodes_commands_already_differ(server):
    for node, command in (("a", "00000001"), ("b", "00000002")):
        server.join(
            node, node=node, program="train.py", command=command, settings=settings_of("2:3", last_call_timeout_s=1.0)
        )
    server.passes(2.0)
    for node in "ab":
        server.succeeds(node)
    with pytest.raises(RunSucceeded):
        server.join(
            "late", program="train.py", command="00000003", settings=settings_of("2:3", last_call_timeout_s=1.0)
        )


def test_a_late_agent_of_another_role_or_of_a_script_of_its_node_gets_the_outcome(server):
    settings = settings_of("1:2", last_call_timeout_s=1.0)
    server.join("a", program="node1.sh", command="00000001", settings=settings)
    server.passes(2.0)
    server.succeeds("a")
    for changes in ({"program": "node2.sh"}, {"program": "reader.py", "role": "reader"}):
        with pytest.raises(RunSucceeded):
            server.join("late", command="00000002", settings=settings, **changes)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_program_whose_name_differs_by_digits_does_not_get_the_runs_success(server, nodes):
    """One script per node is impossible if the run has one seat, or if its nodes had the same script."""
    settings = settings_of(f"{nodes}")
    for node in "ab"[:nodes]:
        server.join(node, node=node, program="train1.py", command="00000001", settings=settings)
    for node in "ab"[:nodes]:
        server.succeeds(node)
    another = admission.succeeded_with_another("run", "a", "train1.py", "nothing")
    with pytest.raises(SettingsConflict, match=pattern(another)):
        server.join("late", program="train2.py", command="00000002", settings=settings)


def test_the_second_node_of_a_rerun_joins_the_first(server):
    server.join("a")
    server.succeeds("a")
    server.join("b", rerun=True, settings=settings_of("2"))
    server.join("c", rerun=True, settings=settings_of("2"))
    assert server.attempts()[1:] == [("run", 2, Stage.RUNNING)]
