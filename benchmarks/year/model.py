"""Model of a year: an operator's policy, the costs of training, a year with its ledger of time, and the formula.

The published formula (Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning Research Clusters", arXiv
2410.21680) is for a long run on `n` nodes that fail `r` times a day each. The effective training time ratio, ETTR, is
about 1 - n * r * (u + c / 2), with the time `u` from a failure to the next step, and `c` between checkpoints.
"""

from collections import Counter
from dataclasses import dataclass, field
from math import fsum

from rdzv_protocol.settings import RequestedSettings

from benchmarks.year.trace import DAY_S
from rdzv_server.config import ExclusionPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Choices of an operator, and the time until a hang is noticed."""

    spares: float = 0.02
    """Standby nodes, as a share of the run's nodes."""
    shrink: float = 0.1
    """Share of its nodes without which the run still continues."""
    shrink_after_s: float = 0.0
    """Time that the run waits for a replacement before it continues with fewer nodes."""
    lease_s: float = 10.0
    hang_noticed_s: float = 30.0
    """Seconds from the last step to the end of the responsible worker: detection, evidence and all."""
    slow_noticed_s: float | None = 600.0
    """Time after which a slow node is drained; None if it stays until it is repaired."""
    is_noticed_at_once: bool = False
    """Whether every fault is known at once: an ideal that no launcher can reach."""
    found: float = 0.0
    """Share of the faults within the checks' kinds that the checks find; 0 if nodes are not checked."""
    notice_s: float | None = None
    """Time to save that workers get before a node is drained or admitted; None if they get no notice."""
    survivors: bool = False
    """Whether a surviving worker saves the state after the last step when a round ends. Assumes that one survives."""
    exclude_after: int | None = 2
    """Number of faults of a node within `exclude_window_s` after which it is excluded for `exclude_for_s`."""
    exclude_window_s: float = 3600.0
    exclude_for_s: float = DAY_S
    max_restarts: int = 20
    restart_window_s: float | None = 3600.0

    @property
    def exclusion(self) -> ExclusionPolicy | None:
        if self.exclude_after is None:
            return None
        return ExclusionPolicy(self.exclude_after, self.exclude_window_s, self.exclude_for_s)

    def settings(self, nodes: int) -> RequestedSettings:
        return RequestedSettings(
            min_nodes=nodes - int(nodes * self.shrink),
            max_nodes=nodes,
            max_restarts=self.max_restarts,
            restart_window_s=self.restart_window_s,
            shrink_after_s=self.shrink_after_s,
            lease_s=self.lease_s,
            notice_timeout_s=self.notice_s,
            scale_up="immediate" if self.notice_s is None else "on-notice",
        )


