"""Completion of a forming round: when it completes, and what the round waits for until then.

A round completes at once (a) if `max_nodes` nodes have joined. It also does (b) if `min_nodes` nodes or more are there,
among them every participant of the previous round that is still alive. Otherwise (c) it completes at the end of the
last call, which begins when `min_nodes` nodes are there. If a participant is alive and still stops its workers, its
seat stays reserved. No waiting spare takes it, and no last call ends without it. A round also does not complete while
it is uncertain whether an agent that would get a seat is alive.

If none of the last participants survived, the round forms like a first one. With `shrink_after_s`, (b) waits that many
seconds for replacements of the nodes that are gone. After several charged restarts in a row, the round first waits as
long as `failed_rounds` sets. An operator who restarts the run ends that wait.
"""

from rdzv_protocol.messages import Wait
from rdzv_protocol.settings import LAST_CALL_MOST_S, LAST_CALL_QUIET_S
from rdzv_protocol.text import clip, printable

from rdzv_server.core.kernel import admission, finishing, legal_sizes, silent_runs
from rdzv_server.core.kernel.run import Agent, AgentState, Departure, Run, keep_latest
from rdzv_server.words import completion as words
from rdzv_server.words import operations as operation_words

UNFIT_BYTES, MOST_UNFIT = 200, 1_000
"""Most bytes of the evidence against an unfit node in a run's end, and most nodes whose evidence is remembered."""


def has_standby(run: Run) -> bool:
    """Return whether a node stands by and its agent is connected."""
    absent = run.leases.absent_since
    return any(agent_id not in absent for agent_id in run.waiting)


def completes(run: Run, now: float) -> str | None:
    """Return the reason why the forming round completes now, by rule (a) or (b); None if it has to wait."""
    return None if _backs_off(run, now) else _all_there(run)


def presumed_lost(run: Run, now: float) -> list[str]:
    """Return the participants that are presumed lost, by agent id; empty unless the round waits for nothing else.

    A participant is presumed lost if its connection closed while its poll was parked, it has not polled again, and
    workers of another node failed. The verdict waits until then, because a new poll would reverse it. If several
    participants vanished together, a failure shows that some are gone only if it is a consequence: its worker has lost
    another one. Then the healthy ones have some time to poll again, and their polls are read first.
    """
    at = presumed_at(run)
    return [] if at is None or min(now, run.leases.unread_since) < at else list(run.stopping)


def presumed_at(run: Run) -> float | None:
    """Return the time from which `presumed_lost` names the participants that stop; None if it names none of them."""
    if not (run.failed and run.leases.absent_since and run.stopping):
        return None
    leases, stopping = run.leases, run.stopping
    if len(run.waiting) < legal_sizes.smallest(run.settings) or len(leases.absent_since) < len(stopping):
        return None
    if not all(leases.corroborates(agent_id) and run.failed != {agent_id} for agent_id in stopping):
        return None
    are_suspect = any(map(leases.is_suspect, stopping))
    if (are_suspect and not _lost_others(run)) or admission.is_uncertain(run, besides=stopping):
        return None
    return _not_before(run.opening.backoff_until, leases.should_return_by(stopping) if are_suspect else 0.0)


def _lost_others(run: Run) -> bool:
    """Return whether the failed workers report that they lost other workers."""
    return run.first_of_round is not None and run.first_of_round.failure.consequence


def _backs_off(run: Run, now: float) -> bool:
    return run.opening.backoff_until is not None and now < run.opening.backoff_until


def _all_there(run: Run) -> str | None:
    if run.opening.min_since is None or run.stopping or admission.is_uncertain(run):
        return None
    joined, high = len(run.waiting), legal_sizes.largest(run.settings)
    if joined > high:
        return words.more_than_seats(joined, high)
    if joined == high:
        return words.all_joined(high)
    if run.survivors and not _awaits_replacement(run):
        return words.all_rejoined(run.round - 1, _joined(run))
    return None


def deadline(run: Run) -> float | None:
    """Return the time at which the forming round completes by its last call, or fails by its join timeout.

    No last call ends while participants stop their workers. Otherwise it would exclude nodes that are about to rejoin,
    and their return would restart the run again. An agent limits the time of its own stop, and a silent agent is lost.
    """
    if admission.is_uncertain(run):
        return None
    if run.opening.min_since is not None:
        if run.stopping:
            return None
        return _not_before(run.opening.backoff_until, _closes_at(run, run.opening.min_since))
    return run.opening.below_since + run.settings.join_timeout_s


def _not_before(backoff_until: float | None, at: float) -> float:
    return at if backoff_until is None else max(at, backoff_until)


def _closes_at(run: Run, min_since: float) -> float:
    """Return the time at which a round that has its minimum stops waiting for more nodes."""
    if run.opening.backoff_until is not None and _all_there(run):
        return run.opening.backoff_until
    if run.opening.lost_at is not None and _awaits_replacement(run):
        return run.opening.lost_at + run.settings.shrink_after_s
    return _last_call_ends(run, min_since)


