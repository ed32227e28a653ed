"""Cost of each restart: the seconds from the fault to the next progress of the workers, by what they went into.

The server itself sees the end of the round, the end of its workers, and the start of the next round. Until then
the parts follow from the times of facts, and `detecting` is the time ledger's. What happens between the start of a
round and its first progress only agents and workers know. They report it with that progress, as signs, so the server
records it when all agents have reported, or when the round ends. Each part ends with the slowest node.

If workers report no progress, the time after their start is unknown.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from msgspec import Struct, field
from msgspec.structs import asdict, replace
from rdzv_protocol.events import RunEvent
from rdzv_protocol.exposition import Metric, Sample
from rdzv_protocol.messages import Progress, RestartCost, RestartCosts

from rdzv_server.core.events import Fact, PolicyFact
from rdzv_server.core.kernel.policy import NoSigns, Policy, Rule, Rules
from rdzv_server.core.kernel.run import PolicyState, Run, remember
from rdzv_server.core.policies import time_ledger
from rdzv_server.core.policies.time_ledger import TimeLedger

PARTS = RestartCost.__struct_fields__
STARTS = ("spawned", "imported", "initialized", "loaded")
"""Moments of a start, in their usual order. Each ends one of the parts from `spawning_s` on."""
TOOK = Metric(
    "rdzv_run_restart_seconds_total", "counter",
    "Time from each fault to the workers' next progress, by part, once it is known.", ("run_id", "part"),
)  # fmt: skip
_STARTING = PARTS[PARTS.index("spawning_s") :]


class Opened(Struct):
    """Restart whose round has not started yet."""

    at: float
    detecting_s: float
    stopped_at: float | None = None
    """Time at which the last worker of the old round had stopped."""
    waited_before_s: float = 0.0
    """Seconds for which the run had waited below its minimum until then."""


class OneRestart(Struct, frozen=True):
    """Restart whose round has started, with its cost as far as it is known."""

    round: int
    cost: RestartCost


class RestartCostState(PolicyState):
    restart_opened: Opened | None = None
    restart_begun: OneRestart | None = None
    """Restart of the running round, until its cost is known or the round ends."""
    restarts_counted: list[OneRestart] = field(default_factory=list)
    """Latest restarts before that one."""
    restarts_total: RestartCosts = RestartCosts()
    """All restarts before that one."""


class StartMeasured(PolicyFact, frozen=True):
    """Seconds from the running round's start until all of its workers had completed each phase of their start.

    None if no worker has reported the phase.
    """

    spawned_s: float | None = None
    imported_s: float | None = None
    initialized_s: float | None = None
    loaded_s: float | None = None


class RestartTimes(Policy[RestartCostState, NoSigns]):
    name = "restart_cost"
    State = RestartCostState
    metrics = (TOOK,)

    @classmethod
    def samples(cls, run: Run, now: float, label: str) -> Iterator[Sample]:
        for part in PARTS:
            seconds = getattr(counted(run).cost, part) or 0.0
            yield Sample(TOOK, round(seconds, 3), (label, part.removesuffix("_s")))

    def on_event(self, event: RunEvent, now: float) -> None:
        if event.kind == "round_opened":
            self._opened(now)
        elif event.kind == "round_started":
            self._started(now)

    def settle(self, now: float) -> None:
        """Note when the last worker of the old round has stopped."""
        opened = self.state.restart_opened
        if opened is not None and opened.stopped_at is None and not self.run.stopping:
            opened.stopped_at, opened.waited_before_s = now, time_ledger.waited_s(self.run, now)

    def run_ended(self, now: float) -> None:
        self._count(StartMeasured())
        self.state.restart_opened = None

    def report(self) -> Mapping[str, Any]:
        costs = _complete(self.run, self.state.restarts_total)
        return {"restart_costs": costs if costs.restarts else None}

    def progressed(self, agent_id: str, report: Progress, now: float) -> StartMeasured | None:
        run = self.run
        have_all_told = len(run.progress) == len(run.running)
        return measured(run) if self.state.restart_begun is not None and have_all_told else None

    def before_round_ends(self, fact: Fact, now: float) -> StartMeasured | None:
        is_known = self.state.restart_begun is not None and _first_step_s(self.run) is not None
        return measured(self.run) if is_known else None

    def _opened(self, now: float) -> None:
        run, state = self.run, self.state
        self._count(StartMeasured())
        if state.restart_opened is not None:  # the round that it opened has not started
            state.restart_opened.stopped_at = None
            return
        failed = run.first_of_round
        ago_s = failed.ago_s if failed is not None and run.opening.cause.is_failure else 0.0
        ran_s = max(0.0, now - run.started_at)
        detecting_s = time_ledger.parts_of_round(run, ran_s).get("detecting", 0.0)
        state.restart_opened = Opened(now, max(detecting_s, min(ago_s, ran_s)))

    def _started(self, now: float) -> None:
        run, opened = self.run, self.state.restart_opened
        self.state.restart_opened = None
        if opened is None:  # the first round, or a snapshot that is older than this policy
            return
        stopped_at, waiting_s = now, 0.0
        if opened.stopped_at is not None:
            stopped_at = opened.stopped_at
            waiting_s = min(time_ledger.waited_s(run, now) - opened.waited_before_s, now - stopped_at)
        self.state.restart_begun = OneRestart(
            run.round,
            RestartCost(
                detecting_s=opened.detecting_s,
                stopping_s=stopped_at - opened.at,
                waiting_s=waiting_s,
                forming_s=now - stopped_at - waiting_s,
            ),
        )

    def _count(self, fact: StartMeasured) -> None:
        """Count the restart of the running round, unless it is counted already."""
        state = self.state
        if state.restart_begun is None:
            return
        cost = _with_start(self.run, state.restart_begun.cost, fact)
        remember(state.restarts_counted, OneRestart(state.restart_begun.round, cost))
        state.restarts_total = plus(state.restarts_total, cost)
        state.restart_begun = None

    def _measured(self, fact: StartMeasured, now: float) -> None:
        self._count(fact)

    rules: ClassVar[Rules] = {StartMeasured: Rule(apply=_measured, may_end_round=False)}


def _first_step_s(run: Run) -> float | None:
    """Return the seconds from the running round's start to the first progress of its workers; None if there is none."""
    return TimeLedger.of(run).time.starting_s