def pool_size(nodes: int, policy: Policy) -> int:
    """Return the number of the run's nodes and its spares."""
    return nodes + round(nodes * policy.spares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Assumed durations in seconds, the same for all launchers."""

    checkpoint_every_s: float = 600.0
    """Training between two checkpoints."""
    checkpoint_s: float = 0.0
    """Pause of the training for a checkpoint: none, since it is written beside the training."""
    start_s: float = 120.0
    """Time from the start of all workers to their first step: imports, connections, reading the checkpoint."""
    stop_s: float = 3.0
    """Time from SIGTERM to the end of a node's workers."""
    check_s: float = 1.5
    """Time of a node's check, before each of its joins."""
    save_s: float = 30.0
    """Time from a notice until all workers have saved, or time in which a survivor saves. No step in it counts."""
    step_s: float = 10.0
    """Duration of a step. If survivors save the last step, only the step under way is lost."""
    person_s: float = 3600.0
    """Time from the moment when a person is needed until the person has acted, day and night."""
    slow_factor: float = 1.2
    """Factor on the duration of a step while a node is slow."""


def formula(nodes: int, faults_per_node_day: float, overhead_s: float, costs: Costs) -> float:
    """Return the ETTR by the published formula."""
    return 1 - nodes * faults_per_node_day / DAY_S * (overhead_s + costs.checkpoint_every_s / 2)


PHASES = ("starting", "detecting", "restarting", "waiting", "saving", "person")
"""Phases without training: workers start, a fault is not yet known, a round forms, or there are fewer nodes than the
minimum. In the last two, workers save before the round ends, and the run waits for a person."""


@dataclass(slots=True)
class Ledger:
    """Time of one run, by its use. `full`: nodes of a complete run."""

    costs: Costs
    full: int
    survivors: bool = False
    """Whether survivors save the last step. If not, the work since the last checkpoint is lost."""
    phase: str = "restarting"
    since_s: float = 0.0
    rate: float = 1.0
    """Speed of the training; 1 is full speed."""
    nodes: int = 0
    """Number of nodes that train."""
    spent_s: dict[str, float] = field(default_factory=dict)
    span_s: float = 0.0
    """Training since the beginning of this round. What follows the last checkpoint may be lost."""
    cause: str = "the start"
    """Cause of the present time without training, or of the next."""
    by_cause: dict[str, float] = field(default_factory=dict)
    """Time without training, by cause."""
    node_s: float = 0.0
    """Training that was kept, times the nodes that took part."""

    def enter(self, phase: str, now: float) -> None:
        """Enter the time until now, and begin another phase. The end of training by this loses what was not saved."""
        self._advance(now)
        if phase != "training":
            self._settle(self.span_s % (self.costs.step_s if self.survivors else self.costs.checkpoint_every_s))
        self.phase = phase

    def blame(self, cause: str, now: float) -> None:
        """Record this cause for the losses from now on."""
        self._advance(now)
        self.cause = cause

    def at_rate(self, rate: float, now: float) -> None:
        self._advance(now)
        self.rate = rate

    def on(self, nodes: int) -> None:
        """Let this number of nodes train from now on."""
        assert self.span_s == 0
        self.nodes = nodes

    def save(self, now: float) -> None:
        """Record all training as saved: the year ends, or the workers had notice of the round's end."""
        self._advance(now)
        self._settle(0.0)

    @property
    def ettr(self) -> float:
        """Share of all time that was training that was kept."""
        return self.spent_s.get("training", 0.0) / self.total_s

    @property
    def goodput(self) -> float:
        """ETTR times the share of nodes that took part."""
        return self.node_s / self.full / self.total_s

    @property
    def total_s(self) -> float:
        return fsum(self.spent_s.values())

    def add(self, other: "Ledger") -> None:
        """Add the ledger of another part of the year."""
        for mine, others in ((self.spent_s, other.spent_s), (self.by_cause, other.by_cause)):
            for name, seconds in others.items():
                mine[name] = mine.get(name, 0.0) + seconds
        self.node_s += other.node_s

    def _advance(self, now: float) -> None:
        passed_s, self.since_s = now - self.since_s, now
        if self.phase != "training":
            self._spend(self.phase, passed_s)
            return
        costs = self.costs
        steps_s = passed_s * self.rate * costs.checkpoint_every_s / (costs.checkpoint_every_s + costs.checkpoint_s)
        self.span_s += steps_s
        self._spend("slowed", passed_s * (1 - self.rate), "a slow node")
        self._spend("checkpointing", passed_s * self.rate - steps_s, "checkpoints")

    def _settle(self, lost_s: float) -> None:
        kept_s, self.span_s = self.span_s - lost_s, 0.0
        self._spend("training", kept_s)
        self._spend("lost", lost_s)
        self.node_s += kept_s * self.nodes

    def _spend(self, phase: str, seconds: float, cause: str = "") -> None:
        self.spent_s[phase] = self.spent_s.get(phase, 0.0) + seconds
        if phase != "training":
            cause = cause or self.cause
            self.by_cause[cause] = self.by_cause.get(cause, 0.0) + seconds


@dataclass(slots=True)
class Year:
    """Result of a simulation."""

    nodes: int
    days: float
    ledger: Ledger
    faults: int = 0
    faults_in_run: int = 0
    """Faults of nodes in the run."""
    persons: int = 0
    first_person_day: float | None = None
    rounds: int = 0
    restarts: dict[str, int] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)
    restarts_by: Counter[str] = field(default_factory=Counter)
    """Rounds after an interruption, by the ledger's cause."""
    checks: int = 0

    def add(self, later: "Year") -> None:
        """Add the following part of the year."""
        if self.first_person_day is None and later.first_person_day is not None:
            self.first_person_day = self.days + later.first_person_day
        self.days += later.days
        self.ledger.add(later.ledger)
        self.faults += later.faults
        self.faults_in_run += later.faults_in_run
        self.persons += later.persons
        self.rounds += later.rounds - 1  # the following part began without a fault
        self.restarts = dict(Counter(self.restarts) + Counter(later.restarts))
        self.kinds += later.kinds
        self.restarts_by += later.restarts_by
        self.checks += later.checks
