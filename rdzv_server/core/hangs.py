"""Hangs: from the suspicions of agents to one failure with a name, and to what the run's policy says.

An agent tells which of its workers seem to hang, and by which source. What one node sees is believed, but for silence:
output of one node alone is no sign, so that every node has to tell of it. Then all participants are asked what their
workers are doing, as far as they know that query (see `examination`), and for `SETTLE_S` at least further suspicions
are waited for: in lockstep everybody waits for the one who is to blame. Of all that one `Failure` is made, a fact, that
names the rank: by the stacks, where they can tell, else by the suspicions.

The examination is a sign: it is begun when the server is live, ends by its own deadline, and is begun anew by the next
leader, which knows the suspicions.

After `report` nothing follows in this round, unless the hang ends and comes again.
"""

from functools import partial
from typing import TYPE_CHECKING

from rdzv_protocol.errors import MalformedMessage, StaleRound, TooManyRequests
from rdzv_protocol.messages import Failure
from rdzv_protocol.text import clip, printable

from rdzv_server.core import events, examination, final_report, restart_budget
from rdzv_server.core.run import (
    AgentState,
    Cause,
    Examinations,
    Examined,
    FailureRecord,
    Hang,
    Run,
    Seat,
    Stage,
    Suspicion,
)
from rdzv_server.core.stack_summary import StackSummary

if TYPE_CHECKING:
    from rdzv_server.core.machine import RunMachine

SETTLE_S = 2.0
"""Seconds in which other nodes' suspicions may come, after the first one that is believed."""
EXAMINED_AGAIN_AFTER_S = (0.0, 60.0, 120.0, 300.0)
"""Seconds between the beginnings of a round's examinations, the last value for all that follow: so an agent that
suspects and takes it back does not have nodes examined all the time, and a hang that lasts is examined in the end."""
SILENCE = "silence"
_SURE = ("uninterruptible", "timer", "log rule")
"""Beginnings of the names of sources that tell of a worker itself, not of what it waits for."""
HUNG = 1
"""Exit code of the failure that stands for a hang: the worker has none."""
REASON_BYTES = 240
CAUSE_BYTES = 900
HINT_BYTES = 900
MOST_SOURCES = 16
"""Most sources by which one agent may suspect its workers at the same time."""


def check(machine: "RunMachine", event: events.HangSuspected, now: float) -> events.HangSuspected | None:
    """Ignore a suspicion that says nothing new. Raises `StaleRound`, `MalformedMessage` or `TooManyRequests`."""
    run = machine.run
    agent = run.agents.get(event.agent_id)
    seat = run.seat_of(event.agent_id)
    if agent is None or seat is None or run.stage is not Stage.RUNNING or event.round != run.round:
        raise StaleRound(f"round {event.round} of run {run.run_id} is over")
    ranks = seat.ranks
    if foreign := [rank for rank in event.ranks if rank not in ranks]:
        raise MalformedMessage(f"rank {foreign[0]} is none of node {agent.node_id}'s, {ranks[0]} to {ranks[-1]}")
    suspicions = run.hang.suspicions if run.hang else {}
    known = suspicions.get(_key(event))
    if (
        not known
        and event.ranks
        and sum(each.agent_id == event.agent_id for each in suspicions.values()) >= MOST_SOURCES
    ):
        raise TooManyRequests(f"node {agent.node_id} suspects its workers by {MOST_SOURCES} sources already")
    run.leases.renew(event.agent_id, now)
    return event if bool(known) != bool(event.ranks) and agent.state is AgentState.RUNNING else None


def suspect(machine: "RunMachine", fact: events.HangSuspected, now: float) -> None:
    """Enter a suspicion, or take it back; `settle` draws the conclusions."""
    run, key = machine.run, _key(fact)
    hang = run.hang = run.hang or Hang(since=now)
    if not fact.ranks:
        hang.suspicions.pop(key, None)
        return
    node_id = run.agents[fact.agent_id].node_id
    hang.suspicions[key] = Suspicion(fact.agent_id, node_id, fact.source, fact.reason, fact.ranks, now)


def settle(machine: "RunMachine", now: float) -> None:
    """Schedule the judgement once a suspicion is believed, and drop suspicions that are taken back or have ended."""
    run, hang = machine.run, machine.run.hang
    if hang is None:
        return
    hang.suspicions = {key: each for key, each in hang.suspicions.items() if each.agent_id in run.running}
    believed = _believed(run, hang)
    if not believed:
        hang.judge_at, hang.is_reported = None, False
    elif hang.judge_at is None and not hang.is_reported:
        hang.judge_at = now + SETTLE_S
        machine.tell("hang_suspected", _sentence(believed[-1]), now, node_id=believed[-1].node_id)
    if not hang.suspicions:
        run.hang = None


def attend(machine: "RunMachine", now: float) -> None:
    """Begin the examination of a hang that is believed, or end the one of a hang that is over; never in a replay."""
    run = machine.run
    is_wanted = run.hang is not None and run.hang.judge_at is not None
    if is_wanted and run.examined is None and now >= run.examinations.again_at:
        examined = run.examined = Examined()
        reason = clip(printable(_guilty(run).reason), REASON_BYTES)
        within_s, done = examination.EXAMINED_WITHIN_S, partial(_examined, examined)
        examined.asked = examination.begin(machine, reason, within_s, done, now)
        if examined.summary is None:  # else there was nobody to ask, which costs nothing
            _space_examinations(run, now)
    elif not is_wanted and run.examined is not None:
        examined, run.examined = run.examined, None
        examination.end(machine, examined.asked, "the hang is over", now)