def _awaits_replacement(run: Run) -> bool:
    """Return whether the round would be smaller than the previous one, and still waits for nodes to fill the free
    seats.
    """
    opening, settings = run.opening, run.settings
    if not settings.shrink_after_s or opening.lost_at is None or not run.survivors or run.membership is None:
        return False
    return legal_sizes.fitting(settings, len(run.waiting)) < legal_sizes.fitting(settings, len(run.membership.seats))


def expired(run: Run) -> str:
    """Return the reason why the forming round completes at its deadline."""
    taken = legal_sizes.fitting(run.settings, len(run.waiting))
    if _awaits_replacement(run):
        return words.no_replacement(run.settings.shrink_after_s, taken)
    return words.last_call_ended(len(run.waiting))


def _last_call_ends(run: Run, began_at: float) -> float:
    """Return the end of the last call since the minimum: after the requested time, else when no more nodes arrive."""
    if run.settings.last_call_timeout_s is not None:
        return began_at + run.settings.last_call_timeout_s
    return min(max(began_at, run.opening.joined_at) + LAST_CALL_QUIET_S, began_at + LAST_CALL_MOST_S)


def wait(run: Run, now: float) -> Wait:
    """Return the directive of an agent of a forming round: what it waits for."""
    if run.held:
        return Wait(reason=words.held(_joined(run), run.held))
    enough = run.opening.min_since is not None
    text, ending = (_last_call(run, now), "starts") if enough else (shortfall(run), "gives_up")
    until = deadline(run)
    return Wait(reason=text) if until is None else Wait(reason=text, remaining_s=max(0.0, until - now), ending=ending)


def standby(run: Run, now: float) -> Wait:
    """Return the directive of an agent beside a running round: what it waits for."""
    ends_at = run.scale_up_at if run.replacement is None else run.replacement.until
    if ends_at is not None:
        remaining_s = max(0.0, ends_at - now)
        return Wait(reason=words.admits_soon(run.round), remaining_s=remaining_s, ending="ends")
    if run.succeeded:
        return Wait(reason=words.standby_some_finished(len(run.succeeded), len(run.seats)))
    if len(run.running) < legal_sizes.largest(run.settings) and not admission.free_seats(run):
        return Wait(reason=words.standby_full(run.round, len(run.seats), legal_sizes.shown(run.settings)))
    if len(run.running) < legal_sizes.largest(run.settings):
        return Wait(reason=words.standby_scale_up(run.round, run.settings.scale_up))
    return Wait(reason=words.standby_full(run.round, len(run.seats)))


def cordoned(run: Run, node_id: str, now: float) -> Wait:
    """Return the directive of an agent that has joined and whose node is cordoned."""
    cordon = run.cordons[node_id]
    excluded = cordon.excludes
    text = words.standby_kept_out(node_id, cordon.reason, excluded=excluded)
    if cordon.until is None:
        return Wait(reason=text, excluded=excluded)
    return Wait(reason=text, remaining_s=max(0.0, cordon.until - now), ending="uncordoned", excluded=excluded)


def running_reason(run: Run, ends_soon: str = "") -> str:
    """Return the sentence about a running round, for status. `ends_soon`: phrase about its end; empty if none comes."""
    seats, sizes = len(run.seats), legal_sizes.shown(run.settings) if run.waiting else ""
    also = [found.sentence] if (found := finishing.view(run)) else []
    if ends_soon:
        also.append(ends_soon)
    if run.unheard_since is not None:
        also.append(words.no_agent_heard(silent_runs.MOST_S))
    return words.running(run.round, seats, of=len(run.waiting) + seats if sizes else None, sizes=sizes, also=also)


def _last_call(run: Run, now: float) -> str:
    low, high = legal_sizes.smallest(run.settings), legal_sizes.largest(run.settings)
    return words.last_call(_joined(run), low, high, legal_sizes.shown(run.settings), _awaited(run, high, now))


def _awaited(run: Run, high: int, now: float) -> str:
    if run.stopping:
        return words.awaits_stops(_stopping(run))
    if admission.is_uncertain(run):
        uncertain = run.leases.uncertain
        node_ids = (run.agents[agent_id].node_id for agent_id in uncertain)
        return words.awaits_signs_of_life(words.names(node_ids, len(uncertain)))
    if _awaits_replacement(run):
        return words.awaits_replacement(words.names(gone := _gone(run), len(gone)))
    if _backs_off(run, now):
        return words.awaits_backoff(run.restarts_in_row)
    return words.awaits_more(high)


def vacated(run: Run) -> list[Departure]:
    """Return departures of the last round's participants whose nodes are not back, so the forming round lacks them."""
    return [
        gone
        for gone in run.departures
        if run.membership is not None
        and gone.round == run.membership.round
        and gone.group_rank is not None
        and gone.node_id not in run.node_ids
    ]


def _gone(run: Run) -> list[str]:
    return [departure.node_id for departure in vacated(run)]


