"""Failures as a program sees them: torch's attributes, and torch's classes if the program has imported them."""

import json
import pickle
import signal
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rdzv_protocol.messages import Failure

from node_agent import words
from node_agent.compat.api.errors import (
    TORCHS_ERRORS,
    ChildFailedError,
    ProcessFailure,
    SignalException,
    in_torchs_terms,
    process_failure,
)
from node_agent.kernel.failures.diagnose import exit_status

EXTRA = {"py_callstack": "Traceback ...\nx", "timestamp": "1700000000"}
RECORDED = {"message": {"message": "ValueError: x", "extraInfo": EXTRA}}


@pytest.fixture
def recorded(tmp_path: Path) -> str:
    (tmp_path / "error.json").write_text(json.dumps(RECORDED))
    return str(tmp_path / "error.json")


def test_an_error_file_contains_the_error_and_its_time(recorded: str) -> None:
    failure = ProcessFailure(0, 123, 1, recorded)
    assert (failure.message, failure.timestamp) == (RECORDED["message"], 1700000000)
    assert failure.error_file_data == RECORDED and failure.error_file == recorded


@pytest.mark.parametrize("content", [None, "", "{", "[]", '"text"', "\x80"])
@pytest.mark.parametrize(
    ("code", "name", "message"),
    [
        (-9, "SIGKILL", "Signal 9 (SIGKILL) received by PID 123"),
        (-200, "<N/A>", "Signal 200"),
        (3, "<N/A>", "To enable"),
    ],
)
def test_without_a_readable_error_file_the_message_has_the_exit_code(
    code: int, name: str, message: str, content: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "error.json"
    if content is not None:
        path.write_text(content)
    failure = ProcessFailure(0, 123, code, str(path))
    assert (failure.error_file, failure.error_file_data) == ("<N/A>", {"message": "<NONE>"})
    assert failure.message.startswith(message) and failure.signal_name() == name


ODD = [
    "null", "5", '"text"', "[]", "{}", "[1]",
    '{"message": null}', '{"message": 5}', '{"message": []}', '{"message": {}}', '{"message": ""}',
    '{"message": "text", "timestamp": "soon"}', '{"message": "text", "timestamp": null}',
    '{"message": {"message": 5, "extraInfo": null}}', '{"message": {"extraInfo": []}}',
    '{"message": {"message": "x", "extraInfo": {"py_callstack": 5}}}',
    *(
        f'{{"message": {{"message": "x", "extraInfo": {{"timestamp": {timestamp}}}}}}}'
        for timestamp in ("null", "[]", "{}", '"soon"', '"inf"', "NaN", "Infinity", "-Infinity", "1e400", "1e18", "-5")
    ),
]  # fmt: skip


@pytest.mark.parametrize("content", ODD)
def test_a_failure_can_be_reported_with_any_error_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "error.json"
    path.write_text(content)
    before = int(time.time())
    failure = ProcessFailure(0, 123, 3, str(path))
    assert before <= failure.timestamp <= time.time()
    assert failure.timestamp_isoformat() in str(ChildFailedError("train", {0: failure}))
    assert failure.message


@pytest.mark.torch
@pytest.mark.parametrize("code", [1, 3, -9, -11])
@pytest.mark.parametrize("has_file", [True, False])
def test_our_attributes_equal_torchs(recorded: str, code: int, has_file: bool) -> None:
    theirs = pytest.importorskip(TORCHS_ERRORS).ProcessFailure
    one, other = (make(1, 77, code, recorded if has_file else "") for make in (ProcessFailure, theirs))
    names = ["local_rank", "pid", "exitcode", "error_file", "message"] + ["timestamp"] * has_file
    assert [getattr(one, name) for name in names] == [getattr(other, name) for name in names]
    assert one.signal_name() == other.signal_name()
    if has_file:
        assert one.timestamp_isoformat() == other.timestamp_isoformat()
        assert one.error_file_data == other.error_file_data
    assert {name for name in vars(other) if not name.startswith("_")} == set(vars(one)) - {"details"}


@pytest.mark.torch
def test_the_report_is_torchs_with_what_else_is_known(recorded: str, tmp_path: Path) -> None:
    """Compared line by line, except for a space at the end of one: every failure with its error file and its traceback.

    The error has a line of its own if the traceback does not end with it.
    """
    theirs, another = pytest.importorskip(TORCHS_ERRORS), tmp_path / "another.json"
    another.write_text(json.dumps(RECORDED).replace("ValueError: x", "KeyError: y"))

    def report(error: Any, failure: Any) -> Any:
        causes = {1: failure(1, 2, 1, recorded), 0: failure(0, 1, -15, str(another)), 2: failure(2, 3, 7, "")}
        for rank, at in enumerate((30, 20, 40)):  # the first failure is torch's root
            causes[rank].timestamp = at
        return error("train", causes)

    one, other = report(ChildFailedError, ProcessFailure), report(theirs.ChildFailedError, theirs.ProcessFailure)
    lines = [[line.rstrip() for line in str(error).splitlines()] for error in (one, other)]
    extra = [
        f"  cause     : {exit_status(-15).cause}",
        "  error     : KeyError: y",
        f"  what to do: {exit_status(-15).hint}",
        f"  cause     : {words.failures.no_exception('exit code 7')}",
        "  error     : ValueError: x",
    ]
    assert [line for line in lines[0] if line not in extra] == lines[1]
    assert [line for line in lines[0] if line in extra] == extra
    assert one.get_first_failure()[0] == other.get_first_failure()[0] == 1


def test_except_clauses_with_torchs_classes_catch_our_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    class Theirs(Exception):
        def __init__(self, name: str, failures: dict[int, Any]) -> None:
            raise AssertionError("ours makes the message")

    module = ModuleType(TORCHS_ERRORS)
    module.ChildFailedError = Theirs
    monkeypatch.setitem(sys.modules, TORCHS_ERRORS, module)
    failures = {0: ProcessFailure(0, 1, 3, "")}
    error = in_torchs_terms(ChildFailedError)("train", failures, "the report")
    assert isinstance(error, Theirs) and isinstance(error, ChildFailedError)
    assert (error.name, error.failures, str(error)) == ("train", failures, "the report")
    assert type(error) is type(in_torchs_terms(ChildFailedError)("again", failures))
    assert type(pickle.loads(pickle.dumps(error))) is ChildFailedError


def test_without_torch_it_is_only_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, TORCHS_ERRORS, raising=False)
    assert in_torchs_terms(ChildFailedError) is ChildFailedError