def measured(run: Run) -> StartMeasured:
    """Return how the running round started, as its agents have reported it so far: each moment of the slowest node."""
    latest: dict[str, float] = {}
    for sign in run.progress.values():
        for name in STARTS:
            ago_s = getattr(sign.progress, f"{name}_ago_s")
            if ago_s is not None:
                latest[name] = max(latest.get(name, 0.0), sign.at - ago_s - run.started_at)
    return StartMeasured(**{f"{name}_s": seconds for name, seconds in latest.items()})


def _with_start(run: Run, cost: RestartCost, fact: StartMeasured) -> RestartCost:
    """Return the cost with the parts of the start, which add up to the time until the first progress."""
    first_s = _first_step_s(run)
    if first_s is None:
        return cost
    parts, before_s = {}, 0.0
    moments = [*(getattr(fact, f"{name}_s") for name in STARTS), first_s]
    for part, moment_s in zip(_STARTING, moments, strict=True):
        if moment_s is not None:
            at_s = max(before_s, min(moment_s, first_s))
            parts[part], before_s = at_s - before_s, at_s
    return replace(cost, **parts)


def plus(total: RestartCosts, cost: RestartCost) -> RestartCosts:
    """Return the total with the cost of one more restart."""
    both: dict[str, Any] = {part: _sum(getattr(total.cost, part), getattr(cost, part)) for part in PARTS}
    is_followed = cost.first_step_s is not None
    return RestartCosts(restarts=total.restarts + 1, followed=total.followed + is_followed, cost=RestartCost(**both))


def _sum(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other


def took_s(cost: RestartCost) -> float | None:
    """Return the sum of the known parts; None if the workers have reported no progress."""
    return None if cost.first_step_s is None else round(sum(getattr(cost, part) or 0.0 for part in PARTS), 3)


def _rounded(cost: RestartCost) -> RestartCost:
    known = {part: seconds for part, seconds in asdict(cost).items() if seconds is not None}
    return RestartCost(**{part: round(seconds, 3) for part, seconds in known.items()})


def _complete(run: Run, total: RestartCosts) -> RestartCosts:
    """Return the total with the steps that the restarts kept and repeated, and with rounded seconds."""
    ledger = TimeLedger.of(run).time
    return replace(total, cost=_rounded(total.cost), kept_steps=ledger.kept_steps, repeated_steps=ledger.repeated_steps)


def total(run: Run) -> RestartCosts:
    """Return what all restarts of the run have taken so far, as far as it is known."""
    state = RestartTimes.of(run)
    begun = _begun(run)
    return _complete(run, state.restarts_total if begun is None else plus(state.restarts_total, begun.cost))


def counted(run: Run) -> RestartCosts:
    """Return what the restarts took whose costs do not change any more. The numbers only grow."""
    return RestartTimes.of(run).restarts_total


def of_rounds(run: Run) -> dict[int, RestartCost]:
    """Return the cost of each of the latest restarts by round, as far as it is known."""
    begun = _begun(run)
    restarts = [*RestartTimes.of(run).restarts_counted, *([begun] if begun else [])]
    return {each.round: _rounded(each.cost) for each in restarts}


def _begun(run: Run) -> OneRestart | None:
    """Return the restart of the running round, with its start as it is known so far."""
    begun = RestartTimes.of(run).restart_begun
    return begun and OneRestart(begun.round, _with_start(run, begun.cost, measured(run)))
