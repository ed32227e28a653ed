"""A short year with the real cores in simulated time: nothing forbidden happens, and no operator is needed."""

from dataclasses import asdict, replace

import pytest

from benchmarks.year import scenarios, trace
from benchmarks.year.invariants import Violation
from benchmarks.year.kinds import Kind
from benchmarks.year.model import Costs, Ledger, Policy, formula, pool_size
from benchmarks.year.scenarios import Scenario, play
from benchmarks.year.simulation import Simulation
from benchmarks.year.torchrun_model import TorchrunPolicy, TorchrunYear
from benchmarks.year.trace import DAY_S, Fault

COSTS = Costs()
HOUR_S = 3600.0
WITHOUT_SPARES = Policy(spares=0.0, shrink=0.5)
STRICT = Policy(spares=0.0, shrink=0.5, max_restarts=3, exclude_after=None)


def year_of(*faults: Fault, nodes: int = 8, policy: Policy = WITHOUT_SPARES, days: float = 1.0):
    return Simulation(nodes, list(faults), policy, COSTS, days=days).play()


def fault(
    kind: Kind,
    at_s: float = HOUR_S,
    *,
    node: int = 1,
    repair_s: float = HOUR_S,
    stays_bad: bool = False,
    hidden: float = 1.0,
) -> Fault:
    return Fault(at_s, repair_s, node, kind, stays_bad, hidden)


def spent(year) -> dict[str, float]:
    return {phase: seconds for phase, seconds in year.ledger.spent_s.items() if seconds > 0.5}


def test_a_quiet_day_is_all_training():
    year = year_of()
    assert (year.rounds, year.persons) == (1, 0)
    assert spent(year) == pytest.approx({"starting": COSTS.start_s, "training": DAY_S - COSTS.start_s}, abs=1)


@pytest.mark.parametrize(
    ("kind", "noticed_s", "cause"),
    [
        (Kind.CRASH, 0.0, "worker_failure"),
        (Kind.HANG, WITHOUT_SPARES.hang_noticed_s, "worker_failure"),
        (Kind.AGENT_KILLED, 1.0, "node_lost"),
        (Kind.DEATH, WITHOUT_SPARES.lease_s, "node_lost"),
        (Kind.CUT, WITHOUT_SPARES.lease_s, "node_lost"),
        (Kind.DRAIN, 0.0, "node_drained"),
    ],
)
def test_each_kind_of_fault_is_noticed_in_its_time_and_survived(kind, noticed_s, cause):
    year = year_of(fault(kind, HOUR_S + COSTS.start_s + 100))
    assert year.persons == 0 and year.restarts[cause] == 1
    assert noticed_s / 2 - 0.1 <= spent(year).get("detecting", 0.0) <= noticed_s + 0.1
    assert year.ledger.spent_s["lost"] <= COSTS.checkpoint_every_s * year.rounds
    back = 0 if kind in (Kind.CRASH, Kind.HANG) else 1
    assert year.restarts.get("node_arrived", 0) == back, "the node is back once it has been repaired"


def test_a_spare_takes_the_place_and_nothing_restarts_when_the_node_is_back():
    year = year_of(fault(Kind.DEATH), nodes=10, policy=Policy(spares=0.1))
    assert year.restarts == {"node_lost": 1}
    assert year.ledger.goodput == pytest.approx(year.ledger.ettr)


@pytest.mark.parametrize(("repair_s", "waited_s", "restarts"), [(60.0, 65.0, 0), (HOUR_S, 600.0, 1)])
def test_a_replacement_is_waited_for_as_long_as_was_asked_for(repair_s, waited_s, restarts):
    """A node that returns in time takes its place. One that returns late finds a run that has continued, and restarts
    it.
    """
    policy = Policy(spares=0.0, shrink=0.5, shrink_after_s=600.0)
    year = year_of(fault(Kind.AGENT_KILLED, repair_s=repair_s), policy=policy)
    assert year.restarts == {"node_lost": 1} | ({"node_arrived": 1} if restarts else {})
    assert spent(year)["restarting"] == pytest.approx(waited_s, abs=10)


def test_a_bad_node_is_excluded_and_without_exclusion_an_operator_is_needed():
    bad = fault(Kind.CRASH, repair_s=10 * HOUR_S, stays_bad=True)
    assert year_of(bad).persons == 0
    year = year_of(bad, policy=replace(WITHOUT_SPARES, exclude_after=None))
    assert year.persons == 1
    assert spent(year)["person"] == pytest.approx(COSTS.person_s, abs=1)


