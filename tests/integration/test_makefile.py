"""`make` on a machine that lacks something: one line says what."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NONE = "make: there is no python3; on Debian and Ubuntu: apt-get install python3-venv"
TOO_OLD = "make: python3 is older than Python 3.11: make PYTHON=/path/to/python3.11 ..."
NO_VENV = "make: python3 has no venv module; on Debian and Ubuntu: apt-get install python3-venv"


@pytest.mark.parametrize(
    ("python", "told"),
    [
        (None, NONE),
        ("case $2 in *version_info*) exit 1;; esac", TOO_OLD),
        ("case $2 in *version_info*) exit 0;; *) echo 'No module named ensurepip' >&2; exit 1;; esac", NO_VENV),
    ],
    ids=["no Python", "an old Python", "no venv"],
)
def test_make_reports_a_missing_program_in_one_line(tmp_path: Path, python: str | None, told: str) -> None:
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("make", "sh"):
        (programs / name).symlink_to(str(shutil.which(name)))
    if python:
        (programs / "python3").write_text(f"#!/bin/sh\n{python}\n")
        (programs / "python3").chmod(0o755)
    done = subprocess.run(
        ["make", "demo"], cwd=tmp_path, env={"PATH": str(programs)}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if "***" not in line]
    assert (errors, done.stdout) == ([told], "")
