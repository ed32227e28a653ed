"""Time ledger of a run: how much of its time went into each phase, from its creation to its end.

Every moment belongs to one phase, so the phases add up to the run's age. The ledger counts by the times of facts only.
So a server that replays the facts gets the same result. Time in which no server was running belongs to the phase in
which it passed.

Parts of the running phase do not get the run further. These are the time until the workers report their first progress,
writing checkpoints, standstills, and work that a restart repeats. They are added when the round ends, from the progress
that was recorded before. How much work is repeated can become less when the workers of the next round say where they
continue. Until it ends, the running round shows how long it took to start, and the checkpoints that workers report. It
also shows a standstill while the server believes that the run hangs.

If the workers have reported no progress (`node_agent.progress`) in any round, there is no training time and no ratio.
It is unknown how much of the running phase was training.
"""

from __future__ import annotations  # `Annotated` takes time at every start of `node-agent --standalone`

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct, field
from rdzv_protocol.constraints import Duration
from rdzv_protocol.exposition import Metric, Sample
from rdzv_protocol.messages import Progress, RunningTime, RunTime

from rdzv_server.core.events import Fact, PolicyFact
from rdzv_server.core.kernel import legal_sizes, progress
from rdzv_server.core.kernel.policy import NoSigns, Policy, Rule, Rules
from rdzv_server.core.kernel.run import Cause, PolicyState, Run, Stage
from rdzv_server.core.policies import lost_time, words
from rdzv_server.core.policies.lost_time import ProgressMeasured

FAULTS = (Cause.WORKER_FAILURE, Cause.NODE_LOST, Cause.HANG, Cause.RETRIED)
"""Causes of a round's end that had to be detected; all others are announced."""
STARTING = "starting"
PARTS = (STARTING, "checkpointing", "detecting", "lost")
SPENT = Metric("rdzv_run_time_seconds_total", "counter", "Time of the run, by use.", ("run_id", "phase"))
UNPRODUCTIVE = Metric(
    "rdzv_run_unproductive_seconds_total", "counter", "Part of the running phase without progress for the run.",
    ("run_id", "kind"),
)  # fmt: skip
STANDSTILL = Metric(
    "rdzv_run_standstill_seconds", "gauge", "Time without progress in a round that probably hangs.", ("run_id",)
)
ETTR = Metric(
    "rdzv_run_effective_training_time_ratio", "gauge",
    "Training time divided by the age of the run; absent without progress.", ("run_id",),
)  # fmt: skip


_RUNNING = Stage.RUNNING  # a constant: to look up a member of an enumeration is slow

TimePhase = Literal["forming", "restarting", "waiting", "running", "ended"]
"""Phase of a run: each second of its time counts to one phase."""


class AtStake(Struct):
    """Work of a round that has ended. The next round tells how much of it is repeated."""

    lost_s: float
    step: int | None
    saved_step: int | None

    def repeated_s(self, resumed_step: int) -> float:
        """Return the seconds of the work that is repeated if the next round continues after this step."""
        if self.step is None or self.saved_step is None or self.step <= self.saved_step:
            return self.lost_s
        return self.lost_s * min(1.0, max(0, self.step - resumed_step) / (self.step - self.saved_step))


class Ledger(Struct):
    """Seconds spent in each phase up to `since`, when the current phase began."""

    phase: TimePhase = "waiting"
    since: float = 0.0
    spent_s: dict[TimePhase, float] = field(default_factory=dict)
    restarts_s: dict[Cause, float] = field(default_factory=dict)
    of_running_s: dict[str, float] = field(default_factory=dict)
    """Seconds of the running phase without training, by part: see `TimeStatus`."""
    starting_s: float | None = None
    """Seconds from the running round's start to its workers' first progress; None if they have reported none."""
    at_stake: AtStake | None = None
    """Work of the last round, until it is known how much of it is lost."""
    kept_steps: int = 0
    repeated_steps: int = 0
    returned_s: float = 0.0
    """Seconds of the last round that counted as lost until the workers said that they do not repeat them."""
    is_told: bool = False
    """Whether workers have reported progress in any round. If not, it is unknown how much of the time was training."""


