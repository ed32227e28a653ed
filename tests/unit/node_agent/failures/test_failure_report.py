"""What a failed agent leaves behind: colours, the box in one piece, and the error file for whoever started it."""

import json
import os
import pty

import pytest

from node_agent.config import AgentConfig
from node_agent.core.command import Command
from node_agent.core.effects import LeaveEvidence
from node_agent.failures import failure_report
from node_agent.failures.report import Mark
from tests.unit.node_agent.sheet import Sheet
from tests.unit.node_agent.story import a_failure, finish

LINES = [(Mark.TITLE, "train.py FAILED"), (Mark.TEXT, "[0]:")]


def config(**environment: str) -> AgentConfig:
    return AgentConfig(
        command=Command(("python", "-u", "train.py")), nproc=1, run_id="r", node_id="a", environment=environment
    )


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path / "new" / "agent.json")


@pytest.fixture
def said() -> list[str]:
    return []


def leave(effect: LeaveEvidence, path: str, said: list[str], recorded: str = "") -> dict:
    failure_report.write_error_file(effect, config(TORCHELASTIC_ERROR_FILE=path), recorded, said.append)
    with open(path) as file:
        return dict(json.load(file)["message"])


# The console.


async def test_the_box_is_written_in_one_piece():
    sheet = Sheet()
    failure_report.show_report(finish(succeeded=False, failure=a_failure()), config(), "/logs", sheet)
    ((fd, box),) = sheet.chunks
    assert fd == 2
    assert box.startswith(b"=====") and b"\ntrain.py FAILED\n" in box and box.endswith(b"=====\n")
    assert b"\nLogs of node a: /logs\n" in box
    assert b"\x1b" not in box


def test_a_terminal_gets_colours_and_a_pipe_does_not():
    assert failure_report.paint(LINES, is_coloured=True) == b"\x1b[1;31mtrain.py FAILED\x1b[0m\n[0]:\n"
    assert failure_report.paint(LINES, is_coloured=False) == b"train.py FAILED\n[0]:\n"


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({}, False),
    ],
)
def test_who_wants_colours(environment, coloured):
    ours, terminal = pty.openpty()
    reader, pipe = os.pipe()
    try:
        assert failure_report.wants_colour(environment, terminal) is coloured
        assert not failure_report.wants_colour(environment, pipe)
    finally:
        for descriptor in (ours, terminal, reader, pipe):
            os.close(descriptor)


@pytest.mark.parametrize(
    ("program", "name"),
    [
        (("/usr/bin/python3", "-u", "train.py"), "train.py"),
        (("/usr/bin/python3", "-u", "-m", "train.main"), "train.main"),
        (("/usr/bin/train",), "/usr/bin/train"),
        ((), ""),
    ],
)
def test_the_box_is_named_after_the_script(program, name):
    assert failure_report.name_of(Command(program)) == name


# The error file.


def test_the_failed_workers_own_file_is_passed_on(path, said, tmp_path):
    recorded = tmp_path / "error.json"
    recorded.write_text(
        json.dumps({"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "x" * 9_999}}})
    )
    effect = LeaveEvidence("spent", finish(succeeded=False, failure=a_failure(exit_code=-11)))
    message = leave(effect, path, said, str(recorded))
    assert message == {"message": "ValueError: boom", "extraInfo": {"py_callstack": "x" * 9_999}, "errorCode": -11}


def test_without_one_it_is_made_of_the_evidence(path, said):
    failure = a_failure(
        node_id="b", error="ValueError: boom", traceback=("Traceback", "ValueError: boom"), failed_at=7.5
    )
    message = leave(LeaveEvidence("spent", finish(succeeded=False, failure=failure)), path, said)
    assert message == {
        "message": "ValueError: boom",
        "errorCode": 5,
        "extraInfo": {"py_callstack": "Traceback\nValueError: boom", "timestamp": "7"},
    }


def test_a_worker_that_was_killed_is_told_by_its_signal(path, said):
    killed = a_failure(exit_code=-9, cause="signal 9 (SIGKILL): out of memory", stderr_tail=("step 1",))
    message = leave(LeaveEvidence("spent", finish(succeeded=False, failure=killed)), path, said)
    assert (message["message"], message["errorCode"]) == ("signal 9 (SIGKILL): out of memory", -9)
    assert message["extraInfo"]["py_callstack"] == "step 1"


def test_what_ended_the_run_is_told_and_not_what_began_it(path, said):
    """As torchrun does, which tells of its last attempt."""
    end = finish(succeeded=False, first_failure=a_failure(error="first"), failure=a_failure(error="last"))
    assert leave(LeaveEvidence("spent", end), path, said)["message"] == "last"


def test_an_agents_own_error_has_no_exit_code(path, said):
    message = leave(LeaveEvidence("SettingsConflict: --nnodes is 2 here, not 3"), path, said)
    assert message["message"] == "SettingsConflict: --nnodes is 2 here, not 3"
    assert "errorCode" not in message
    assert int(message["extraInfo"]["timestamp"]) > 1_700_000_000


def test_without_the_variable_nothing_is_written(tmp_path, said):
    for environment in ({}, {"TORCHELASTIC_ERROR_FILE": ""}):
        failure_report.write_error_file(LeaveEvidence("boom"), config(**environment), "", said.append)
    assert said == []
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("path", ["/proc/no/such/file", "/", "nul\0"])
def test_a_file_that_cannot_be_written_is_one_line(path, said):
    failure_report.write_error_file(LeaveEvidence("boom"), config(TORCHELASTIC_ERROR_FILE=path), "", said.append)
    assert len(said) == 1
    assert said[0].startswith(f"cannot write the error file {path} (TORCHELASTIC_ERROR_FILE): ")


def test_times_are_torchruns():
    assert len(failure_report.local_time(1_750_000_000.9)) == len("2025-06-15_15:06:40")
    assert failure_report.local_time(1_750_000_000.9) == failure_report.local_time(1_750_000_000)