@pytest.mark.torch
def test_torchs_record_passes_our_error_on(recorded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that is itself a worker passes on the failed worker's error, not its own."""
    record = pytest.importorskip(TORCHS_ERRORS).record
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "mine.json"))

    @record
    def main() -> None:
        raise in_torchs_terms(ChildFailedError)("train", {0: ProcessFailure(0, 1, 7, recorded)})

    with pytest.raises(ChildFailedError):
        main()
    written = json.loads((tmp_path / "mine.json").read_text())
    assert written["message"] == {**RECORDED["message"], "errorCode": 7}


def test_errors_survive_pickling(recorded: str) -> None:
    error = ChildFailedError("train", {3: ProcessFailure(0, 1, 1, recorded)}, "report")
    again = pickle.loads(pickle.dumps(error))
    assert (again.name, again.failures, str(again)) == (error.name, error.failures, "report")
    signalled = pickle.loads(pickle.dumps(SignalException("text", signal.SIGTERM)))
    assert (str(signalled), signalled.sigval) == ("text", signal.SIGTERM)


def evidence(**fields: Any) -> Failure:
    return Failure(node_id="a", rank=3, local_rank=1, pid=9, exit_code=1, cause="exit code 1", failed_at=5.0, **fields)


def test_an_error_of_another_node_gets_a_file_here() -> None:
    failure = process_failure(evidence(error="ValueError: x", traceback=("Traceback", "ValueError: x")))
    assert json.loads(Path(failure.error_file).read_text()) == failure.error_file_data
    assert failure.message["message"] == "ValueError: x"
    assert failure.message["extraInfo"] == {"py_callstack": "Traceback\nValueError: x", "timestamp": "5"}


def test_without_an_error_the_message_is_torchs_with_the_evidence_beside_it() -> None:
    failure = process_failure(evidence(stderr_tail=("one", "two")))
    assert (failure.message, failure.timestamp) == (ProcessFailure(1, 9, 1, "").message, 5)
    assert failure.details and failure.details.stderr_tail == ("one", "two")


def test_an_error_file_that_says_nothing_is_not_passed_on(tmp_path: Path) -> None:
    """torch's `@record` copies the file that it gets, and fails on an invalid one."""
    path = tmp_path / "error.json"
    path.write_text("null")
    failure = process_failure(evidence(error="ValueError: x", error_file=str(path)))
    assert failure.error_file != str(path) and failure.message["message"] == "ValueError: x"
