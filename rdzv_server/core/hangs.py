"""Hangs: from the suspicions of agents to one failure with a name, and to what the run's policy says.

An agent tells which of its workers seem to hang, and by which source. What one node sees is believed, but for silence:
output of one node alone is no sign, so that every node has to tell of it. Then all participants are asked what their
workers are doing, as far as they know that query, and for `SETTLE_S` further suspicions are waited for: in lockstep
everybody waits for the one who is to blame. Of all that one `Failure` is made, a fact, which names the rank.

After `report` nothing follows in this round, unless the hang ends and comes again.
"""

from typing import TYPE_CHECKING

from rdzv_protocol.errors import MalformedMessage, StaleRound
from rdzv_protocol.messages import Failure
from rdzv_protocol.text import clip, printable

from rdzv_server.core import events, final_report, restart_budget
from rdzv_server.core.run import AgentState, Cause, FailureRecord, Hang, Run, Stage, Suspicion, remember

if TYPE_CHECKING:
    from rdzv_server.core.machine import RunMachine

SETTLE_S = 2.0
"""Time for the suspicions of other nodes, after the first one that is believed."""
SILENCE = "silence"
_SURE = ("uninterruptible", "timer", "log rule")
"""Beginnings of the names of sources that tell of a worker itself, and not of what it waits for."""
HUNG = 1
"""Exit code that stands for a hang: the worker had none."""
CAUSE_BYTES = 240


def check(machine: "RunMachine", event: events.HangSuspected, now: float) -> events.HangSuspected | None:
    """Take a suspicion that says something new. Raises `StaleRound` or `MalformedMessage`."""
    run = machine.run
    agent = run.agents.get(event.agent_id)
    seat = run.seat_of(event.agent_id)
    if agent is None or seat is None or run.stage is not Stage.RUNNING or event.round != run.round:
        raise StaleRound(f"round {event.round} of run {run.run_id} is over")
    run.leases.renew(event.agent_id, now)
    ranks = range(seat.first_rank, seat.first_rank + seat.local_world_size)
    if stranger := [rank for rank in event.ranks if rank not in ranks]:
        raise MalformedMessage(f"rank {stranger[0]} is none of node {agent.node_id}'s, {ranks[0]} to {ranks[-1]}")
    known = run.hang.suspicions.get(_key(event)) if run.hang else None
    return event if bool(known) != bool(event.ranks) and agent.state is AgentState.RUNNING else None


def suspect(machine: "RunMachine", fact: events.HangSuspected, now: float) -> None:
    """Take the suspicion, or take it back; `settle` draws the conclusions."""
    run, key = machine.run, _key(fact)
    hang = run.hang = run.hang or Hang(since=now)
    if not fact.ranks:
        hang.suspicions.pop(key, None)
        return
    node_id = run.agents[fact.agent_id].node_id
    hang.suspicions[key] = Suspicion(fact.agent_id, node_id, fact.source, fact.reason, fact.ranks, now)


def settle(machine: "RunMachine", now: float) -> None:
    """Begin to judge once a suspicion is believed, and no longer judge what is taken back or has come to its end."""
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


def deadline(run: Run) -> float | None:
    """Time at which a hang is to be judged."""
    return run.hang.judge_at if run.hang else None


def judge(run: Run, now: float) -> events.HangFound | None:
    """The hang as a fact, once it is time to say so."""
    hang = run.hang
    if hang is None or hang.judge_at is None or now < hang.judge_at:
        return None
    guilty = min(_believed(run, hang), key=lambda each: _order(run, each))
    return events.HangFound(guilty.agent_id, _failure(run, guilty, now))


def found(machine: "RunMachine", fact: events.HangFound, now: float) -> None:
    """Do what the run's policy says."""
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
    record = FailureRecord(run.round, fact.agent_id, now, failure)
    _blame(run, record)
    verdict = restart_budget.verdict_on_hang(run, now)
    if verdict:
        machine.end(Stage.FAILED, f"{failure.sentence}; {verdict}", failure, now)
    else:
        machine.open_round(Cause.HANG, failure.sentence, now)


def _blame(run: Run, record: FailureRecord) -> None:
    """Make the hang the root of its round: whatever fails when the workers are stopped follows from it."""
    run.first_failure = run.first_failure or record
    run.first_of_round = record
    remember(run.failures, record)
    node_id = record.failure.node_id
    run.failures_by_node[node_id] = run.failures_by_node.get(node_id, 0) + 1


def _key(suspected: events.HangSuspected) -> str:
    return f"{suspected.source}\n{suspected.agent_id}"


def _believed(run: Run, hang: Hang) -> list[Suspicion]:
    """The suspicions that count: silence, if every node whose workers run is silent, and all others."""
    silent = {each.agent_id for each in hang.suspicions.values() if each.source == SILENCE}
    all_silent = run.running.keys() <= silent
    return [each for each in hang.suspicions.values() if each.source != SILENCE or all_silent]


def _order(run: Run, suspicion: Suspicion) -> tuple[bool, int, float, int]:
    """First who hangs by a source that is sure, then who is at the lowest step, then who was suspected first."""
    sign = run.progress.get(suspicion.agent_id)
    step = sign.progress.lowest_step if sign else None
    return not suspicion.source.startswith(_SURE), -1 if step is None else step, suspicion.at, suspicion.ranks[0]


def _failure(run: Run, guilty: Suspicion, now: float) -> Failure:
    seat = run.seat_of(guilty.agent_id)
    return Failure(
        node_id=guilty.node_id,
        rank=guilty.ranks[0],
        local_rank=guilty.ranks[0] - seat.first_rank if seat else 0,
        pid=0,
        exit_code=HUNG,
        cause=clip(f"hang: {printable(guilty.reason)}", CAUSE_BYTES),
        failed_at=run.wall_clock(now),
    )


def _sentence(suspicion: Suspicion) -> str:
    return printable(f"{_who(suspicion.ranks)} on node {suspicion.node_id} may hang: {suspicion.reason}")


def _who(ranks: tuple[int, ...]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks ({ranks[0]} ...)"
