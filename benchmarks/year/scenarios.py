"""Scenarios of the year in simulated time: policies of ours, ways to run torchrun, and the formula beside them."""

import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from math import ceil
from typing import Any

from benchmarks.year import trace
from benchmarks.year.model import Costs, Ledger, Policy, Year, formula, pool_size
from benchmarks.year.simulation import Simulation
from benchmarks.year.torchrun_model import TorchrunPolicy, TorchrunYear
from benchmarks.year.trace import DAYS, Shape
from node_agent.kernel.processes.process import tie_to_parent
from rdzv_server.http.garbage_collection import COLLECT_AFTER

OURS = "node-agent"
BASE, CHECKED = "2 % spares", "2 % spares, checks"
KEPT = "survivors save the last step"
NOTICED_AT_ONCE = f"{CHECKED}, each fault noticed at once"
MONTH, VAST = 30.0, 10_000
COSTS = Costs()
CHECKS = Policy(found=0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One row: a launcher, its policy, and the number of nodes."""

    about: str
    nodes: int
    policy: Policy | TorchrunPolicy = field(default_factory=Policy)
    shape: Shape = "bursty"
    days: float = DAYS
    seed: int = 1

    @property
    def parts(self) -> int:
        """Number of parts of equal length, which are played at once: months of a run that is this large."""
        return max(1, ceil(self.days / MONTH)) if self.nodes >= VAST and isinstance(self.policy, Policy) else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Result of one part of a scenario."""

    year: Year | TorchrunYear
    took_s: float
    """Processor time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a scenario. Shares are parts of the wall clock."""

    launcher: str
    about: str
    nodes: int
    shape: str
    days: float
    faults: int
    faults_in_run: int
    persons: int
    first_person_day: float | None
    ettr: float
    goodput: float
    ideal: float
    """ETTR by the formula for the faults in the run, if each were noticed at once, without other restarts."""
    shares: dict[str, float]
    by_cause: dict[str, float]
    """Share of the wall clock without training, by cause."""
    restarts_by: dict[str, int]
    restarts: int
    took_s: float
    """Processor time."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


_RETRIED = TorchrunPolicy(max_restarts=100, retry_s=60.0)


def every(days_of_10_000: float) -> list[Scenario]:
    """Return all scenarios, the largest first. Those of 10,000 nodes take long, so their days can be limited."""
    return [*_vast(days_of_10_000), *_of(1_024), *_of(128)]


def _vast(days: float) -> list[Scenario]:
    """Return the scenarios of 10,000 nodes: with checks for all days, and those to compare for at most a month.

    The budget of restarts per 1,000 nodes is that of the other scenarios.
    """
    base = Policy(max_restarts=CHECKS.max_restarts * VAST // 1_000)
    compared = Scenario(about=BASE, nodes=VAST, policy=base, days=min(days, MONTH))
    return [
        replace(compared, about=CHECKED, policy=replace(base, found=CHECKS.found), days=days),
        compared,
        replace(compared, about=f"{BASE}, {KEPT}", policy=replace(base, survivors=True)),
        replace(compared, about=f"{BASE}, faults without bursts", shape="poisson"),
    ]


def _of(nodes: int) -> list[Scenario]:
    """Return scenarios that each change one choice."""
    policies: list[tuple[str, Policy | TorchrunPolicy, Shape]] = [
        (CHECKED, CHECKS, "bursty"),
        (NOTICED_AT_ONCE, replace(CHECKS, is_noticed_at_once=True, slow_noticed_s=1.0), "bursty"),
        (f"{CHECKED} that find half", replace(CHECKS, found=0.5), "bursty"),
        (f"{CHECKED} that find all", replace(CHECKS, found=1.0), "bursty"),
        (f"{CHECKED}, workers save when told", replace(CHECKS, notice_s=60.0), "bursty"),
        (f"{CHECKED}, {KEPT}", replace(CHECKS, survivors=True), "bursty"),
        (f"{BASE}, faults without bursts", Policy(), "poisson"),
        ("no spares", Policy(spares=0.0), "bursty"),
        ("no spares, 10 min waited for a replacement", Policy(spares=0.0, shrink_after_s=600.0), "bursty"),
        ("1 % spares", Policy(spares=0.01), "bursty"),
        ("5 % spares", Policy(spares=0.05), "bursty"),
        ("lease of 60 s", Policy(lease_s=60.0), "bursty"),
        ("hangs noticed after 10 min", Policy(hang_noticed_s=600.0), "bursty"),
        ("hangs noticed after 30 min", Policy(hang_noticed_s=1800.0), "bursty"),
        ("bad nodes stay in", Policy(exclude_after=None), "bursty"),
        ("torchrun, retry loop, 10 min time-out", _RETRIED, "bursty"),
        ("torchrun, retry loop, 30 min time-out", _at(_RETRIED, collective_timeout_s=1800.0), "bursty"),
        ("torchrun, 3 restarts, 10 min time-out", TorchrunPolicy(), "bursty"),
    ]
    others = [
        Scenario(about=about, nodes=nodes, policy=policy, shape=shape, days=_days(nodes, policy))
        for about, policy, shape in policies
    ]
    whole = [Scenario(about=BASE, nodes=nodes), Scenario(about=CHECKED, nodes=nodes, policy=CHECKS)]
    return [*whole, *(each for each in others if each not in whole)]


def _days(nodes: int, policy: Policy | TorchrunPolicy) -> float:
    """Return the whole year, or a month for slow comparisons on our cores: a year of 1,024 nodes takes minutes."""
    if nodes < 1_000 or isinstance(policy, TorchrunPolicy):
        return DAYS
    return MONTH


def _at(policy: TorchrunPolicy, **otherwise: float) -> TorchrunPolicy:
    return TorchrunPolicy(**{**asdict(policy), **otherwise})


def play(scenario: Scenario) -> Outcome:
    """Play the scenario's year. Raises `Violation` if an invariant does not hold."""
    return _outcome(scenario, [play_part(scenario, number) for number in range(scenario.parts)])


def play_part(scenario: Scenario, number: int) -> Part:
    """Play one part. Raises `Violation` if an invariant does not hold."""
    gc.set_threshold(*COLLECT_AFTER)  # as in the server: 10,000 agents are many objects that stay
    began_s, nodes, policy = time.process_time(), scenario.nodes, scenario.policy
    pool, days = nodes + round(nodes * policy.spares), scenario.days / scenario.parts
    faults = trace.resample(pool, scenario.seed, scenario.shape, days, first_day=number * days)
    year: Year | TorchrunYear
    if isinstance(policy, Policy):
        assert pool == pool_size(nodes, policy)
        year = Simulation(nodes, faults, policy, COSTS, seed=scenario.seed + number, days=days).play()
    else:
        year = TorchrunYear(nodes, faults, policy, COSTS, days).play()
    return Part(year=year, took_s=time.process_time() - began_s)


def _outcome(scenario: Scenario, parts: Sequence[Part]) -> Outcome:
    """Return the outcome of a scenario's parts, given in their order."""
    year, nodes = parts[0].year, scenario.nodes
    if isinstance(year, Year):
        for part in parts[1:]:
            assert isinstance(part.year, Year)
            year.add(part.year)
        launcher, restarts, restarts_by = OURS, year.rounds - 1, dict(year.restarts_by)
        by_cause = {cause: seconds / year.ledger.total_s for cause, seconds in year.ledger.by_cause.items()}
    else:
        launcher, restarts, restarts_by, by_cause = "torchrun", year.restarts, {}, {}
    return Outcome(
        launcher=launcher,
        about=scenario.about,
        nodes=nodes,
        shape=scenario.shape,
        days=scenario.days,
        faults=year.faults,
        faults_in_run=year.faults_in_run,
        persons=year.persons,
        first_person_day=year.first_person_day,
        ettr=year.ledger.ettr,
        goodput=year.ledger.goodput,
        ideal=formula(nodes, year.faults_in_run / nodes / scenario.days, COSTS.start_s, COSTS),
        shares=_shares(year.ledger),
        by_cause=by_cause,
        restarts_by=restarts_by,
        restarts=restarts,
        took_s=sum(part.took_s for part in parts),
    )


def play_all(scenarios: Sequence[Scenario], processes: int, note: Callable[[str], None]) -> list[Outcome]:
    """Return the outcomes in the scenarios' order. One that fails is reported and left out."""
    with ProcessPoolExecutor(processes, initializer=tie_to_parent, initargs=(os.getpid(),)) as pool:
        parts = [[pool.submit(play_part, each, number) for number in range(each.parts)] for each in scenarios]
        note(f"{len(scenarios)} scenarios in {processes} processes")
        found = dict(_outcomes(scenarios, parts, note))
    return [found[number] for number in sorted(found)]


def _outcomes(
    scenarios: Sequence[Scenario], parts: list[list[Future[Part]]], note: Callable[[str], None]
) -> Iterator[tuple[int, Outcome]]:
    """Yield the number and outcome of each scenario as it ends."""
    left = {part: number for number, of_scenario in enumerate(parts) for part in of_scenario}
    for done in as_completed(list(left)):
        number = left.pop(done)
        if number in left.values():
            continue
        scenario = scenarios[number]
        title = f"simulation: {scenario.nodes} nodes, {scenario.about}, {scenario.shape}"
        try:
            outcome = _outcome(scenario, [part.result() for part in parts[number]])
        except Exception as error:
            note(f"{title}: FAILED: {type(error).__name__}: {error}")
        else:
            note(f"{title}: ETTR {outcome.ettr:.2%}, {outcome.persons} persons ({outcome.took_s:.0f} s)")
            yield number, outcome


def named(outcomes: Iterable[Outcome], about: str, nodes: int) -> Outcome | None:
    return next((each for each in outcomes if (each.about, each.nodes) == (about, nodes)), None)


def _shares(ledger: Ledger) -> dict[str, float]:
    return {phase: seconds / ledger.total_s for phase, seconds in ledger.spent_s.items() if seconds > 0}
