"""The same programs under torch's `start_processes` and `elastic_launch`, and under ours."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.integration.api.both_launchers import CASES

pytestmark = pytest.mark.torch

PROGRAM = Path(__file__).with_name("both_launchers.py")


@cache
def results(side: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), side], capture_output=True, text=True, timeout=110,
        env={**os.environ, "PYTHONPATH": os.getcwd(), "LOGLEVEL": "CRITICAL"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.xdist_group("side by side")
def test_results_are_torchs(case: str) -> None:
    assert results("ours")[case] == results("torch")[case]
