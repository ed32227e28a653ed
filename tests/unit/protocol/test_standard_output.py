"""Help, version and completion scripts, if stdout accepts nothing."""

import errno
import os
import subprocess
import sys

import pytest
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.standard_output import PIPE_CLOSED
from rdzv_protocol.words import flags

PRINTS = [
    ("node_agent", "--help-all"),
    ("node_agent", "--version"),
    ("node_agent", "--print-completion=bash"),
    ("rdzv_server", "--help"),
    ("rdzv_server", "--version"),
    ("rdzv_server", "--print-completion=bash"),
    ("rdzvctl", "--help"),
    ("rdzvctl", "status --help"),
    ("rdzvctl", "--version"),
]


def ended(module: str, words: str, stdout: int) -> tuple[int, str]:
    """Return the exit code and stderr of a program with this stdout."""
    command = (sys.executable, "-m", module, *words.split())
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True)
    return done.returncode, done.stderr


@pytest.mark.parametrize(("module", "words"), PRINTS)
def test_a_reader_that_has_ended_ends_the_program_quietly(module: str, words: str) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    try:
        assert ended(module, words, writes) == (PIPE_CLOSED, "")
    finally:
        os.close(writes)


@pytest.mark.parametrize(("module", "words"), PRINTS)
def test_a_full_disk_is_an_error_with_its_name(module: str, words: str) -> None:
    with open("/dev/full", "wb") as full:
        code, said = ended(module, words, full.fileno())
    program = module.replace("_", "-")
    assert (code, said) == (ExitCode.FAILED, f"{program}: error: {flags.cannot_write(os.strerror(errno.ENOSPC))}\n")
