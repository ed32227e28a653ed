"""Floors to compare launches, memory and rounds with: a launcher without features, and bare connections."""

import os
import signal

from benchmarks import swarm
from benchmarks.bare_server import answer
from benchmarks.launchers import ADDRESS, OURS, PlainAgent, Plan
from benchmarks.results import times
from benchmarks.scenario import Taken
from benchmarks.single_node import PLAIN, WITH_SERVER, beside_plain
from benchmarks.stage import Stage, free_port

WORKERS = 3
NODES = swarm.GROUP + 2


def test_a_launcher_without_features_joins_starts_its_workers_and_waits_for_them():
    plain, port = PlainAgent(nproc=WORKERS), free_port()
    with Stage() as stage:
        stage.start(plain.server(port, stage.folder))
        stage.wait_for_port(port, ADDRESS)
        agent = stage.start([*plain.agent(0, "1", port), *stage.worker])
        lines = stage.first_lines(WORKERS, agent.started_s)
        assert sorted(lines) == [*range(WORKERS)]
        assert agent.exit_code is None
        for line in lines.values():
            os.kill(line.pid, signal.SIGKILL)
        agent.wait()
        assert (agent.exit_code, agent.text()) == (0, "")


def test_a_swarm_meets_at_the_bare_server_as_at_a_real_one(monkeypatch):
    monkeypatch.setattr(swarm, "ROUND_BARS_S", {NODES: 0.1})
    monkeypatch.setattr(swarm, "FLOOR_BARS", {NODES: 1.6})
    rows = {(row.measurement, row.subject): row for row in swarm.measure(Plan(repeat=2, torchrun=False))}
    ours = rows["swarm round", f"{NODES} nodes"].samples
    floor = rows[swarm.round_line(NODES), "floor: as many bare connections"].samples
    beside = rows["swarm round, times the floor", f"{NODES} nodes"]
    assert (list(beside.samples), beside.bar) == (times(ours, floor), 1.6)
    assert len(floor) == 2


def test_bare_answers_are_as_long_as_real_ones():
    assert 300 < len(answer(10_000)) < 600


def test_each_sample_is_compared_with_the_floor_of_its_turn():
    assert times([3.0, 4.0, 9.0], [2.0, 1.0]) == [1.5, 4.0]


def test_our_figure_is_a_multiple_of_a_launcher_without_features():
    taken = {OURS: Taken([3.0, 4.0]), WITH_SERVER: Taken([2.0, 1.0]), PLAIN: Taken([2.0, 1.0])}
    rows = beside_plain(Plan(repeat=2, torchrun=False), "launch", "s", taken, {}, 1.5)
    beside = [row for row in rows if row.measurement == "launch, times that of a launcher without features"]
    assert [(row.subject, row.unit, list(row.samples), row.is_met) for row in beside] == [
        (OURS, "times", [1.5, 4.0], False),
        (WITH_SERVER, "times", [1.0, 1.0], True),
        (PLAIN, "s", [2.0, 1.0], None),
    ]
