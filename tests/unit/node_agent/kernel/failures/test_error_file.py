"""Error files: a worker's with any content, and the agent's own."""

import errno
import json
import os
import subprocess
import sys
import time
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent import words
from node_agent.kernel.core.effects import WriteFailureReport
from node_agent.kernel.environment import ERROR_FILE
from node_agent.kernel.failures import error_file
from node_agent.kernel.failures.error_file import ErrorFile
from tests.support.message_search import has_message
from tests.unit.node_agent.story import a_failure, finish

TORCHS = {
    "message": {
        "message": "ValueError: boom",
        "extraInfo": {
            "py_callstack": "Traceback (most recent call last):\nValueError: boom\n",
            "timestamp": "1750000000",
        },
    }
}


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "error.json")


def written(path, content) -> str:
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    with open(path, "wb") as file:
        file.write(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("content", "recorded"),
    [
        (TORCHS, ErrorFile("ValueError: boom", TORCHS["message"]["extraInfo"]["py_callstack"], 1_750_000_000.0)),
        ({"message": "boom", "timestamp": 7}, ErrorFile("boom", "", 7.0)),
        ({"message": "boom\nhere\n"}, ErrorFile("boom\nhere\n", "boom\nhere\n")),
    ],
    ids=["torch's", "a-message-alone", "a-message-of-several-lines"],
)
def test_a_file_is_read(path, content, recorded):
    assert error_file.read(written(path, content)) == recorded


def test_a_missing_error_file_is_not_evidence_and_not_passed_on(path):
    assert error_file.read(path) is error_file.copy(path, 1) is error_file.copy("", 1) is None


@pytest.mark.parametrize(
    ("age_s", "is_before"), [(5.0, True), (0.5, True), (0.0, False), (-5.0, False)], ids=lambda value: str(value)
)
def test_a_file_is_from_before_now_if_it_is_older_than_a_new_one(path, age_s, is_before):
    now = time.monotonic()
    written(path, "{}")
    _set_age(path, age_s)
    assert error_file.is_from_before(path, now) == is_before
    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]


def test_on_a_disk_that_counts_whole_seconds_a_file_has_to_be_older(path):
    written(path, "{}")
    os.utime(path, (int(time.time()),) * 2)
    assert not error_file.is_from_before(path, time.monotonic())
    os.utime(path, (int(time.time()) - 3,) * 2)
    assert error_file.is_from_before(path, time.monotonic())


def test_a_file_is_known_to_be_old_only_beside_a_new_file(path, monkeypatch):
    written(path, "{}")
    _set_age(path, 60.0)
    monkeypatch.setattr(os, "open", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    assert not error_file.is_from_before(path, time.monotonic())


def _set_age(path: str, age_s: float) -> None:
    """Set the time of the file, which is not a whole second afterwards."""
    at_ns = time.time_ns() - int(age_s * 1e9)
    os.utime(path, ns=(at_ns | 1_000_001, at_ns | 1_000_001))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", words.failures.EMPTY),
        (" \n", words.failures.EMPTY),
        ("Traceback", words.failures.NOT_JSON),
        ('{"message": "bo', words.failures.NOT_JSON),
        ("[" * 100_000, words.failures.NOT_JSON),
        ("1" * 10_000, words.failures.NOT_JSON),
        (b"\xff\xfe\x00{", words.failures.NOT_JSON),
        ("[]", words.failures.NO_MESSAGE),
        ("null", words.failures.NO_MESSAGE),
        ("{}", words.failures.NO_MESSAGE),
        ({"message": 5}, words.failures.NO_MESSAGE),
        ({"message": ["boom"]}, words.failures.NO_MESSAGE),
        ("x" * (error_file.MOST_BYTES + 1), words.failures.longer_than(error_file.MOST_BYTES)),
    ],
)
def test_a_broken_file_is_described_and_not_passed_on(path, content, problem):
    assert error_file.read(written(path, content)) == ErrorFile(problem=problem)
    assert error_file.copy(path, 1) is None