def _space_examinations(run: Run, now: float) -> None:
    so_far = run.examinations
    pause_s = EXAMINED_AGAIN_AFTER_S[min(so_far.number, len(EXAMINED_AGAIN_AFTER_S) - 1)]
    run.examinations = Examinations(number=so_far.number + 1, again_at=now + pause_s)


def _examined(examined: Examined, machine: "RunMachine", summary: StackSummary, now: float) -> None:
    examined.summary = summary


def deadline(run: Run) -> float | None:
    """Time at which a hang is to be judged, or examined before; None while its examination lasts, which ends itself."""
    hang, examined = run.hang, run.examined
    if hang is None or hang.judge_at is None:
        return None
    if examined is None:
        return max(hang.judge_at, run.examinations.again_at)
    return hang.judge_at if examined.summary else None


def judge(run: Run, now: float) -> events.HangFound | None:
    """Hang as a fact, once it is time to judge it; else None."""
    at, summary = deadline(run), run.examined.summary if run.examined else None
    if at is None or now < at or summary is None:
        return None
    guilty = _guilty(run)
    seat, rank = run.seat_of(guilty.agent_id), guilty.ranks[0]
    culprits = [culprit.rank for culprit in summary.culprits]
    is_one_of_them = rank in culprits and not summary.stack  # else the first one's stack tells people more
    if culprits and not is_one_of_them and not guilty.source.startswith(_SURE):
        rank = culprits[0]
        seat = run.seat_of_rank(rank) or seat
    return events.HangFound(seat.agent_id if seat else guilty.agent_id, _failure(run, guilty, seat, rank, summary, now))


def _guilty(run: Run) -> Suspicion:
    """Suspicion that the hang is put down to, by the suspicions alone."""
    assert run.hang
    return min(_believed(run, run.hang), key=lambda each: _order(run, each))


def found(machine: "RunMachine", fact: events.HangFound, now: float) -> None:
    """Tell the hang as an event, and do what the run's policy `on_hang` says."""
    run, failure = machine.run, fact.failure
    assert run.hang
    run.hang.judge_at, run.hang.is_reported = None, True
    seat = run.seat_of(fact.agent_id)
    machine.tell(
        "hang_found", failure.sentence, now, node_id=failure.node_id, group_rank=seat.group_rank if seat else None,
        failure=final_report.details(failure),
    )  # fmt: skip
    if run.settings.on_hang == "report":
        return
    restart_budget.note_hang(run, FailureRecord(run.round, fact.agent_id, now, failure))
    verdict = restart_budget.verdict_on_hang(run, now)
    if verdict:
        machine.fail(failure, verdict, now)
    else:
        machine.open_round(Cause.HANG, failure.sentence, now)


def _key(suspected: events.HangSuspected) -> str:
    return f"{suspected.source}\n{suspected.agent_id}"


def _believed(run: Run, hang: Hang) -> list[Suspicion]:
    """The suspicions that count: silence, if every node whose workers run is silent, and all others."""
    silent = {each.agent_id for each in hang.suspicions.values() if each.source == SILENCE}
    all_silent = run.running.keys() <= silent
    return [each for each in hang.suspicions.values() if each.source != SILENCE or all_silent]


def _order(run: Run, suspicion: Suspicion) -> tuple[bool, int, float, int]:
    """Sort key of suspicions: first by a source that is sure, then by the lowest step, then by time."""
    sign = run.progress.get(suspicion.agent_id)
    step = sign.progress.lowest_step if sign else None
    return not suspicion.source.startswith(_SURE), -1 if step is None else step, suspicion.at, suspicion.ranks[0]


def _failure(run: Run, guilty: Suspicion, seat: Seat | None, rank: int, summary: StackSummary, now: float) -> Failure:
    evidence = f"; {summary.sentence}" if summary.has_stacks else ""
    return Failure(
        node_id=seat.node_id if seat else guilty.node_id,
        rank=rank,
        local_rank=rank - seat.first_rank if seat else 0,
        pid=0,
        exit_code=HUNG,
        cause=clip(f"hang: {clip(printable(guilty.reason), REASON_BYTES)}{printable(evidence)}", CAUSE_BYTES),
        traceback=summary.stack if summary.culprits and summary.culprits[0].rank == rank else (),
        hint=clip(_where_to_look(summary), HINT_BYTES),
        failed_at=run.wall_clock(now),
    )


def _where_to_look(summary: StackSummary) -> str:
    """Advice: the folder with the evidence, or why there is none."""
    if summary.folder:
        return f"read the evidence, in {summary.folder} on node {summary.folder_node}"
    return "; ".join(summary.problems[:1])


def _sentence(suspicion: Suspicion) -> str:
    return printable(f"{_who(suspicion.ranks)} on node {suspicion.node_id} may hang: {suspicion.reason}")


def _who(ranks: tuple[int, ...]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks ({ranks[0]} ...)"
