"""Counts the instructions of the hot paths, and compares them with the recorded figures."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

from tests.instructions.hot_paths import CALIBRATION, hot_paths, starts_late

EXPECTED = Path(__file__).with_name("expected.toml")
TOLERANCE = 0.20
MARK = "getppid"
WRITE = "python -m tests.instructions --write"
REASONS = "docs/development/adr/0020-count-instructions-in-tests.md says why they grew."
TOTAL = re.compile(r"^summary: (\d+)$", re.MULTILINE)


def why_not() -> str | None:
    """Return why instructions cannot be counted here, None if they can."""
    missing = sys.platform != "linux" or not shutil.which("valgrind")
    return "valgrind is not installed (Debian: apt-get install valgrind)" if missing else None


def measure() -> dict[str, float]:
    """Return the instructions of one pass of each hot path, in units of the calibration."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "counts"
        _run(out)
        paths = hot_paths()
        # Each path has two marks: the first writes down what came before, the second what counts.
        counts = {path.name: _total(out, 2 * place + 2) / path.times for place, path in enumerate(paths)}
    unit = counts.pop(CALIBRATION)
    return {name: counted / unit for name, counted in counts.items()}


def _run(out: Path) -> None:
    valgrind = ("valgrind", "--tool=callgrind", "--quiet", f"--dump-before={MARK}", f"--callgrind-out-file={out}")
    if starts_late():
        valgrind += ("--instr-atstart=no",)
    ended = subprocess.run(
        [*valgrind, sys.executable, "-m", "tests.instructions.hot_paths"],
        cwd=Path(__file__).parents[2],
        env=_plain_environment() | {"PYTHONHASHSEED": "0"},
        stderr=subprocess.PIPE,
        text=True,
    )
    if ended.returncode:
        raise RuntimeError(f"{ended.args} exited with {ended.returncode}: {ended.stderr}")


def _plain_environment() -> dict[str, str]:
    """Return the environment without variables that change how Python runs a program."""
    return {name: value for name, value in os.environ.items() if name == "PYTHONPATH" or not name.startswith("PYTHON")}


def _total(out: Path, mark: int) -> int:
    (total,) = TOTAL.findall(Path(f"{out}.{mark}").read_text())
    return int(total)


def expected() -> dict[str, float]:
    """Return the recorded figures."""
    figures: dict[str, float] = tomllib.loads(EXPECTED.read_text())
    return figures


def write(figures: Mapping[str, float]) -> None:
    """Record the figures."""
    lines = [f"# Instructions of the hot paths, in units of plain Python: {WRITE}", f"# {REASONS}"]
    lines += [f"{json.dumps(name)} = {figure:.4g}" for name, figure in figures.items()]
    EXPECTED.write_text("\n".join(lines) + "\n")


def complaints(recorded: Mapping[str, float], measured: Mapping[str, float]) -> list[str]:
    """Return the paths that have grown or fallen by more than the tolerance, and those missing in one of the two."""
    odd = recorded.keys() ^ measured.keys()
    said = [f"{name} is {'no hot path' if name in recorded else 'not recorded'}: {WRITE}" for name in sorted(odd)]
    for name in recorded.keys() & measured.keys():
        change = measured[name] / recorded[name] - 1
        if abs(change) > TOLERANCE:
            advice = "" if change > 0 else f"; keep it so with {WRITE}"
            figures = f"{measured[name]:.4g}, not {recorded[name]:.4g}"
            said.append(f"{name} takes {change:+.0%} instructions{advice}: {figures}")
    return sorted(said)