@pytest.mark.parametrize(
    ("message", "recorded"),
    [
        ({}, ErrorFile()),
        ({"message": None, "extraInfo": []}, ErrorFile()),
        ({"message": "boom"}, ErrorFile("boom")),
        ({"message": "boom", "extraInfo": {"py_callstack": 5, "timestamp": "soon"}}, ErrorFile("boom")),
        ({"message": "boom", "extraInfo": {"timestamp": float("nan")}}, ErrorFile("boom")),
        ({"message": "boom", "extraInfo": {"timestamp": float("inf")}}, ErrorFile("boom")),
        ({"message": "boom", "extraInfo": {"timestamp": -5}}, ErrorFile("boom")),
        ({"message": "boom", "extraInfo": {"timestamp": "1e400"}}, ErrorFile("boom")),
        ({"message": "boom", "extraInfo": {"timestamp": True}}, ErrorFile("boom", at=1.0)),
        ({"message": "boom", "extraInfo": {"timestamp": 12.5}}, ErrorFile("boom", at=12.5)),
    ],
)
def test_missing_or_wrong_parts_are_left_out(path, message, recorded):
    assert error_file.read(written(path, {"message": message})) == recorded


def test_a_folder_a_fifo_and_a_link_loop_are_described(path, tmp_path):
    os.mkdir(path)
    assert error_file.read(path) == ErrorFile(problem="Is a directory")
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    assert error_file.read(fifo) == ErrorFile(problem=words.failures.NOT_A_FILE), (
        "and the agent does not wait for its writer"
    )
    loop = str(tmp_path / "loop")
    os.symlink(loop, loop)
    assert error_file.read(loop) == ErrorFile(problem="Too many levels of symbolic links")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["message", "extraInfo", "py_callstack", "timestamp", "errorCode"]), inner)
    ),
    max_leaves=12,
)


@given(json_values)
def test_any_json_is_read_or_described(tmp_path_factory, value):
    path = str(tmp_path_factory.mktemp("any") / "error.json")
    recorded = error_file.read(written(path, value))
    assert isinstance(recorded, ErrorFile)


# The agent's own.


@pytest.mark.parametrize("content", [TORCHS, {"message": "boom"}], ids=["torch's", "a-message-alone"])
def test_the_workers_file_is_passed_on_with_its_exit_code(path, content):
    message = content["message"]
    passed_on = message | {"errorCode": -11} if isinstance(message, dict) else message
    assert error_file.copy(written(path, content), -11) == {"message": passed_on}


def test_the_error_file_replaces_an_existing_one_and_creates_its_folders(tmp_path):
    path = str(tmp_path / "a" / "b" / "error.json")
    error_file.write(path, {"message": "a long one, which was there before"})
    error_file.write(path, error_file.content("boom", "Traceback", 7.9))
    with open(path) as file:
        assert json.load(file) == {
            "message": {"message": "boom", "extraInfo": {"py_callstack": "Traceback", "timestamp": "7"}}
        }


def test_a_reader_during_a_write_gets_one_complete_file(tmp_path):
    """TorchX reads it as soon as the app has failed."""
    path = str(tmp_path / "error.json")
    error_file.write(path, {"message": "before"})
    with open(path) as before:
        error_file.write(path, {"message": "after"})
        assert json.load(before) == {"message": "before"}
    assert os.listdir(tmp_path) == ["error.json"]


def test_a_file_behind_a_link_is_written_where_it_is(tmp_path):
    path = tmp_path / "error.json"
    path.symlink_to(tmp_path / "elsewhere.json")
    error_file.write(str(path), {"message": "boom"})
    assert path.is_symlink() and json.loads(path.read_text()) == {"message": "boom"}


def test_a_path_that_cannot_be_written_raises_without_blocking(tmp_path):
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    for path in (fifo, str(tmp_path), "/proc/no/such/file"):
        with pytest.raises(OSError):
            error_file.write(path, {"message": "boom"})


