"""Hundreds of schedules, one a seed. Under any faults nothing forbidden happens, and when the faults stop, every run
recovers or ends.

`SIMULATION_SCHEDULES=100000 pytest tests/simulation -n auto` plays many more; `SIMULATION_SEED=7 pytest
tests/simulation/test_schedules.py` plays one.
"""

import os
import time

import pytest

from rdzv_server.core.runs import registry
from simulation.faults import Schedule

SCHEDULES = int(os.environ.get("SIMULATION_SCHEDULES", "500"))
CHUNKS = 10
ONLY = os.environ.get("SIMULATION_SEED")


@pytest.mark.timeout(60 + SCHEDULES)
@pytest.mark.parametrize("chunk", ["one"] if ONLY else range(CHUNKS))
def test_every_schedule_ends_well(chunk):
    for seed in [int(ONLY)] if ONLY else range(chunk, SCHEDULES, CHUNKS):
        play(seed)


def play(seed: int, *, judges_hangs: bool = True) -> None:
    try:
        Schedule(seed, judges_hangs=judges_hangs).play()
    except AssertionError as violation:
        pytest.fail(
            f"seed {seed}; once more: SIMULATION_SEED={seed} python -m pytest tests/simulation/test_schedules.py\n"
            f"{violation}",
            pytrace=False,
        )


@pytest.mark.timeout(60 + SCHEDULES)
def test_every_schedule_ends_well_without_policies(monkeypatch):
    monkeypatch.setattr(registry, "POLICIES", ())
    for seed in range(max(1, SCHEDULES // 20)):
        play(seed, judges_hangs=False)


def test_a_seed_gives_the_same_story_twice(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1_750_000_000.0)  # a report contains the time of each restart
    stories = []
    for _ in range(2):
        schedule = Schedule(11)
        schedule.play()
        stories.append(schedule.cluster.story())
    assert stories[0] == stories[1]