class TimeStatus(Struct, frozen=True, kw_only=True):
    """Time of a run by what it went into, in seconds.

    The first four fields add up to its age, or its length if ended.
    """

    running: Duration
    forming: Annotated[
        Duration, Meta(description="time until the first round began, while the minimum of nodes was present")
    ]
    restarting: Annotated[
        Duration, Meta(description="time until a later round began, while the minimum of nodes was present")
    ]
    waiting: Annotated[Duration, Meta(description="time with fewer nodes than the minimum")]
    training: Annotated[
        Duration | None,
        Meta(description="part of running: the rest after the next four; null: the workers have reported no progress"),
    ]
    starting: Annotated[
        Duration,
        Meta(description="part of running: from each round's start to the first progress that its workers reported"),
    ]
    checkpointing: Annotated[
        Duration, Meta(description="part of running: time for checkpoints, as the workers report it")
    ]
    detecting: Annotated[
        Duration, Meta(description="part of running: from a standstill to the end of its round, or until now")
    ]
    lost: Annotated[
        Duration, Meta(description="part of running: work since the last checkpoint, which a restart repeats")
    ]
    kept_steps: Annotated[
        int, Meta(description="steps after the last checkpoint that restarts did not repeat, as the workers report it")
    ]
    repeated_steps: Annotated[int, Meta(description="steps that restarts repeated, as the workers report it")]
    ettr: Annotated[
        float | None,
        Meta(description="training divided by the age; null: the workers have reported no progress, or the age is 0"),
    ]
    restarts: Annotated[
        dict[str, Duration], Meta(description="time of restarting and waiting, by the cause of the restart")
    ]


NOTHING = TimeStatus(
    running=0.0, forming=0.0, restarting=0.0, waiting=0.0, training=None, starting=0.0, checkpointing=0.0,
    detecting=0.0, lost=0.0, kept_steps=0, repeated_steps=0, ettr=None, restarts={},
)  # fmt: skip
"""Status of a ledger that cannot be read."""


class TimeLedgerState(PolicyState):
    time: Ledger = field(default_factory=Ledger)
    measured: ProgressMeasured | None = None
    """Latest recorded progress of the running round."""


class TrainingBegan(PolicyFact, frozen=True):
    """Workers of the running round have reported their first progress, `starting_s` seconds after the round's start."""

    starting_s: float
    resumed_step: int | None = None
    """Step after which they continue, None if they have not reported it."""


