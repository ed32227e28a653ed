"""The stages of a run without a network are measured, each in all and a node."""

import gc

import pytest

from benchmarks import formation
from benchmarks.launchers import Plan

FEW, SOME, MANY = 2, 8, 20


@pytest.fixture
def rows(monkeypatch):
    monkeypatch.setattr(formation, "NODES", (FEW, SOME, MANY))
    monkeypatch.setattr(formation, "EVENT_BARS_MS", {SOME: 50.0})
    return formation.measure(Plan(repeat=2, torchrun=False))


def test_each_stage_has_its_bar_where_nodes_are_most(rows):
    barred = {row.measurement for row in rows if row.bar is not None and row.subject == f"{MANY} nodes"}
    assert {"core round", "core restart", "core status", "codec: a join in"} <= barred
    assert all(len(row.samples) == 2 for row in rows)


def test_a_node_costs_what_its_stage_does_divided_by_all(rows):
    figures = {(row.measurement, row.subject): row.samples for row in rows}
    whole, each = figures["core round", f"{MANY} nodes"], figures["core round, a node", f"{MANY} nodes"]
    assert [1e6 * seconds / MANY for seconds in whole] == pytest.approx(list(each))


def test_the_longest_events_are_named(rows):
    events = {row.measurement for row in rows if row.subject == f"{SOME} nodes" and row.unit == "ms"}
    assert events == {
        "one event: join that completes a round",
        "one event: failure that stops all",
        "one event: status",
        "one event: snapshot",
        "one event: loss of all",
    }


def test_the_collector_of_garbage_is_left_as_it_was(rows):
    assert gc.get_threshold() != formation.COLLECT_AFTER
