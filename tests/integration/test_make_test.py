"""`make test` runs failed tests once more, but only if every test ran."""

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support import order_of_tests
from tests.support.lazy_modules import LazyModule

ROOT = Path(__file__).parents[2]
TESTS = """
import os
import pytest

@pytest.mark.parametrize("number", range(3))
def test_it(number):
    if number == 0:
        {first}
"""

GROUPED = """
import pytest

@pytest.mark.xdist_group("g")
@pytest.mark.parametrize("mail", ["a@g"])
def test_grouped(mail):
    assert False

def test_alone():
    assert False
"""
BESIDE_EACH_OTHER = ("-n", "1", "--dist", "loadgroup", "--max-worker-restart", "0")
AGAIN = ("--last-failed", "--last-failed-no-failures", "none")


def suite(folder: Path, first: str) -> int:
    """Run three tests in parallel, as the suite does. Return pytest's exit code."""
    (folder / "test_it.py").write_text(TESTS.format(first=first))
    return run(folder, *BESIDE_EACH_OTHER).returncode


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    plug_ins = ("-p", "tests.support.dead_workers", "-p", "tests.support.names_of_tests", "-p", "no:schemathesis")
    command = (sys.executable, "-m", "pytest", *plug_ins, "--rootdir", str(folder), *words, str(folder))
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)


def test_missing_programs_are_reported_with_the_way_to_install_them(tmp_path: Path) -> None:
    """The machine has none of the programs, and its user may install nothing."""
    bash = shutil.which("bash") or ""
    script = ROOT / "tests" / "install-debian-packages.sh"
    done = subprocess.run([bash, script], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert re.match("install-debian-packages: not tested: what needs .*curl", line)
    assert "sudo apt-get install --no-install-recommends" in line and line.count("prometheus") == 2, "each once"
    assert "tests/install-debian-packages.sh" in (ROOT / "Makefile").read_text()


def test_a_failed_test_is_run_again(tmp_path: Path) -> None:
    assert suite(tmp_path, "assert False") == pytest.ExitCode.TESTS_FAILED


def test_tests_that_never_ran_fail_the_run(tmp_path: Path) -> None:
    assert suite(tmp_path, "os._exit(1)") == pytest.ExitCode.INTERNAL_ERROR


def test_a_failed_test_of_a_group_is_run_again(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(GROUPED)
    assert "2 failed" in run(tmp_path, *BESIDE_EACH_OTHER).stdout
    assert " ".join(AGAIN) in (ROOT / "Makefile").read_text()
    assert "2 failed" in run(tmp_path, *AGAIN).stdout


def test_modules_for_later_are_not_imported_when_tests_are_collected() -> None:
    assert not hasattr(LazyModule("no_such_module"), "__test__")


def test_tests_that_wait_run_between_tests_that_compute() -> None:
    golden, integration, unit = (
        [
            SimpleNamespace(path=order_of_tests.TESTS / folder / f"test_{number}.py")
            for number in range(files)
            for _ in range(number % 5 + 1)
        ]
        for folder, files in (("golden", 2), ("integration", 20), ("unit", 30))
    )
    given: list[Any] = [*golden, *integration, *unit]
    alone, beside = list(given), list(given)
    order_of_tests.pytest_collection_modifyitems(cast(pytest.Config, SimpleNamespace()), alone)
    order_of_tests.pytest_collection_modifyitems(cast(pytest.Config, SimpleNamespace(workerinput={})), beside)
    assert alone == given and not waits_in_each_part(given)
    assert waits_in_each_part(beside)
    assert sorted(map(id, beside)) == sorted(map(id, given)), "each test is kept once"
    of_file = [path for path, _ in groupby(item.path for item in beside) if "integration" not in path.parts]
    assert len(of_file) == len(set(of_file)), "modules are set up once"


def waits_in_each_part(items: Sequence[Any], parts: int = 8) -> bool:
    """Return whether each part of the order has tests that wait."""
    length = len(items) // parts
    return all(
        any("integration" in item.path.parts for item in items[length * part :][:length]) for part in range(parts)
    )
