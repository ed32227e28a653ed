"""`make test` runs failed tests once more, but only if every test ran."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import os
import pytest

@pytest.mark.parametrize("number", range(3))
def test_it(number):
    if number == 0:
        {first}
"""


def suite(folder: Path, first: str) -> int:
    """Run three tests beside each other as the suite is run. Return pytest's exit code."""
    (folder / "test_it.py").write_text(TESTS.format(first=first))
    plug_in = ("-p", "tests.support.dead_workers", "-p", "no:cacheprovider", "-p", "no:schemathesis")
    command = (sys.executable, "-m", "pytest", *plug_in, "-n", "1", "--max-worker-restart", "0", "--rootdir", folder)
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    return subprocess.run([*command, folder], cwd=folder, env=environment, stdout=subprocess.DEVNULL).returncode


def test_a_failed_test_is_run_again(tmp_path: Path) -> None:
    assert suite(tmp_path, "assert False") == pytest.ExitCode.TESTS_FAILED


def test_tests_that_never_ran_are_not_forgotten(tmp_path: Path) -> None:
    assert suite(tmp_path, "os._exit(1)") == pytest.ExitCode.INTERNAL_ERROR
