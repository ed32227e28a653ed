"""The stages of a run without a network are measured, in all and for each node."""

import pytest

from benchmarks import formation
from benchmarks.launchers import Plan

FEW, SOME, MANY = 2, 8, 20


def test_each_stage_and_the_longest_events_are_measured(monkeypatch):
    monkeypatch.setattr(formation, "NODES", (FEW, SOME, MANY))
    monkeypatch.setattr(formation, "EVENT_BARS_MS", {SOME: 50.0})
    rows = formation.measure(Plan(repeat=2, torchrun=False))
    assert all(len(row.samples) == 2 for row in rows)
    figures = {(row.measurement, row.subject): row.samples for row in rows}
    whole, each = figures["core round", f"{MANY} nodes"], figures["core round, a node", f"{MANY} nodes"]
    assert [1e6 * seconds / MANY for seconds in whole] == pytest.approx(list(each))
    barred = {row.measurement for row in rows if row.bar is not None}
    assert {"core restart", "core status", "codec: a join in", "one event: join that completes a round"} <= barred
