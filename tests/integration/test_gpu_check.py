"""The checks of real GPUs, on a machine without any: each is skipped with the reason, and none is reported as made."""

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.checks import CHECKS

ROOT = Path(__file__).parents[2]


def test_checks_of_gpus_are_skipped_with_the_reason_where_there_is_none(tmp_path: Path) -> None:
    environment = os.environ | {"PATH": str(tmp_path), "PYTHONPATH": f"{ROOT}:{ROOT / 'protocol'}"}
    command = [sys.executable, "-m", "benchmarks.gpu", "--write", str(tmp_path)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    checks = json.loads((tmp_path / "gpu.json").read_text())["checks"]
    assert [check["name"] for check in checks] == list(CHECKS)
    assert {check["verdict"] for check in checks} == {"skipped"}
    assert all("nvidia-smi" in check["detail"] for check in checks)
    assert (tmp_path / "gpu.md").read_text().count("| skipped |") == len(CHECKS)


def test_an_unknown_check_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "a fast network"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "a killed agent" in done.stderr
