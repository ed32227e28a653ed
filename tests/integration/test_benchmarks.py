"""The benchmarks measure, and leave nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PATIENCE_S = 60.0
LOOK_S = 0.02
COMMAND = (sys.executable, "-m", "benchmarks", "--no-torchrun", "--repeat", "1")


@pytest.mark.parametrize("name", ["recovery", "lost-noticed", "scale-up", "replacement"])
def test_a_measurement_sees_what_it_waits_for(name, tmp_path):
    """Whatever happens on this machine, node-agent recovers, and no process stays."""
    measuring = _start(tmp_path, name, "--json", str(tmp_path / "rows.json"))
    said, _ = measuring.communicate(timeout=PATIENCE_S)
    assert measuring.returncode == 0, said
    ours, floor = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert (ours["subject"], ours["n"], floor["n"]) == ("node-agent", 1, 1)
    assert min(ours["samples"] + floor["samples"]) > 0, said
    assert list(_processes_of(tmp_path)) == []


def test_an_interruption_ends_every_process(tmp_path):
    measuring = _start(tmp_path, "coordinator")
    deadline_s = time.monotonic() + PATIENCE_S
    while len(list(_processes_of(tmp_path))) < 2:
        assert time.monotonic() < deadline_s, "it starts nothing"
        time.sleep(LOOK_S)
    measuring.send_signal(signal.SIGINT)
    said, _ = measuring.communicate(timeout=PATIENCE_S)
    assert measuring.returncode == 130, said
    assert list(_processes_of(tmp_path)) == []


def _start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Whatever it starts has `folder` on its command line."""
    return subprocess.Popen(
        [*COMMAND, *arguments],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _processes_of(folder: Path) -> Iterator[str]:
    """The command lines of servers, agents and workers that a benchmark has started."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if f"{folder}{os.sep}benchmarks-" in line:
            yield line
