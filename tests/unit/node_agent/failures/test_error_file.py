"""Error files: a worker's, whatever is in it, and the agent's own."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.failures import error_file
from node_agent.failures.diagnose import Recorded

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
    assert error_file.read(written(path, TORCHS)) == Recorded(
        "ValueError: boom", "Traceback (most recent call last):\nValueError: boom\n", 1_750_000_000.0
    )


def test_a_message_alone(path):
    assert error_file.read(written(path, {"message": "boom", "timestamp": 7})) == Recorded("boom", "", 7.0)
    assert error_file.read(written(path, {"message": "boom\nhere\n"})) == Recorded("boom\nhere\n", "boom\nhere\n")


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
    assert error_file.read(written(path, content)) == Recorded(problem=problem)


def test_bytes_that_are_no_text_are_no_json(path):
    with open(path, "wb") as file:
        file.write(b"\xff\xfe\x00{")
    assert error_file.read(path) == Recorded(problem="it is not JSON")


@pytest.mark.parametrize(
    ("message", "recorded"),
    [
        ({}, Recorded()),
        ({"message": None, "extraInfo": []}, Recorded()),
        ({"message": "boom"}, Recorded("boom")),
        ({"message": "boom", "extraInfo": {"py_callstack": 5, "timestamp": "soon"}}, Recorded("boom")),
        ({"message": "boom", "extraInfo": {"timestamp": float("nan")}}, Recorded("boom")),
        ({"message": "boom", "extraInfo": {"timestamp": float("inf")}}, Recorded("boom")),
        ({"message": "boom", "extraInfo": {"timestamp": -5}}, Recorded("boom")),
        ({"message": "boom", "extraInfo": {"timestamp": "1e400"}}, Recorded("boom")),
        ({"message": "boom", "extraInfo": {"timestamp": True}}, Recorded("boom", at=1.0)),
        ({"message": "boom", "extraInfo": {"timestamp": 12.5}}, Recorded("boom", at=12.5)),
    ],
)
def test_what_is_missing_or_of_another_kind_is_left_out(path, message, recorded):
    assert error_file.read(written(path, {"message": message})) == recorded


def test_a_folder_a_fifo_and_a_knot_of_links_are_described(path, tmp_path):
    os.mkdir(path)
    assert error_file.read(path) == Recorded(problem="Is a directory")
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    assert error_file.read(fifo) == Recorded(problem="it is not a file"), "and nobody waits for its writer"
    loop = str(tmp_path / "loop")
    os.symlink(loop, loop)
    assert error_file.read(loop) == Recorded(problem="Too many levels of symbolic links")


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
    assert isinstance(recorded, Recorded)


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
