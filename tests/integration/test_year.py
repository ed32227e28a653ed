"""The benchmark of a year on real processes: its score matches the events."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.launchers import DIGITS, warm_python

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, sys
from benchmarks.year import campaign
from benchmarks.year.campaign import Campaign, Planned
from benchmarks.year.contenders import all_contenders

campaign.RATE_S = 1.0
faults = [Planned(at, title, pick, 3.0) for at, title, pick in json.loads(sys.argv[1])]
ours = all_contenders()[0]
score = Campaign(ours, 4, 1, lambda text: print(text, file=sys.stderr)).play(faults, minutes=0.25)
print(json.dumps(score.as_json()))
"""
NOTHING_COMES_BACK = PROGRAM.replace("faults =", "Campaign._later = lambda *_: None\nfaults =").replace("0.25", "0.05")

TRAINING = """
import json, sys
from benchmarks.year import training

training.CHECK_INTERVAL_S, training.STEP_DELAY_MS = 6.0, 1500
training.FLAGS = ("--progress-timeout", "start=60,step=1,checkpoint=1", "--on-hang", "report")
print(json.dumps(training.watch(0.05, lambda text: print(text, file=sys.stderr)).as_json()))
"""


async def play(program: str, *arguments: str, **env: str) -> dict[str, Any]:
    """Run a program in a separate process that is the parent of all it starts. Return the JSON that it prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, *arguments),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'protocol'}", **env},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    stdout, stderr = await process.communicate()
    assert process.returncode == 0, stderr.decode()
    return json.loads(stdout)


@pytest.mark.torch
@pytest.mark.timeout(180)
@pytest.mark.xdist_group(DIGITS)
async def test_alarms_while_real_training_continues_are_counted(tmp_path: Path):
    """The limits are too short for this training, so each alarm is wrong."""
    watched = await play(TRAINING, **warm_python(DIGITS, tmp_path, {"OMP_NUM_THREADS": "1"}))
    assert watched["steps"] > 0 and watched["hours"] > 0
    assert any("no progress" in sentence for sentence in watched["alarms"])


@pytest.mark.timeout(120)
async def test_faults_are_injected_recovered_from_and_named():
    faults = [(0.5, "crash", 0.3), (5.0, "agent killed", 0.9), (8.0, "server killed", 0.5)]
    score = await play(PROGRAM, json.dumps(faults))
    assert not score["trouble"]
    assert [fault["title"] for fault in score["faults"]] == [title for _, title, _ in faults]
    assert (score["persons"], score["survived"]) == (0, 3)
    crash, killed, _ = score["faults"]
    assert crash["named"] and killed["named"]
    assert 0 < crash["recovery_s"] < score["wall_s"] and 0 < killed["recovery_s"] < score["wall_s"]
    assert score["steps"] > 0 and score["repeated"] >= 0


async def test_an_unreachable_server_breaks_the_score_without_naming_a_wrong_rank():
    score = await play(NOTHING_COMES_BACK, json.dumps([(0.3, "crash", 0.3), (1.5, "server killed", 0.5)]))
    assert score["trouble"].startswith("Broken: rdzv-server does not say who was named: ")
    assert [fault["named"] for fault in score["faults"]] == [None, None]


@pytest.mark.parametrize(("stop", "send"), [(signal.SIGTERM, os.kill), (signal.SIGINT, os.killpg)])
async def test_a_simulation_that_is_asked_to_stop_leaves_no_process_behind(
    stop: signal.Signals, send: Callable[[int, int], None]
) -> None:
    """No process of the simulation outlives it and holds its pipe open: a year of 1,024 nodes would take minutes.

    A service manager asks one process to stop, and a terminal all of them.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks", "year", "--only", "simulation", "--nodes", "1024", "--processes", "2"),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stderr
    assert b"in 2 processes" in await process.stderr.readline()
    send(process.pid, stop)
    said = (await process.stderr.read()).decode()
    assert await process.wait() == 128 + stop, said
    assert said == "benchmarks: stopped before the end: nothing was written\n"
