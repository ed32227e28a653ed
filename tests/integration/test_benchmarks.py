"""The benchmarks measure, and leave nothing behind."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process_info import command_line, until
from tests.support.programs import Program

PATIENCE_S = 60.0
COMMAND = (sys.executable, "-m", "benchmarks", "--no-torchrun", "--repeat", "1")
TWO_AT_ONCE = """
from benchmarks.timers import at_once
from benchmarks.coordinator import COORDINATOR
from benchmarks.launchers import NodeAgent
at_once([lambda: COORDINATOR.sample(NodeAgent(), 1)] * 2)
"""


async def start(folder: Path, *command: str) -> Program:
    """Start a command. Whatever that starts has `folder` on its command line."""
    return await Program.start(*command, env={"TMPDIR": str(folder)})


@pytest.mark.parametrize("name", ["recovery", "lost-noticed", "scale-up", "replacement"])
async def test_a_measurement_sees_what_it_waits_for(name: str, tmp_path: Path) -> None:
    """Whatever happens on this machine, node-agent recovers, and no process stays."""
    measuring = await start(tmp_path, *COMMAND, name, "--json", str(tmp_path / "rows.json"))
    assert await measuring.exit_code(PATIENCE_S) == 0
    ours, floor = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert (ours["subject"], ours["n"], floor["n"]) == ("node-agent", 1, 1)
    assert min(ours["samples"] + floor["samples"]) > 0
    assert list(processes_of(tmp_path)) == []


@pytest.mark.parametrize("arguments", [(*COMMAND, "coordinator"), (sys.executable, "-c", TWO_AT_ONCE)])
async def test_an_interruption_ends_every_process(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Ctrl-C reaches the whole group of processes."""
    measuring = await start(tmp_path, *arguments)
    await until(lambda: len(list(processes_of(tmp_path))) >= 2)
    os.killpg(measuring.pid, signal.SIGINT)
    assert await measuring.exit_code(PATIENCE_S) in (130, -signal.SIGINT)
    assert list(processes_of(tmp_path)) == []


def processes_of(folder: Path) -> Iterator[str]:
    """The command lines of servers, agents and workers that a benchmark has started."""
    lines = (command_line(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return (line for line in lines if f"{folder}{os.sep}benchmarks-" in line)