@pytest.mark.torch
def test_torch_writes_and_reads_the_same(path, tmp_path):
    """torch's `@record` writes what we read, and reads what we write."""
    script = (
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\ndef main(): raise ValueError('boom')\nmain()"
    )
    env = {**os.environ, ERROR_FILE: path}
    subprocess.run([sys.executable, "-c", script], env=env, stderr=subprocess.DEVNULL)
    recorded = error_file.read(path)
    assert recorded.error == "ValueError: boom"
    assert recorded.traceback.startswith("Traceback (most recent call last):")
    assert recorded.at > 1_750_000_000

    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    error_file.write(path, error_file.content("KeyError: 'x'", "Traceback", 7.0))
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=3, error_file=path)
    assert failure.message["message"] == "KeyError: 'x'"
    assert failure.timestamp == 7
    assert failure.error_file_data == error_file.content("KeyError: 'x'", "Traceback", 7.0)


def leave(tmp_path, effect: WriteFailureReport, recorded: str = "") -> dict:
    own = tmp_path / "new" / "agent.json"
    error_file.leave(effect.error, effect.failure, recorded, {ERROR_FILE: str(own)}, pytest.fail)
    return dict(json.loads(own.read_text())["message"])


def test_the_failed_workers_own_file_counts_more_than_the_evidence(tmp_path, path):
    effect = WriteFailureReport("spent", finish(succeeded=False, failure=a_failure(exit_code=-11)))
    assert leave(tmp_path, effect, written(path, TORCHS)) == TORCHS["message"] | {"errorCode": -11}


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (
            a_failure(error="ValueError: boom", traceback=("Traceback", "ValueError: boom"), failed_at=7.5),
            {
                "message": "ValueError: boom",
                "errorCode": 5,
                "extraInfo": {"py_callstack": "Traceback\nValueError: boom", "timestamp": "7"},
            },
        ),
        (
            a_failure(exit_code=-9, cause="signal 9 (SIGKILL)", stderr_tail=("step 1",), failed_at=7.5),
            {
                "message": "signal 9 (SIGKILL)",
                "errorCode": -9,
                "extraInfo": {"py_callstack": "step 1", "timestamp": "7"},
            },
        ),
    ],
    ids=["an-exception", "a-signal"],
)
def test_without_a_workers_error_file_the_agents_is_made_from_the_evidence(tmp_path, failure, message):
    assert leave(tmp_path, WriteFailureReport("spent", finish(succeeded=False, failure=failure))) == message


def test_the_file_has_the_failure_that_ended_the_run_not_the_first_one(tmp_path):
    """torchrun does the same: it reports its last attempt."""
    end = finish(succeeded=False, first_failure=a_failure(error="first"), failure=a_failure(error="last"))
    assert leave(tmp_path, WriteFailureReport("spent", end))["message"] == "last"


def test_an_agents_own_error_has_no_exit_code(tmp_path):
    message = leave(tmp_path, WriteFailureReport("SettingsConflict: --nnodes is 2 in the run, but 3 here"))
    assert message["message"] == "SettingsConflict: --nnodes is 2 in the run, but 3 here"
    assert "errorCode" not in message
    assert int(message["extraInfo"]["timestamp"]) > 1_700_000_000


@pytest.mark.parametrize("environment", [{}, {ERROR_FILE: ""}])
def test_without_the_variable_nothing_is_written(tmp_path, monkeypatch, environment):
    monkeypatch.chdir(tmp_path)
    error_file.leave("boom", None, "", environment, pytest.fail)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("own", ["/proc/no/such/file", "/", "nul\0"])
def test_a_file_that_cannot_be_written_is_one_line(own):
    said: list[str] = []
    error_file.leave("boom", None, "", {ERROR_FILE: own}, said.append)
    (line,) = said
    assert has_message(line, words.failures.error_file_not_written, path=own, variable=ERROR_FILE)
