"""Nested runs, as the environment describes them."""

import os

import pytest

from node_agent.kernel.workers.nesting import RUNS, Outer, is_part_of, variables, without_outer

SOCKET = "TORCH_WORKER_SERVER_SOCKET"
HEAD, OTHER = ("head", 29400), ("other", 29400)
OUTER = {"HOME": "/root", SOCKET: "/tmp/a/1.server", **variables({}, "none", [HEAD], {SOCKET: "/tmp/a/1.server"})}


def test_variables_made_for_one_worker_are_left_out_unless_changed_since() -> None:
    assert SOCKET not in without_outer(OUTER)
    assert without_outer({**OUTER, SOCKET: "/tmp/mine"})[SOCKET] == "/tmp/mine"
    assert without_outer(OUTER)["HOME"] == "/root"


def test_a_path_of_bytes_that_are_not_utf_8_is_left_out_too() -> None:
    path = {SOCKET: os.fsdecode(b"/tmp/\xff/1.server")}
    assert SOCKET not in without_outer(path | variables({}, "none", [HEAD], path))


def test_the_timer_file_that_torchrun_made_for_its_worker_is_left_out() -> None:
    made = {"TORCHELASTIC_TIMER_FILE": "/tmp/watchdog_timer_01234567-89ab-cdef-0123-456789abcdef"}
    assert without_outer({**made, "TORCHELASTIC_RUN_ID": "none"}) == {"TORCHELASTIC_RUN_ID": "none"}
    assert without_outer(made) == made


def test_a_process_is_part_of_all_runs_around_it() -> None:
    inner = variables(OUTER, "eval", [OTHER, ("more", 1)], {})
    for run_id, server, is_part in (
        ("none", HEAD, True), ("none", OTHER, False),
        ("eval", HEAD, False), ("eval", OTHER, True), ("eval", ("more", 1), True),
    ):  # fmt: skip
        assert is_part_of(inner, run_id, [server], is_inherited=False) is is_part, (run_id, server)


def test_only_the_id_of_torchruns_run_is_known() -> None:
    worker = {"TORCHELASTIC_RUN_ID": "none"}
    assert is_part_of(worker, "none", [HEAD], is_inherited=True)
    assert not is_part_of(worker, "none", [HEAD], is_inherited=False)
    assert not is_part_of(worker, "eval", [HEAD], is_inherited=True)
    assert not is_part_of({**OUTER, **worker}, "none", [OTHER], is_inherited=True)  # the innermost run is the agent's


@pytest.mark.parametrize("text", ["", "{", "[]", '{"runs": 1}', '{"runs": [["a"]]}', '{"given": []}'])
def test_an_unreadable_variable_is_ignored(text: str) -> None:
    assert Outer.of({RUNS: text}) == Outer()