def shortfall(run: Run, refused: str | None = None) -> str:
    """Return the sentence about a round below its minimum: which nodes are there, and which are missing.

    `refused`: what it says about refused agents, from a fact; None for those that the server has refused in this round.
    """
    low, nodes = legal_sizes.smallest(run.settings), len(run.waiting)
    return words.too_few(
        low - nodes,
        nodes,
        low,
        names(run.waiting),
        sizes=legal_sizes.shown(run.settings),
        to_stop=_stopping(run) if run.stopping else "",
        gone=words.names(gone, len(gone)) if (gone := _gone(run)) else "",
        cordoned=_kept_out(run, excluded=False),
        excluded=_kept_out(run, excluded=True),
        refused=not_admitted(run) if refused is None else refused,
        unfit=_unfit(left_unfit(run)),
    )


def not_admitted(run: Run) -> str:
    """Return the nodes whose agents may not join, with the reasons; empty if there are none."""
    return words.refused(refused(run))


def refused(run: Run) -> dict[str, str]:
    """Return the nodes whose agents may not join and that have not joined since, each with the reason."""
    return {node_id: why for node_id, why in run.refused.items() if node_id not in run.node_ids}


def _kept_out(run: Run, *, excluded: bool) -> str:
    """Return the names of the joined nodes without a seat that operators have cordoned, or the server has excluded."""
    cordons = run.cordons
    return names({each: agent for each, agent in run.cordoned.items() if cordons[agent.node_id].excludes is excluded})


def left_unfit(run: Run) -> dict[str, str]:
    """Return the nodes that a check has found unfit and that have not joined again, each with the evidence."""
    return {node_id: why for node_id, why in run.unfit.items() if node_id not in run.node_ids}


def _unfit(out: dict[str, str]) -> str:
    return words.all_unfit(out.values(), len(out))


def unfit_reason(node_id: str, evidence: str) -> str:
    """Return the evidence that a node's agent has sent as a sentence about this node, in printable characters."""
    return printable(words.unfit(node_id, evidence))


def note_unfit(run: Run, node_id: str, reason: str) -> None:
    """Remember that a leaving node is unfit, and forget the oldest entries beyond the limit."""
    keep_latest(run.unfit, node_id, clip(reason, UNFIT_BYTES), MOST_UNFIT)


def too_few_fit(run: Run, fixed_nodes: int) -> str:
    """Return why the forming round can never get its minimum, given `fixed_nodes` nodes; empty if it still can.

    A node counts as out if it left as unfit and is not back. It also does if the server itself excludes it until after
    the join timeout. A node that was lost, that left, or that an operator cordoned may come back at any time. A run
    that has not begun yet waits until it has heard of all nodes. A node that came after its end would wait in vain.
    """
    low, opening = legal_sizes.smallest(run.settings), run.opening
    if opening.min_since is not None or fixed_nodes - len(run.unfit) - len(run.cordons) >= low:
        return ""  # enough are fit even if all of these are out; this answers nearly every join without a look at them
    gives_up_at = opening.below_since + run.settings.join_timeout_s
    out = left_unfit(run)
    for node_id, cordon in run.cordons.items():
        if cordon.excludes and (cordon.until is None or cordon.until >= gives_up_at):
            out[node_id] = operation_words.excluded(node_id, None, cordon.reason)
    if not out or (run.membership is None and _number_known(run, out) < fixed_nodes):
        return ""
    left = max(fixed_nodes - len(out), _number_fit(run, out))
    if left >= low:
        return ""
    return words.too_few_fit(left, fixed_nodes, low, _unfit(out))


def _number_known(run: Run, out: dict[str, str]) -> int:
    """Return the number of nodes that are part of the run, are in `out`, or are gone."""
    gone = out.keys() | {departure.node_id for departure in run.departures}
    return len(run.node_ids) + sum(node_id not in run.node_ids for node_id in gone)


def _number_fit(run: Run, out: dict[str, str]) -> int:
    """Return the number of agents that may get a seat: their nodes are not in `out`, and they are not leaving."""
    leaving = run.by_state[AgentState.DRAINING]
    kept_out = (agent_id for node_id in out for agent_id in run.node_ids.get(node_id, ()))
    return len(run.agents) - len(leaving) - sum(agent_id not in leaving for agent_id in kept_out)


def _stopping(run: Run) -> str:
    return words.to_stop(names(run.stopping), run.round - 1)


def _joined(run: Run) -> str:
    return words.joined(len(run.waiting), names(run.waiting))


def names(agents: dict[str, Agent], number: int | None = None) -> str:
    """Return the names of the first `number` of the agents' nodes, or of all; only the first few are spelled out."""
    number = len(agents) if number is None else number
    return words.names((agent.node_id for agent in agents.values()), number)


def arrivals(run: Run) -> str:
    """Return the sentence about a scale-up: which nodes it admits."""
    admitted = min(len(run.waiting), admission.free_seats(run))
    return words.admitting(admitted, names(run.waiting, admitted)) if admitted > 0 else words.NOTHING_TO_ADMIT
