"""Costs of an operator's action, before it is carried out: which workers stop, and how much work is lost."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from rdzv_server.core import events
from rdzv_server.core.kernel import admission, legal_sizes
from rdzv_server.core.kernel.run import Run, Stage
from rdzv_server.core.policies import lost_time
from rdzv_server.core.views import run_view
from rdzv_server.words import costs as words


class Question(NamedTuple):
    """Arguments of the action: its node if it is about one, and the limits of a resize."""

    node_id: str = ""
    min_nodes: int = 0
    max_nodes: int = 0


class Cost(NamedTuple):
    """Cost of an action in one run, as a sentence, and whether a person should confirm it first."""

    sentence: str
    is_high: bool = False


def of_action(action: str, run: Run, asked: Question, now: float) -> Cost:
    """Return the cost of the action in the run; the sentence is empty if it costs nothing."""
    cost = _COSTS.get(action)
    return cost(run, asked, now) if cost else Cost("")


def _workers(run: Run) -> int:
    return run_view.world_size(run) if run.stage is Stage.RUNNING else 0


def _lost(run: Run, now: float) -> str:
    """Return the sentence about the work that is lost if the running round ends now."""
    measured = lost_time.measure(run, events.RunStopped(""), now)
    if measured.step is None:
        return words.WORK_UNKNOWN
    saved = run.checkpoint_step if measured.checkpoint_step is None else measured.checkpoint_step
    return words.work_without_checkpoint(now - run.started_at) if saved is None else words.work(measured.lost_s, saved)


def _stop(run: Run, asked: Question, now: float) -> Cost:
    workers = _workers(run)
    return Cost(words.stop(workers, _lost(run, now)) if workers else words.NOTHING_RUNS, not run.stage.is_end)


def _restart(run: Run, asked: Question, now: float) -> Cost:
    workers = _workers(run)
    if not workers:
        return Cost(words.NOTHING_RUNS)
    low = asked.min_nodes or legal_sizes.smallest(run.settings)
    waits = _waits(run, max(0, low - admission.able(run)))
    return Cost(words.restart(workers, _lost(run, now), waits), is_high=True)


def _admit(run: Run, asked: Question, now: float) -> Cost:
    if run.stage is not Stage.RUNNING or admission.free_seats(run) <= 0:
        return Cost(words.NOTHING_TO_ADMIT)
    return _restart(run, asked, now)


def _drain(run: Run, asked: Question, now: float) -> Cost:
    seats = [seat for agent in run.agents_of(asked.node_id) if (seat := run.seat_of(agent.agent_id))]
    own, workers = sum(len(seat.ranks) for seat in seats), _workers(run)
    if not own or not workers:
        later = _cordon(run, asked, now)
        return later if later.sentence else Cost(words.NOTHING_STOPS)
    waits = _waits(run, admission.lacks(run, asked.node_id))
    return Cost(words.drain(own, workers - own, _lost(run, now), waits), is_high=True)


def _cordon(run: Run, asked: Question, now: float) -> Cost:
    missing = admission.lacks(run, asked.node_id)
    if missing <= admission.lacks(run):
        return Cost("")
    if run.stage is Stage.FORMING:
        return Cost(words.nothing_stops(_waits(run, missing)), is_high=True)
    return Cost(words.waits(missing), is_high=True)


def _waits(run: Run, missing: int) -> str:
    """Return the phrase about a run that then stands still; empty if it has enough nodes."""
    return words.stands_still(missing, run.settings.join_timeout_s) if missing else ""


def _resize(run: Run, asked: Question, now: float) -> Cost:
    if run.stage is not Stage.RUNNING:
        return Cost(words.NOTHING_RUNS)
    there = len(run.running) + len(run.waiting)
    if asked.max_nodes and len(run.running) > asked.max_nodes:
        return _restart(run, asked, now)
    if there < asked.min_nodes:
        return Cost(words.waits(asked.min_nodes - there), is_high=True)
    return Cost(words.NOTHING_STOPS)


def _forget(run: Run, asked: Question, now: float) -> Cost:
    return Cost(words.forget(run.event_number), is_high=True)


_COSTS: Mapping[str, Callable[[Run, Question, float], Cost]] = {
    "stop": _stop,
    "restart": _restart,
    "admit": _admit,
    "drain": _drain,
    "cordon": _cordon,
    "resize": _resize,
    "forget": _forget,
}
