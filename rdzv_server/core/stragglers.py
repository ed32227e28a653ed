"""Stragglers: nodes of a running round whose workers take much longer than those of the others, for a while.

What is compared is the time of a step that goes into each node's own work (`Progress.work_s`), where all nodes tell it,
else the time that a whole step takes. In lockstep whole steps take equally long everywhere, since all wait for the
slowest: there only own work can tell.

The run is looked at once in a lease, as long as its workers tell steps. A node is a straggler once it has been beyond
the limit at `LOOKS` looks in a row with new steps, and is none any more after as many looks below it. The limit is
`straggler_factor` times the median, or more in a run whose nodes differ anyway: `SPREAD` times their usual distance
from the median above it. How often a node was slow is a sign; that it is a straggler is a fact.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from rdzv_protocol.text import printable

from rdzv_server.core import completion, events, notices
from rdzv_server.core.run import Cause, Replacement, Run, Slowness, Stage

if TYPE_CHECKING:
    from rdzv_server.core.machine import RunMachine

SPREAD = 6.0
LEAST_S = 0.01
"""Least difference in seconds that counts, however short the steps are."""
LOOKS = 6
MOST_FOUND = 32
"""Most stragglers that are found at one comparison: further ones are found later."""
REPLACED_AGAIN_AFTER_S = 600.0
"""Least time between two replacements in seconds: each costs a restart."""


def begins(run: Run, event: events.LeaseRenewed) -> bool:
    """Whether to compare nodes from now on: several run workers, and this is the first to tell a step's time."""
    if run.slowness.look_at is not None or event.progress is None or event.progress.step_s is None:
        return False
    return run.stage is Stage.RUNNING and len(run.running) > 1


def begin(run: Run, now: float) -> None:
    run.slowness = Slowness(now + run.settings.lease_s)


def look(run: Run, now: float) -> events.StragglersFound | events.StragglerReplaced | None:
    """Compare the nodes if that is due, and return what follows, if anything; the next time is a lease later."""
    at = run.slowness.look_at
    if at is None or now < at:
        return None
    run.slowness.look_at = now + run.settings.lease_s
    changed = _changed(run, now)
    return changed or _replaced(run, now)


def _changed(run: Run, now: float) -> events.StragglersFound | None:
    of, values = _times(run)
    if len(values) < 2:
        return None
    usual_s = _median(values.values())
    limit_s = max(_limit(values.values(), usual_s, run.settings.straggler_factor), usual_s + LEAST_S)
    found: list[events.Straggler] = []
    over: list[str] = []
    for agent_id, own_s in values.items():
        if not _disagrees(run, agent_id, own_s > limit_s):
            continue
        if agent_id in run.stragglers:
            over.append(agent_id)
        elif len(found) < MOST_FOUND:
            found.append(events.Straggler(agent_id, run.agents[agent_id].node_id, of, own_s, usual_s, now))
    return events.StragglersFound(tuple(found), tuple(over)) if found or over else None


def _times(run: Run) -> tuple[str, dict[str, float]]:
    """Kind of time that is compared, "work" or "step", and its seconds by id of each agent whose workers run."""
    signs = [(agent_id, run.progress[agent_id].progress) for agent_id in run.running if agent_id in run.progress]
    told = {agent_id: progress for agent_id, progress in signs if progress.step_s is not None}
    work = {agent_id: progress.work_s for agent_id, progress in told.items() if progress.work_s is not None}
    if len(work) == len(told):
        return "work", work
    return "step", {agent_id: progress.step_s or 0.0 for agent_id, progress in told.items()}


def _limit(values: Collection[float], usual_s: float, factor: float) -> float:
    usual_distance_s = _median([abs(value - usual_s) for value in values])
    return max(factor * usual_s, usual_s + SPREAD * usual_distance_s)


def _median(values: Collection[float]) -> float:
    """Median, the lower one of two middle values: so the slower one of two nodes can be a straggler."""
    return sorted(values)[(len(values) - 1) // 2]


def _disagrees(run: Run, agent_id: str, is_slow: bool) -> bool:
    """Note a comparison, and return whether the last `LOOKS` with new steps contradict what the node is held to be."""
    signs, step = run.slowness, run.progress[agent_id].progress.lowest_step
    if step is None or step == signs.steps.get(agent_id):
        return False
    signs.steps[agent_id] = step
    signs.looks[agent_id] = signs.looks.get(agent_id, 0) + 1 if is_slow != (agent_id in run.stragglers) else 0
    return signs.looks[agent_id] >= LOOKS


def _replaced(run: Run, now: float) -> events.StragglerReplaced | None:
    """Replacement of the worst straggler, if a connected node stands by and the last replacement is long ago."""
    if not run.settings.replace_stragglers or not completion.has_standby(run) or run.leaving or run.succeeded:
        return None
    if run.replaced_at is not None and now < run.replaced_at + REPLACED_AGAIN_AFTER_S:
        return None
    slow = [each for each in run.stragglers.values() if each.agent_id in run.running]
    return events.StragglerReplaced(max(slow, key=lambda each: each.times).agent_id) if slow else None


# Facts.


def found(machine: "RunMachine", fact: events.StragglersFound, now: float) -> None:
    run = machine.run
    for straggler in fact.found:
        run.stragglers[straggler.agent_id] = straggler
        run.slowness.looks.pop(straggler.agent_id, None)
        machine.tell("straggler_found", sentence(straggler), now, node_id=straggler.node_id)
    for agent_id in fact.over:
        run.slowness.looks.pop(agent_id, None)
        if was := run.stragglers.pop(agent_id, None):
            reason = printable(f"node {was.node_id} is slow no more")
            machine.tell("straggler_over", reason, now, node_id=was.node_id)


def replaced(machine: "RunMachine", fact: events.StragglerReplaced, now: float) -> None:
    """Open a round, for which the straggler is cordoned (see `registry`); its workers are told first, with notices."""
    run, straggler = machine.run, machine.run.stragglers[fact.agent_id]
    notice_s = run.settings.notice_timeout_s
    slow = Replacement(straggler.node_id, sentence(straggler), now + (notice_s or 0.0))
    run.replaced_at = now
    if notice_s is None:
        notices.blame_straggler(machine, slow)
        machine.open_round(Cause.NODE_DRAINED, slow.reason, now)
    else:
        run.replacement = slow
        notices.given(machine, slow.reason, notice_s, now, slow.node_id)


def slow(run: Run, agent_id: str) -> str:
    """Sentence about how slow the agent's node is; empty if it is no straggler."""
    straggler = run.stragglers.get(agent_id)
    return sentence(straggler) if straggler else ""


def sentence(straggler: events.Straggler) -> str:
    """The straggler in one line, for people."""
    what = "a step's own work" if straggler.of == "work" else "a step"
    times = f"{straggler.own_s:.3g} s, {straggler.times:.1f} times as long as usual ({straggler.usual_s:.3g} s)"
    return printable(f"node {straggler.node_id} is slow: {what} takes {times}")