@pytest.mark.parametrize(("hidden", "again"), [(0.5, 0), (0.95, 1)])
def test_a_bad_node_that_its_check_finds_fails_once(hidden, again):
    """A bad node that is found is out until its repair. One that is not found fails until it is excluded."""
    bad = fault(Kind.CRASH, repair_s=10 * HOUR_S, stays_bad=True, hidden=hidden)
    year = year_of(bad, policy=Policy(spares=0.2, found=0.9), nodes=5)
    assert (year.rounds - 1, year.persons) == (1 + again, 0)
    assert year.restarts_by["a bad node, once more"] == again


def test_a_slow_node_is_replaced_once_it_has_been_noticed():
    slow = fault(Kind.SLOW, repair_s=10 * HOUR_S)
    quickly, never = (year_of(slow, policy=Policy(spares=0.5, slow_noticed_s=after_s)) for after_s in (600.0, None))
    assert spent(quickly)["slowed"] == pytest.approx(600 * (1 - 1 / COSTS.slow_factor), rel=0.1)
    assert spent(never)["slowed"] > 10 * spent(quickly)["slowed"]


@pytest.mark.parametrize("kind", [Kind.DRAIN, Kind.SLOW])
def test_work_that_workers_save_after_a_notice_is_not_lost(kind):
    """Nothing is lost when a node leaves as requested, or when it returns."""
    found = {
        notice_s: year_of(fault(kind), policy=replace(WITHOUT_SPARES, notice_s=notice_s)) for notice_s in (None, 60.0)
    }
    assert [year.rounds for year in found.values()] == [3, 3]
    assert found[None].ledger.spent_s["lost"] > 60 and found[60.0].ledger.spent_s["lost"] == pytest.approx(0, abs=1e-6)
    assert spent(found[60.0])["saving"] == pytest.approx(2 * COSTS.save_s, abs=1)


def test_with_survivors_only_the_step_under_way_is_lost_and_each_restart_takes_longer():
    found = {
        survivors: year_of(fault(Kind.CRASH), policy=replace(WITHOUT_SPARES, survivors=survivors))
        for survivors in (False, True)
    }
    assert [year.rounds for year in found.values()] == [2, 2]
    assert found[False].ledger.spent_s["lost"] > 60 and found[True].ledger.spent_s["lost"] < COSTS.step_s
    restarting = [spent(year)["restarting"] for year in found.values()]
    assert restarting[1] - restarting[0] == pytest.approx(COSTS.save_s, abs=1)


def test_a_round_without_a_step_has_nothing_for_survivors_to_save():
    """The second fault comes before the workers of the second round have taken a step."""
    policy = replace(WITHOUT_SPARES, survivors=True)
    year = year_of(fault(Kind.CRASH), fault(Kind.CRASH, HOUR_S + COSTS.save_s + 60, node=2), policy=policy)
    assert year.rounds == 3
    assert spent(year)["restarting"] == pytest.approx(COSTS.save_s + 2 * COSTS.stop_s, abs=3)


def test_faults_that_are_noticed_at_once_cost_no_detection():
    faults = [fault(kind, HOUR_S * hour, node=hour) for hour, kind in enumerate(Kind, start=1)]
    year = year_of(*faults, policy=replace(WITHOUT_SPARES, is_noticed_at_once=True, slow_noticed_s=1.0))
    assert "detecting" not in spent(year) and year.faults_in_run == len(faults)


def test_every_second_without_training_has_a_cause():
    year = year_of(fault(Kind.DEATH), fault(Kind.SLOW, 4 * HOUR_S, node=2))
    ledger = year.ledger
    assert sum(ledger.by_cause.values()) == pytest.approx(ledger.total_s - ledger.spent_s["training"])
    assert {cause for cause, seconds in ledger.by_cause.items() if seconds > 1} == {
        "the start", "death", "a node that is back", "a slow node",
    }  # fmt: skip


def test_a_second_fault_during_the_recovery_from_the_first_is_survived():
    for after_s in (0.001, 1.0, 3.004, 4.0, 60.0):
        year = year_of(fault(Kind.CRASH), fault(Kind.DEATH, HOUR_S + after_s, node=2))
        assert year.persons == 0 and year.checks


@pytest.mark.parametrize("shape", trace.SHAPES)
def test_no_operator_is_needed_in_a_month_of_real_faults(shape):
    policy = Policy(spares=0.05)
    faults = trace.resample(pool_size(128, policy), 4, shape, days=30)
    year = Simulation(128, faults, policy, COSTS, days=30).play()
    assert year.persons == 0 and year.faults_in_run > 5 and year.checks > year.faults_in_run
    assert year.ledger.ettr > formula(128, year.faults_in_run / 128 / 30, COSTS.start_s, COSTS) - 0.01