class TimeLedger(Policy[TimeLedgerState, NoSigns]):
    name = "time_ledger"
    State = TimeLedgerState
    metrics = (SPENT, UNPRODUCTIVE, STANDSTILL, ETTR)

    @classmethod
    def samples(cls, run: Run, now: float, label: str) -> Iterator[Sample]:
        spent = view(run, now)
        for name in ("running", "forming", "restarting", "waiting"):
            yield Sample(SPENT, getattr(spent, name), (label, name))
        for part, seconds in counted(run, now).items():
            yield Sample(UNPRODUCTIVE, round(seconds, 3), (label, part))
        yield Sample(STANDSTILL, standstill_s(run, now), (label,))
        if spent.ettr is not None:
            yield Sample(ETTR, spent.ettr, (label,))

    def first_state(self, now: float) -> TimeLedgerState:
        return TimeLedgerState(Ledger(since=now))

    def settle(self, now: float) -> None:
        """Add the time of the current phase up to now, if another phase begins."""
        run, ledger = self.run, self.state.time
        now_in = phase(run)
        if now_in == ledger.phase:
            return
        ledger.spent_s[ledger.phase] = ledger.spent_s.get(ledger.phase, 0.0) + now - ledger.since
        if ledger.phase == "running":
            for part, seconds in parts_of_round(run, now - ledger.since).items():
                if part == "lost":
                    self._stake(seconds)
                else:
                    self._enter(part, seconds)
        if now_in == "ended":
            self._lose(None, now)
        if now_in == "running":
            self.state.measured = ledger.starting_s = None  # until then other policies may read the last round's
        if now_in in ("running", "ended") and ledger.phase != "running" and run.opening.cause is not Cause.FIRST:
            cause = run.opening.cause
            ledger.restarts_s[cause] = ledger.restarts_s.get(cause, 0.0) + now - run.opening.at
        ledger.phase, ledger.since = now_in, now

    def _enter(self, part: str, seconds: float) -> None:
        ledger = self.state.time
        ledger.of_running_s[part] = ledger.of_running_s.get(part, 0.0) + seconds

    def _stake(self, lost_s: float) -> None:
        """Note the work since the last checkpoint of the round that ends. Workers may still save it."""
        measured, before = self.state.measured or ProgressMeasured(), self.state.time.at_stake
        stake = AtStake(lost_s, measured.step, measured.saved_step)
        if before:  # the round that ends reported no progress
            stake = AtStake(before.lost_s + lost_s, before.step, before.saved_step)
        self.state.time.at_stake = stake

    def _lose(self, resumed_step: int | None, now: float) -> None:
        """Enter the part of the last round's work that is lost. If `resumed_step` is None, all of it is."""
        ledger, at_stake = self.state.time, self.state.time.at_stake
        ledger.at_stake, ledger.returned_s = None, 0.0
        if at_stake is None:
            return
        lost_s = at_stake.lost_s if resumed_step is None else at_stake.repeated_s(resumed_step)
        self._enter("lost", lost_s)
        if resumed_step is not None and at_stake.step is not None and at_stake.saved_step is not None:
            repeated = max(0, at_stake.step - resumed_step)
            kept = max(0, min(resumed_step, at_stake.step) - at_stake.saved_step)
            ledger.kept_steps, ledger.repeated_steps = ledger.kept_steps + kept, ledger.repeated_steps + repeated
            ledger.returned_s = at_stake.lost_s - lost_s
            told = words.resumed(resumed_step, repeated, kept, at_stake.saved_step)
            self.kernel.record_event("training_resumed", told, now)

    def run_ended(self, now: float) -> None:
        self.settle(now)

    def report(self) -> Mapping[str, Any]:
        spent = _total(self.run)
        return {
            "time": spent if isinstance(spent, RunTime) else None,
            "running_time": spent if isinstance(spent, RunningTime) else None,
        }

    def progressed(self, agent_id: str, report: Progress, now: float) -> TrainingBegan | None:
        """Return the beginning of training if this is the first progress of the running round, else None."""
        if self.state.time.starting_s is not None or not progress.is_of_running_round(self.run, agent_id, report):
            return None
        reported_s = report.age_s if report.telling_s is None else report.telling_s
        return TrainingBegan(max(0.0, now - reported_s - self.run.started_at), report.resumed_step)

    def before_round_ends(self, fact: Fact, now: float) -> ProgressMeasured | None:
        measured = lost_time.measure(self.run, fact, now)
        return measured if measured != (self.state.measured or ProgressMeasured()) else None

    def _began(self, fact: TrainingBegan, now: float) -> None:
        self.state.time.starting_s, self.state.time.is_told = fact.starting_s, True
        self.kernel.note_training()
        self._lose(fact.resumed_step, now)

    def _measured(self, fact: ProgressMeasured, now: float) -> None:
        self.state.measured = fact
        if fact.steps_fall and not self.run.steps_fall and self.run.settings.max_restarts_without_progress is not None:
            self.kernel.record_event("warning", words.STEPS_FALL, now)
        self.kernel.note_steps(fact.step, fact.checkpoint_step, fall=fact.steps_fall)

    rules: ClassVar[Rules] = {
        TrainingBegan: Rule(apply=_began, may_end_round=False),
        ProgressMeasured: Rule(apply=_measured, may_end_round=False),
    }


