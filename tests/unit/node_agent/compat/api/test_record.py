"""`record`: torch's decorator, and what it writes to the error file."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node_agent import ErrorHandler, get_error_handler, record


@pytest.fixture
def error_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    return path


def test_an_exception_is_recorded_and_raised(error_file: Path) -> None:
    @record
    def main(text: str) -> None:
        raise ValueError(text)

    with pytest.raises(ValueError, match="boom"):
        main("boom")
    message = json.loads(error_file.read_text())["message"]
    assert message["message"] == "ValueError: boom"
    assert "in main" in message["extraInfo"]["py_callstack"]
    assert main.__name__ == "main"


@pytest.mark.parametrize(("code", "raised"), [(0, False), (3, True), (None, True)])
def test_a_worker_that_calls_sys_exit_ends_with_its_code(code: int | None, raised: bool, error_file: Path) -> None:
    if raised:
        with pytest.raises(SystemExit):
            record(sys.exit)(code)
    else:
        assert record(sys.exit)(code) is None
    assert not error_file.exists()


def test_the_error_of_a_launchers_worker_is_passed_on(error_file: Path, tmp_path: Path) -> None:
    inner = tmp_path / "inner.json"
    inner.write_text('{"message": {"message": "ValueError: inner"}}')

    class Failed(Exception):
        def get_first_failure(self) -> tuple[int, Any]:
            return 0, SimpleNamespace(error_file=str(inner), exitcode=7)

    @record
    def main() -> None:
        raise Failed

    with pytest.raises(Failed):
        main()
    assert json.loads(error_file.read_text()) == {"message": {"message": "ValueError: inner", "errorCode": 7}}


def test_an_own_rendezvous_handler_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    seen: list[object] = []

    class Handler(ErrorHandler):
        def initialize(self) -> None:
            seen.append("initialize")

        def record_exception(self, e: BaseException) -> None:
            seen.append(e)
            super().record_exception(e)

    with pytest.raises(KeyError):
        record({}.__getitem__, Handler())("a")
    assert seen[0] == "initialize" and isinstance(seen[1], KeyError)
    assert isinstance(get_error_handler(), ErrorHandler)