def test_the_same_seed_gives_the_same_story_twice():
    outcomes = [asdict(play(Scenario(about="", nodes=32, days=60, seed=3))) for _ in range(2)]
    for outcome in outcomes:
        del outcome["took_s"]
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    ("kind", "stays_bad", "is_out"),
    [(Kind.DEATH, False, True), (Kind.SLOW, False, True), (Kind.CRASH, True, True), (Kind.CRASH, False, False)],
)
def test_a_node_whose_fault_began_before_is_out_until_it_is_repaired(kind, stays_bad, is_out):
    began = fault(kind, -HOUR_S, repair_s=2 * HOUR_S, stays_bad=stays_bad)
    year = year_of(began, policy=Policy(spares=0.0, shrink=0.2))
    assert (year.faults, year.persons, year.rounds) == (0, 0, 1 + is_out)
    assert year.restarts.get("node_arrived", 0) == is_out, "after an hour it is there"


def test_a_year_simulated_in_parts_equals_the_whole_year(monkeypatch):
    """Parts differ from the whole only because each begins with a run that forms."""
    scenario, notes = Scenario(about="", nodes=128, days=90.0), []
    (whole,) = scenarios.play_all([scenario], 2, notes.append)
    monkeypatch.setattr(scenarios, "VAST", 128)
    assert scenario.parts == 3
    (parts,) = scenarios.play_all([scenario], 2, notes.append)
    assert parts == replace(play(scenario), took_s=parts.took_s), "in processes or not"
    assert (parts.days, parts.faults, parts.persons) == (whole.days, whole.faults, whole.persons)
    assert parts.restarts == pytest.approx(whole.restarts, rel=0.1)
    assert parts.ettr == pytest.approx(whole.ettr, abs=5e-4)
    assert sum(parts.shares.values()) == pytest.approx(1.0)
    assert [note.partition(":")[0] for note in notes] == ["1 scenarios in 2 processes", "simulation"] * 2


def test_the_day_of_the_first_intervention_counts_from_the_first_part():
    crashes = [fault(Kind.CRASH, 400.0 + 200 * node, node=node) for node in range(8)]
    years = [year_of(days=2.0), year_of(*crashes, policy=STRICT)]
    assert years[1].persons and years[1].first_person_day < 1
    first_day = years[1].first_person_day
    years[0].add(years[1])
    assert (years[0].days, years[0].persons) == (3.0, years[1].persons)
    assert years[0].first_person_day == 2.0 + first_day


def test_a_failing_callback_is_reported_once_and_skipped(monkeypatch):
    monkeypatch.setattr(scenarios, "VAST", 8)
    monkeypatch.setattr(scenarios, "Simulation", None)
    notes: list[str] = []
    assert not scenarios.play_all([Scenario(about="", nodes=8, days=90.0)], 2, notes.append)
    assert len(notes) == 2 and "FAILED: TypeError" in notes[1]


def test_a_broken_promise_is_noticed():
    simulation = Simulation(4, [], WITHOUT_SPARES, COSTS, days=1)
    simulation.at(HOUR_S, lambda: setattr(simulation.pool[2], "assignment", None))
    simulation.at(2 * HOUR_S, lambda: None)
    with pytest.raises(Violation, match="node2 has a seat in round 1 and no workers"):
        simulation.play()


# The ledger, and the model of torchrun.


def test_unsaved_work_is_lost_and_all_times_add_up():
    ledger = Ledger(Costs(checkpoint_every_s=100, checkpoint_s=25), full=2, phase="training", nodes=1)
    ledger.at_rate(0.5, 500.0)
    ledger.enter("detecting", 1000.0)
    ledger.enter("starting", 1010.0)
    expected = {"training": 600.0, "lost": 0.0, "checkpointing": 150.0, "slowed": 250.0, "detecting": 10.0}
    assert {phase: ledger.spent_s[phase] for phase in expected} == pytest.approx(expected)
    assert (ledger.total_s, ledger.node_s) == (1010.0, 600.0)


def torchrun_year(*faults: Fault, **policy: float) -> TorchrunYear:
    return TorchrunYear(8, list(faults), TorchrunPolicy(spares=0.0, shrink=0.5, **policy), COSTS, 1.0).play()


def test_torchrun_waits_for_the_time_out_and_for_a_person_when_the_rendezvous_host_dies():
    year = torchrun_year(fault(Kind.HANG))
    assert (year.persons, year.ledger.spent_s["detecting"]) == (0, 600.0)
    assert torchrun_year(fault(Kind.DEATH, node=0)).persons == 1
    assert torchrun_year(fault(Kind.DEATH)).ledger.total_s == pytest.approx(DAY_S)


@pytest.mark.parametrize(("retry_s", "persons"), [(None, 1), (60.0, 0)])
def test_torchrun_runs_out_of_restarts_and_a_retry_loop_begins_again(retry_s, persons):
    crashes = [fault(Kind.CRASH, HOUR_S * hour, repair_s=1.0) for hour in range(1, 6)]
    assert torchrun_year(*crashes, retry_s=retry_s).persons == persons