def _of(run: Run) -> Ledger:
    return TimeLedger.of(run).time


def _total(run: Run) -> RunTime | RunningTime | None:
    """Return the time of an ended run by what it went into; None if it took none."""
    spent = view(run, run.ended_at or _of(run).since)
    waits = {"forming_s": spent.forming, "restarting_s": spent.restarting, "waiting_s": spent.waiting}
    if spent.ettr is not None and spent.training is not None:
        parts = {f"{part}_s": getattr(spent, part) for part in PARTS}
        return RunTime(training_s=spent.training, **parts, **waits, ettr=spent.ettr)
    if spent.training is None and (spent.running or any(waits.values())):
        running_s = round(spent.running - spent.detecting, 3)
        return RunningTime(running_s=running_s, detecting_s=spent.detecting, **waits)
    return None


def phase(run: Run) -> TimePhase:
    """Return the phase to which the run's time counts now."""
    if run.stage.is_end:
        return "ended"
    if run.stage is _RUNNING:
        return "running"
    if run.opening.min_since is None:  # else enough have joined
        stopping = run.stopping
        if not stopping or len(run.waiting) + len(stopping) < legal_sizes.smallest(run.settings):
            return "waiting"
    return "forming" if run.membership is None else "restarting"


def parts_of_round(run: Run, whole_s: float) -> dict[str, float]:
    """Return the seconds without training of a round that ended after `whole_s`, by part; no second counts twice.

    A hang that is believed when the round ends counts, unless all workers have succeeded. Any other standstill may have
    been an evaluation: it counts only if a fault or, after a longer standstill, an operator's restart ended the round.
    """
    measured, parts, left_s = TimeLedger.of(run).measured or ProgressMeasured(), {}, whole_s
    known = {STARTING: _of(run).starting_s or 0.0, "checkpointing": measured.checkpointing_s}
    if run.stage is not Stage.SUCCEEDED:
        is_fault = run.stage is Stage.FAILED or run.opening.cause in FAULTS
        stalled_s = measured.detecting_s if is_fault else 0.0
        known |= {"detecting": max(measured.standstill_s, stalled_s), "lost": measured.lost_s}
    for part, seconds in known.items():
        if taken := min(seconds, left_s):
            parts[part] = taken
            left_s -= taken
    if _of(run).starting_s is None and left_s:
        parts[STARTING] = left_s
    return parts


def waited_s(run: Run, now: float) -> float:
    """Return the seconds until now for which the run has had fewer nodes than its minimum."""
    ledger = _of(run)
    return ledger.spent_s.get("waiting", 0.0) + (now - ledger.since if ledger.phase == "waiting" else 0.0)


def since(run: Run) -> float:
    """Return the time since which the run is in the state that `present` names."""
    return _of(run).since


def present(run: Run) -> str:
    """Return what the current moment counts to: the phase or, if it is known, the part of the running phase."""
    ledger = _of(run)
    if ledger.phase != "running" or not ledger.is_told:
        return ledger.phase
    return STARTING if ledger.starting_s is None else "training"


def entered(run: Run, now: float) -> dict[str, float]:
    """Return the seconds by what they went into, without the current phase; the running phase is split into its parts.

    Parts of the running round already count: the value of the `present` word is below 0 until the seconds of the round
    are added.
    """
    spent: dict[str, float] = {word: seconds for word, seconds in _of(run).spent_s.items() if word != "ended"}
    rest = "training" if _of(run).is_told else "running"
    if "running" in spent:
        spent[rest] = spent.pop("running")
    for word, parts in ((rest, _of_rounds_before(run)), (present(run), _of_this_round(run, now))):
        for part, seconds in parts.items():
            if seconds:
                spent[part] = spent.get(part, 0.0) + seconds
                spent[word] = spent.get(word, 0.0) - seconds
    return spent


