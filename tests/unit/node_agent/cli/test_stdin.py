"""Programs that workers read from standard input."""

import os
import sys
from collections.abc import Iterator

import pytest

from node_agent.cli import stdin as module
from node_agent.cli.stdin import program_of, reads_program
from node_agent.kernel import early_signals
from node_agent.kernel.config import UsageError
from node_agent.kernel.core.command import Command

PYTHON = Command(("python", "-u", "-"))


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """End of a pipe whose other end is stdin."""
    reader, writer = os.pipe()
    with open(reader) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield writer


@pytest.mark.parametrize(
    ("command", "reads"),
    [
        ("python -u -", True),
        ("python -u - --lr 1", True),
        ("python", True),
        ("bash", True),
        ("/bin/sh -e", True),
        ("python -u train.py", False),
        ("python -u train.py -", False),
        ("python -X faulthandler -", True),
        ("python -Xdev -uW ignore", True),
        ("python -W ignore train.py", False),
        ("python -c pass", False),
        ("python -uc pass", False),
        ("python --version", False),
        ("bash -s -- --lr 1", True),
        ("bash -eo pipefail", True),
        ("bash -eo pipefail run.sh", False),
        ("bash --norc -- run.sh", False),
        ("bash --rcfile own", True),
        ("bash -ec true", False),
        ("python -m train -", False),
        ("bash run.sh", False),
        ("cat", False),
        ("cat -", False),
    ],
)
def test_an_interpreter_without_a_script_reads_its_program_from_stdin(command: str, reads: bool) -> None:
    words = command.split()
    assert reads_program(words, is_python=words[0] == "python") is reads


def test_the_program_is_read_to_its_end(writer: int) -> None:
    os.write(writer, b"pass")
    os.close(writer)
    with open(program_of(PYTHON), "rb") as program:
        program.seek(0)
        assert program.read() == b"pass"


def test_an_empty_program_is_refused(writer: int) -> None:
    os.close(writer)
    with pytest.raises(UsageError):
        program_of(PYTHON)


def test_an_agent_that_is_told_to_leave_does_not_wait_for_the_program(
    writer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_signals, "is_held", iter([False, True, True]).__next__)
    monkeypatch.setattr(module, "_LOOK_S", 0.0)
    os.close(program_of(PYTHON))
    os.close(writer)
