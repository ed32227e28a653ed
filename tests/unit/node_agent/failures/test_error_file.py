"""Error files: a worker's, whatever is in it, and the agent's own."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.core.effects import WriteFailureReport
from node_agent.failures import error_file
from node_agent.failures.error_file import ErrorFile
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
    with open(path, "w") as file:
        file.write(content if isinstance(content, str) else json.dumps(content))
    return path


def test_what_torch_writes(path):
    assert error_file.read(written(path, TORCHS)) == ErrorFile(
        "ValueError: boom", "Traceback (most recent call last):\nValueError: boom\n", 1_750_000_000.0
    )


def test_a_message_alone(path):
    assert error_file.read(written(path, {"message": "boom", "timestamp": 7})) == ErrorFile("boom", "", 7.0)
    assert error_file.read(written(path, {"message": "boom\nhere\n"})) == ErrorFile("boom\nhere\n", "boom\nhere\n")


def test_no_file_is_no_evidence(path):
    assert error_file.read(path) is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "it is empty"),
        (" \n", "it is empty"),
        ("Traceback", "it is not JSON"),
        ('{"message": "bo', "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("1" * 10_000, "it is not JSON"),
        ("[]", "it has no message"),
        ("null", "it has no message"),
        ("{}", "it has no message"),
        ({"message": 5}, "it has no message"),
        ({"message": ["boom"]}, "it has no message"),
        ("x" * (error_file.MOST_BYTES + 1), f"it has more than {error_file.MOST_BYTES} bytes"),
    ],
)
def test_a_broken_file_is_described(path, content, problem):
    assert error_file.read(written(path, content)) == ErrorFile(problem=problem)


def test_bytes_that_are_no_text_are_no_json(path):
    with open(path, "wb") as file:
        file.write(b"\xff\xfe\x00{")
    assert error_file.read(path) == ErrorFile(problem="it is not JSON")


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
def test_what_is_missing_or_of_another_kind_is_left_out(path, message, recorded):
    assert error_file.read(written(path, {"message": message})) == recorded


def test_a_folder_a_fifo_and_a_knot_of_links_are_described(path, tmp_path):
    os.mkdir(path)
    assert error_file.read(path) == ErrorFile(problem="Is a directory")
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    assert error_file.read(fifo) == ErrorFile(problem="it is not a file"), "and nobody waits for its writer"
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


def test_the_workers_file_is_passed_on_with_its_exit_code(path):
    passed_on = error_file.copy(written(path, TORCHS), -11)
    assert passed_on == {"message": TORCHS["message"] | {"errorCode": -11}}


def test_a_message_alone_is_passed_on_as_it_is(path):
    assert error_file.copy(written(path, {"message": "boom"}), 3) == {"message": "boom"}


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"message": 5}'])
def test_a_broken_file_is_not_passed_on(path, content):
    assert error_file.copy(written(path, content), 1) is None
    assert error_file.copy(path + ".none", 1) is None
    assert error_file.copy("", 1) is None


def test_it_is_written_in_place_of_another_and_with_its_folders(tmp_path):
    path = str(tmp_path / "a" / "b" / "error.json")
    error_file.write(path, {"message": "a long one, which was there before"})
    error_file.write(path, error_file.content("boom", "Traceback", 7.9))
    with open(path) as file:
        assert json.load(file) == {
            "message": {"message": "boom", "extraInfo": {"py_callstack": "Traceback", "timestamp": "7"}}
        }


def test_a_path_that_cannot_be_written_raises_and_nobody_waits(tmp_path):
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    for path in (fifo, str(tmp_path), "/proc/no/such/file"):
        with pytest.raises(OSError):
            error_file.write(path, {"message": "boom"})


@pytest.mark.torch
def test_torch_writes_and_reads_the_same(path, tmp_path):
    """Its `@record` writes what we read, and it reads what we write."""
    pytest.importorskip("torch")
    script = (
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\ndef main(): raise ValueError('boom')\nmain()"
    )
    env = {**os.environ, error_file.VARIABLE: path}
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


@pytest.fixture
def own(tmp_path) -> str:
    return str(tmp_path / "new" / "agent.json")


@pytest.fixture
def said() -> list[str]:
    return []


def leave(effect: WriteFailureReport, own: str, said: list[str], recorded: str = "") -> dict:
    error_file.leave(effect.error, effect.failure, recorded, {error_file.VARIABLE: own}, said.append)
    with open(own) as file:
        return dict(json.load(file)["message"])


def test_the_failed_workers_own_file_is_passed_on(own, said, tmp_path):
    recorded = tmp_path / "error.json"
    recorded.write_text(
        json.dumps({"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "x" * 9_999}}})
    )
    effect = WriteFailureReport("spent", finish(succeeded=False, failure=a_failure(exit_code=-11)))
    message = leave(effect, own, said, str(recorded))
    assert message == {"message": "ValueError: boom", "extraInfo": {"py_callstack": "x" * 9_999}, "errorCode": -11}


def test_without_one_it_is_made_of_the_evidence(own, said):
    failure = a_failure(
        node_id="b", error="ValueError: boom", traceback=("Traceback", "ValueError: boom"), failed_at=7.5
    )
    message = leave(WriteFailureReport("spent", finish(succeeded=False, failure=failure)), own, said)
    assert message == {
        "message": "ValueError: boom",
        "errorCode": 5,
        "extraInfo": {"py_callstack": "Traceback\nValueError: boom", "timestamp": "7"},
    }


def test_a_worker_that_was_killed_is_told_by_its_signal(own, said):
    killed = a_failure(exit_code=-9, cause="signal 9 (SIGKILL): out of memory", stderr_tail=("step 1",))
    message = leave(WriteFailureReport("spent", finish(succeeded=False, failure=killed)), own, said)
    assert (message["message"], message["errorCode"]) == ("signal 9 (SIGKILL): out of memory", -9)
    assert message["extraInfo"]["py_callstack"] == "step 1"


def test_what_ended_the_run_is_told_and_not_what_began_it(own, said):
    """As torchrun does, which tells of its last attempt."""
    end = finish(succeeded=False, first_failure=a_failure(error="first"), failure=a_failure(error="last"))
    assert leave(WriteFailureReport("spent", end), own, said)["message"] == "last"


def test_an_agents_own_error_has_no_exit_code(own, said):
    message = leave(WriteFailureReport("SettingsConflict: --nnodes is 2 here, not 3"), own, said)
    assert message["message"] == "SettingsConflict: --nnodes is 2 here, not 3"
    assert "errorCode" not in message
    assert int(message["extraInfo"]["timestamp"]) > 1_700_000_000


def test_without_the_variable_nothing_is_written(tmp_path, said):
    for environment in ({}, {"TORCHELASTIC_ERROR_FILE": ""}):
        error_file.leave("boom", None, "", environment, said.append)
    assert said == []
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("own", ["/proc/no/such/file", "/", "nul\0"])
def test_a_file_that_cannot_be_written_is_one_line(own, said):
    error_file.leave("boom", None, "", {error_file.VARIABLE: own}, said.append)
    assert len(said) == 1
    assert said[0].startswith(f"cannot write the error file {own} (TORCHELASTIC_ERROR_FILE): ")