def counted(run: Run, now: float) -> dict[str, float]:
    """Return the seconds of each part of the running phase that can only grow: all but a current standstill's."""
    parts = dict.fromkeys(PARTS, 0.0) | _of_rounds_before(run)
    parts[STARTING] += _started_s(run, now)
    parts["checkpointing"] += _saving_s(run, now)
    if at_stake := _of(run).at_stake:
        parts["lost"] -= at_stake.lost_s
    return parts


def _of_rounds_before(run: Run) -> dict[str, float]:
    """Return the seconds of each part of the ended rounds.

    Without progress, it is unknown which seconds were starting.
    """
    ledger = _of(run)
    parts = dict(ledger.of_running_s)
    if ledger.at_stake and ledger.at_stake.lost_s:
        parts["lost"] = parts.get("lost", 0.0) + ledger.at_stake.lost_s
    return {part: seconds for part, seconds in parts.items() if part != STARTING or _of(run).is_told}


def _of_this_round(run: Run, now: float) -> dict[str, float]:
    """Return the seconds of each part of the running round.

    A current standstill counts, though it may turn out to be none.
    """
    return {
        STARTING: _started_s(run, now),
        "checkpointing": _saving_s(run, now),
        "detecting": standstill_s(run, now),
    }


def standstill_s(run: Run, now: float) -> float:
    """Return the seconds without progress in the running round, if its workers are believed to hang."""
    if _of(run).phase != "running":
        return 0.0
    left_s = now - _of(run).since - _started_s(run, now) - _saving_s(run, now)
    return min(lost_time.standstill_s(run, now), left_s)


def _started_s(run: Run, now: float) -> float:
    """Return the seconds of the running round until its workers reported their first progress; 0 until they have."""
    if _of(run).phase != "running":
        return 0.0
    return min(_of(run).starting_s or 0.0, now - _of(run).since)


def _saving_s(run: Run, now: float) -> float:
    if _of(run).phase != "running":
        return 0.0
    checkpoint_s = max((sign.progress.checkpoint_s for sign in run.progress.values()), default=0.0)
    return min(checkpoint_s, now - _of(run).since - _started_s(run, now))


def view(run: Run, now: float) -> TimeStatus:
    """Return the status of the ledger, with the current phase up to now."""
    ledger, restarts = _of(run), dict(_of(run).restarts_s)
    seconds = {"running": 0.0, "forming": 0.0, "restarting": 0.0, "waiting": 0.0} | ledger.spent_s
    if ledger.phase != "ended":
        seconds[ledger.phase] += now - ledger.since
    if run.stage is Stage.FORMING and run.opening.cause is not Cause.FIRST:
        restarts[run.opening.cause] = restarts.get(run.opening.cause, 0.0) + now - run.opening.at
    parts = _parts(run, now)
    training = max(0.0, seconds["running"] - sum(parts.values())) if ledger.is_told else None
    age = sum(seconds.values())
    return TimeStatus(
        **{name: round(value, 3) for name, value in (seconds | parts).items()},
        training=None if training is None else round(training, 3),
        kept_steps=ledger.kept_steps,
        repeated_steps=ledger.repeated_steps,
        ettr=round(training / age, 4) if age and training is not None else None,
        restarts={cause.value: round(value, 3) for cause, value in restarts.items()},
    )


def _parts(run: Run, now: float) -> dict[str, float]:
    """Return the seconds of each part of the running phase, up to now."""
    parts = dict.fromkeys(PARTS, 0.0) | _of_rounds_before(run)
    for part, seconds in parts_so_far(run, now).items():
        parts[part] += seconds
    return parts


def parts_so_far(run: Run, now: float) -> dict[str, float]:
    """Return the seconds of each part of the running round until now, with a standstill or start that has not ended."""
    parts = _of_this_round(run, now)
    if present(run) == STARTING:
        parts[STARTING] += now - _of(run).since - parts["detecting"] - parts["checkpointing"]
    return parts
