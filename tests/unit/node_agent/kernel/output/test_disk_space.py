"""Files that cannot grow: on a full disk, at their process's limit, and at the file system's largest size."""

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EFBIG
from pathlib import Path

import pytest

from node_agent import words
from node_agent.kernel.output.disk_space import FULL_BYTES, in_words, why_full

LIMIT = 10 * FULL_BYTES


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    yield descriptor
    os.close(descriptor)


def test_a_file_close_to_its_size_limit_counts_as_full(file: int) -> None:
    os.truncate(file, LIMIT - FULL_BYTES)
    assert why_full(file) is None
    with no_file_larger_than(LIMIT):
        assert why_full(file) is None
        os.truncate(file, LIMIT - FULL_BYTES + 1)
        problem = why_full(file)
    assert problem and problem.errno == EFBIG
    assert in_words(problem) == words.output.at_limit("File too large", LIMIT)


def test_the_limit_that_counts_is_that_of_the_process_which_writes(file: int) -> None:
    os.truncate(file, LIMIT)
    command = ["bash", "-c", f"ulimit -f {LIMIT // 1024}; echo; read word"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdin and writer.stdout
        writer.stdout.readline()
        assert why_full(file) is None
        assert why_full(file, writer.pid)
        writer.stdin.close()
    assert why_full(file, writer.pid) is None, "of a process that is gone it is this one's"


def test_a_file_as_large_as_its_file_system_takes_is_full(file: int) -> None:
    lowest, highest = 0, (1 << 63) - 1
    while lowest < highest:  # the largest offset that the file system supports
        middle = (lowest + highest + 1) // 2
        try:
            lowest = os.lseek(file, middle, os.SEEK_SET)
        except OSError:
            highest = middle - 1
    os.truncate(file, lowest - lowest % 4096)
    problem = why_full(file)
    assert problem and in_words(problem) == words.output.at_limit_of_file_system("File too large")


def test_an_error_about_the_size_of_a_file_names_the_limit_and_what_to_do(file: int) -> None:
    with no_file_larger_than(LIMIT):
        os.truncate(file, LIMIT)
        with pytest.raises(OSError, match="File too large") as met:
            os.write(file, b"x")
        assert in_words(met.value) == words.output.own_limit("File too large", LIMIT)
