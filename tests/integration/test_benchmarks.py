"""The benchmarks measure, and leave nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

PATIENCE_S = 60.0
LOOK_S = 0.02
COMMAND = (sys.executable, "-m", "benchmarks", "--no-torchrun", "--repeat", "1")
TWO_AT_ONCE = """
from benchmarks.timers import at_once
from benchmarks.coordinator import COORDINATOR
from benchmarks.launchers import NodeAgent
at_once([lambda: COORDINATOR.sample(NodeAgent(), 1)] * 2)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts a command. Whatever that starts has `tmp_path` on its command line."""
    with ExitStack() as stack:

        def start_command(*command: str) -> "subprocess.Popen[str]":
            started = subprocess.Popen(
                command,
                start_new_session=True,
                env={**os.environ, "TMPDIR": str(tmp_path)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            stack.enter_context(started)
            stack.callback(started.terminate)
            return started

        yield start_command


@pytest.mark.parametrize("name", ["recovery", "lost-noticed", "scale-up", "replacement"])
def test_a_measurement_sees_what_it_waits_for(name, start, tmp_path):
    """Whatever happens on this machine, node-agent recovers, and no process stays."""
    measuring = start(*COMMAND, name, "--json", str(tmp_path / "rows.json"))
    said, _ = measuring.communicate(timeout=PATIENCE_S)
    assert measuring.returncode == 0, said
    ours, floor = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert (ours["subject"], ours["n"], floor["n"]) == ("node-agent", 1, 1)
    assert min(ours["samples"] + floor["samples"]) > 0, said
    assert list(_processes_of(tmp_path)) == []


@pytest.mark.parametrize("arguments", [(*COMMAND, "coordinator"), (sys.executable, "-c", TWO_AT_ONCE)])
def test_an_interruption_ends_every_process(arguments, start, tmp_path):
    """Ctrl-C reaches the whole group of processes."""
    measuring = start(*arguments)
    deadline_s = time.monotonic() + PATIENCE_S
    while len(list(_processes_of(tmp_path))) < 2:
        assert time.monotonic() < deadline_s, "it starts nothing"
        time.sleep(LOOK_S)
    os.killpg(measuring.pid, signal.SIGINT)
    said, _ = measuring.communicate(timeout=PATIENCE_S)
    assert measuring.returncode in (130, -signal.SIGINT), said
    assert list(_processes_of(tmp_path)) == []


def _processes_of(folder: Path) -> Iterator[str]:
    """The command lines of servers, agents and workers that a benchmark has started."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if f"{folder}{os.sep}benchmarks-" in line:
            yield line
