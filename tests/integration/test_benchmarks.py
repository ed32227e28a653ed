"""The benchmarks measure, and leave nothing behind."""

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process_info import command_line, until
from tests.support.programs import Program, Server

pytestmark = pytest.mark.timeout(300)

PATIENCE_S = 60.0
COMMAND = (sys.executable, "-m", "benchmarks", "--no-torchrun", "--repeat", "1")
TWO_AT_ONCE = """
from benchmarks.timers import at_once
from benchmarks.coordinator import COORDINATOR
from benchmarks.launchers import NodeAgent
at_once([lambda: COORDINATOR.sample(NodeAgent(), 1)] * 2)
"""
BESIDE_OPERATORS = """
import json
from benchmarks import neighbours, operators
from benchmarks.launchers import Plan
neighbours.QUIET_S = 0.5
operators.COMMAND = {command}
cases = [neighbours.Beside(20, small_runs=200, is_watched=is_watched) for is_watched in (False, True)]
print(json.dumps([row.as_json() for row in neighbours.compare(Plan(repeat=1), cases)]))
"""


async def start(folder: Path, *command: str) -> Program:
    """Start a command. All processes that it starts have `folder` on their command line."""
    return await Program.start(*command, env={"TMPDIR": str(folder)})


@pytest.mark.parametrize("name", ["recovery", "lost-noticed", "scale-up", "replacement"])
async def test_a_measurement_detects_the_event_it_waits_for(name: str, tmp_path: Path) -> None:
    """node-agent recovers and no process stays, in all cases."""
    measuring = await start(tmp_path, *COMMAND, name, "--json", str(tmp_path / "rows.json"))
    assert await measuring.exit_code(PATIENCE_S) == 0
    ours, floor = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert (ours["subject"], ours["n"], floor["n"]) == ("node-agent", 1, 1)
    assert min(ours["samples"] + floor["samples"]) > 0
    assert list(processes_of(tmp_path)) == []


@pytest.mark.timeout(600)
async def test_operators_look_at_all_runs_while_a_neighbour_asks(tmp_path: Path) -> None:
    """Streams of 200 runs are open, and every kind of request is answered, before and during the large run."""
    measuring = await start(tmp_path, sys.executable, "-c", BESIDE_OPERATORS.format(command="operators.COMMAND"))
    assert await measuring.exit_code(16 * PATIENCE_S) == 0, measuring.err
    rows = json.loads(measuring.out[-1])
    for beside in ("20 nodes, 200 runs", "20 nodes, 200 runs, watched"):
        asked = [row for row in rows if row["measurement"] == "neighbour's request, worst"]
        asked = [row for row in asked if row["subject"].partition(", ")[2] == beside]
        assert asked and min(sample for row in asked for sample in row["samples"]) > 0
    (answers,) = (row for row in rows if row["measurement"] == "operators' answers")
    assert answers["subject"] == "20 nodes, 200 runs, watched" and answers["samples"][0] > 0
    assert list(processes_of(tmp_path)) == []


async def test_operators_that_are_gone_are_not_measured(tmp_path: Path) -> None:
    """Operators whose process dies are not measured, and the reason is reported."""
    dies = [sys.executable, "-c", "raise SystemExit('too many watch')"]
    measuring = await start(tmp_path, sys.executable, "-c", BESIDE_OPERATORS.format(command=dies))
    assert await measuring.exit_code(2 * PATIENCE_S) == 1
    assert "the operators' process has ended with 1:\ntoo many watch" in "\n".join(measuring.err)


async def test_an_operator_that_is_refused_ends_them_all(programs: None, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("agents-0123456789\n")
    token.chmod(0o600)
    server = await Server.listen("--store", "memory", "--token-file", str(token))
    operators = (sys.executable, "-m", "benchmarks.operators", str(server.port), "large")
    refused = await start(tmp_path, *operators)
    assert await refused.exit_code(PATIENCE_S) == 1
    assert re.search(r"operators: /\S+: 401", refused.err[-1]), "whichever path is answered first"
    many = await start(tmp_path, *operators, *(f"small-{number}" for number in range(1_000)))
    assert await many.exit_code(PATIENCE_S) == 1
    assert many.err == ["operators: 1020 would follow events, and a server lets 1000"]


@pytest.mark.parametrize("arguments", [(*COMMAND, "coordinator"), (sys.executable, "-c", TWO_AT_ONCE)])
async def test_an_interruption_ends_every_process(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Ctrl-C reaches the whole group of processes."""
    measuring = await start(tmp_path, *arguments)
    await until(lambda: len(list(processes_of(tmp_path))) >= 2)
    os.killpg(measuring.pid, signal.SIGINT)
    assert await measuring.exit_code(PATIENCE_S) in (130, -signal.SIGINT)
    assert list(processes_of(tmp_path)) == []


def processes_of(folder: Path) -> Iterator[str]:
    """Yield the command lines of servers, agents and workers that a benchmark has started."""
    lines = (command_line(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return (line for line in lines if f"{folder}{os.sep}benchmarks-" in line)
