"""Real processes put through faults by the benchmark of a year: what it scores is what happened."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

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


@pytest.mark.timeout(120)
async def test_faults_are_injected_recovered_from_and_named():
    """In a process of its own, whose children are all of what it has started."""
    faults = [(0.5, "crash", 0.3), (5.0, "agent killed", 0.9), (8.0, "server killed", 0.5)]
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, json.dumps(faults)),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'protocol'}"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    stdout, stderr = await program.communicate()
    score = json.loads(stdout)
    assert not score["trouble"], stderr.decode()
    assert [fault["title"] for fault in score["faults"]] == [title for _, title, _ in faults]
    assert (score["persons"], score["survived"]) == (0, 3)
    crash, killed, _ = score["faults"]
    assert crash["named"] and killed["named"]
    assert 0 < crash["recovery_s"] < score["wall_s"] and 0 < killed["recovery_s"] < score["wall_s"]
    assert score["steps"] > 0 and score["repeated"] >= 0
