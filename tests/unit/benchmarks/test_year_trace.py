"""The trace of a year's faults, and how it is drawn at random."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest

from benchmarks.year import kinds, trace
from benchmarks.year.kinds import Kind


def variation(faults: Sequence[float]) -> float:
    """Return the coefficient of variation of the gaps between these times: 1 without bursts."""
    gaps = [after - before for before, after in pairwise(faults)]
    mean = sum(gaps) / len(gaps)
    return (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 / mean


def test_the_trace_is_as_described():
    rows = trace.load()
    worst = Counter(row.server for row in rows).most_common(20)
    assert (len(rows), len({row.server for row in rows})) == (584, 231)
    assert all(0 <= row.start_day <= trace.DAYS + 1 and row.end_day >= row.start_day for row in rows)
    assert sum(count for _, count in worst) / len(rows) == pytest.approx(0.24, abs=0.01)
    assert variation([row.start_day for row in rows]) == pytest.approx(1.76, abs=0.01)


def test_every_class_of_the_trace_has_its_kinds():
    for row in trace.load():
        assert kinds.odds(row.class_, row.description), row


@pytest.mark.parametrize("shape", ["poisson", "bursty"])
@pytest.mark.parametrize("nodes", [128, 1_024, 10_000])
def test_any_number_of_nodes_has_the_traces_rate(nodes, shape):
    faults = trace.resample(nodes, seed=1, shape=shape)
    expected = len(trace.load()) / trace.SERVERS * nodes
    assert len(faults) == pytest.approx(expected, rel=4 / expected**0.5)
    assert [fault.at_s for fault in faults] == sorted(fault.at_s for fault in faults)
    assert all(0 <= fault.node < nodes for fault in faults)
    assert {fault.kind for fault in faults} >= {Kind.CRASH, Kind.HANG, Kind.DEATH, Kind.DRAIN}


def test_checks_look_for_all_but_two_of_the_faults_after_which_a_node_stays_bad():
    """docs/explanation/unattended.md has these figures."""
    stay = [row for row in trace.load() if row.class_ in kinds.STAYS_BAD]
    bad = [row for row in stay if kinds.odds(row.class_, row.description) != ((Kind.SLOW, 1),)]
    assert (len(bad), sum(kinds.is_checked(row.description) for row in bad)) == (128, 126)


def test_a_seed_gives_the_same_year_and_another_one_another():
    assert trace.resample(128, 7) == trace.resample(128, 7) != trace.resample(128, 8)


def test_parts_of_a_year_have_all_of_its_faults_and_unrepaired_ones():
    whole, days = trace.resample(512, 5), trace.DAYS / 3
    for number in range(3):
        begin_s, end_s = (each * days * trace.DAY_S for each in (number, number + 1))
        part = trace.resample(512, 5, days=days, first_day=number * days)
        began = [fault for fault in part if fault.at_s >= 0]
        assert [fault.node for fault in began] == [fault.node for fault in whole if begin_s <= fault.at_s < end_s]
        assert [fault.at_s + begin_s for fault in began] == pytest.approx(
            [fault.at_s for fault in whole if begin_s <= fault.at_s < end_s]
        )
        lasting = [fault.node for fault in whole if fault.at_s < begin_s < fault.at_s + fault.repair_s]
        assert [fault.node for fault in part if fault.at_s < 0] == lasting
        assert bool(lasting) == bool(number)


def test_bursts_and_lemons_are_kept_where_they_are_asked_for():
    even, uneven = (trace.resample(trace.SERVERS, 3, shape) for shape in ("poisson", "bursty"))
    gaps = [variation([fault.at_s for fault in faults]) for faults in (even, uneven)]
    worst = [
        sum(n for _, n in Counter(f.node for f in faults).most_common(20)) / len(faults) for faults in (even, uneven)
    ]
    assert gaps[0] == pytest.approx(1.0, abs=0.2) and gaps[1] > 1.4
    assert worst[0] < 0.16 < 0.2 < worst[1]
