"""Completion of a forming round: when it comes, and what the round waits for until then.

A round completes at once when (a) max_nodes have joined, or (b) every participant of the round before that is still
alive has rejoined and min_nodes are there; else (c) at the end of the last call, which begins with min_nodes. The seats
of participants that are alive and still stop their workers are kept for them: no spare that waits already takes one,
and no last call shuts them out. Nor is anything decided while it is uncertain whether one that would get a seat lives.
A round that none of the last participants survived forms like a first one. With `shrink_after_s`, (b) waits so long
for a replacement of whoever is gone. After charged restarts in a row nothing completes before the wait is over that
`failed_rounds` sets, unless an operator restarts the run.
"""

from rdzv_protocol.messages import Wait
from rdzv_protocol.settings import LAST_CALL_MOST_S, LAST_CALL_QUIET_S
from rdzv_protocol.text import clip, printable

from rdzv_server.core.kernel import admission, finishing, legal_sizes
from rdzv_server.core.kernel.run import Agent, AgentState, Departure, Run, keep_latest
from rdzv_server.words import completion as words
from rdzv_server.words import operations as told

UNFIT_BYTES, MOST_UNFIT = 200, 1_000
"""Most bytes of the evidence against an unfit node in the end of a run, and most nodes for which it is remembered."""


def has_standby(run: Run) -> bool:
    """Whether a node stands by whose agent is connected."""
    absent = run.leases.absent_since
    return any(agent_id not in absent for agent_id in run.waiting)


def completes(run: Run, now: float) -> str | None:
    """Reason why the forming round completes now, by rule (a) or (b); None while it waits."""
    return None if _backs_off(run, now) else _all_there(run)


def presumed_lost(run: Run, now: float) -> list[str]:
    """Ids of the participants that the forming round waits for in vain; none unless it waits for nothing else.

    A participant is presumed lost if its connection closed while its poll was parked, it has not polled again, and
    workers of another node failed. The verdict is put off until then, as a poll would take it back. If several vanished
    together, a failure says that they are gone only if it is a consequence: its worker has lost another one.
    """
    if not (run.failed and run.leases.absent_since and run.stopping):
        return []
    leases, stopping = run.leases, run.stopping
    is_enough = len(run.waiting) >= legal_sizes.smallest(run.settings)
    if not is_enough or len(leases.absent_since) < len(stopping) or _backs_off(run, now):
        return []
    if not all(leases.corroborates(agent_id) and run.failed != {agent_id} for agent_id in stopping):
        return []
    if not _lost_others(run) and any(map(leases.is_suspect, stopping)):
        return []
    return [] if admission.is_uncertain(run, besides=stopping) else list(stopping)


def _lost_others(run: Run) -> bool:
    """Whether the workers that have failed have lost others, as they say."""
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
    """Time at which the forming round completes by its last call or fails by its join timeout.

    No last call while participants stop their workers. It would shut out nodes that are alive and about to rejoin, and
    their return would restart the run once more; an agent bounds its own stop, and one that goes silent is lost.
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
    """Time at which a round that has its minimum no longer waits for more nodes."""
    if run.opening.backoff_until is not None and _all_there(run):
        return run.opening.backoff_until
    if run.opening.lost_at is not None and _awaits_replacement(run):
        return run.opening.lost_at + run.settings.shrink_after_s
    return _last_call_ends(run, min_since)


def _awaits_replacement(run: Run) -> bool:
    """Whether the round would be smaller than the one before, and is given time to fill the seats that are free."""
    opening, settings = run.opening, run.settings
    if not settings.shrink_after_s or opening.lost_at is None or not run.survivors or run.membership is None:
        return False
    return legal_sizes.fitting(settings, len(run.waiting)) < legal_sizes.fitting(settings, len(run.membership.seats))


def expired(run: Run) -> str:
    """Reason why the forming round completes at its deadline."""
    taken = legal_sizes.fitting(run.settings, len(run.waiting))
    if _awaits_replacement(run):
        return words.no_replacement(run.settings.shrink_after_s, taken)
    return words.last_call_ended(len(run.waiting))


def _last_call_ends(run: Run, began_at: float) -> float:
    """End of the last call that began with the minimum: as long as was asked for, else once nobody comes any more."""
    if run.settings.last_call_timeout_s is not None:
        return began_at + run.settings.last_call_timeout_s
    return min(max(began_at, run.opening.joined_at) + LAST_CALL_QUIET_S, began_at + LAST_CALL_MOST_S)


def wait(run: Run, now: float) -> Wait:
    """Directive of an agent of a forming round: what it waits for."""
    if run.held:
        return Wait(reason=words.held(_joined(run), run.held))
    enough = run.opening.min_since is not None
    text, ending = (_last_call(run, now), "starts") if enough else (shortfall(run), "gives_up")
    until = deadline(run)
    return Wait(reason=text) if until is None else Wait(reason=text, remaining_s=max(0.0, until - now), ending=ending)


def standby(run: Run, now: float) -> Wait:
    """Directive of an agent beside a running round: what it waits for."""
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
    """Directive of an agent that has joined, and whose node is cordoned."""
    cordon = run.cordons[node_id]
    excluded = cordon.excludes
    text = words.standby_kept_out(node_id, cordon.reason, excluded=excluded)
    if cordon.until is None:
        return Wait(reason=text, excluded=excluded)
    return Wait(reason=text, remaining_s=max(0.0, cordon.until - now), ending="uncordoned", excluded=excluded)


def running_reason(run: Run) -> str:
    """The sentence about a running round, for status."""
    seats, sizes = len(run.seats), legal_sizes.shown(run.settings) if run.waiting else ""
    also = [found.sentence] if (found := finishing.view(run)) else []
    if run.notice_since is not None:
        also.append(words.ENDS_SOON)
    if run.unheard_since is not None:
        also.append(words.NOBODY_HEARD)
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
    """Departures of participants of the last round whose nodes are not back: the forming round misses them."""
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


def shortfall(run: Run) -> str:
    """Sentence about a round below its minimum: who is there, and who is missing."""
    low, nodes = legal_sizes.smallest(run.settings), len(run.waiting)
    return words.too_few(
        low - nodes,
        nodes,
        low,
        names(run.waiting),
        sizes=legal_sizes.shown(run.settings),
        to_stop=_stopping(run) if run.stopping else "",
        gone=words.names(gone, len(gone)) if (gone := _gone(run)) else "",
        cordoned=names(run.cordoned),
        unfit=_unfit(left_unfit(run)),
    )


def left_unfit(run: Run) -> dict[str, str]:
    """Nodes that a check has found unfit and that have not joined again, each with the evidence."""
    return {node_id: why for node_id, why in run.unfit.items() if node_id not in run.node_ids}


def _unfit(out: dict[str, str]) -> str:
    return words.all_unfit(out.values(), len(out))


def said_unfit(node_id: str, evidence: str) -> str:
    """Evidence that a node's agent has sent, in a sentence about this node, whatever the evidence says."""
    return printable(words.unfit(node_id, evidence))


def note_unfit(run: Run, node_id: str, reason: str) -> None:
    """Remember a node that leaves as unfit, and forget the oldest of too many."""
    keep_latest(run.unfit, node_id, clip(reason, UNFIT_BYTES), MOST_UNFIT)


def too_few_fit(run: Run, fixed_nodes: int) -> str:
    """Reason why the forming round never gets its minimum, since of `fixed_nodes` too few are fit; empty: it may.

    Nodes that have left as unfit and are not back are out, and those that the server itself keeps out until the round
    would have given up. A node that was lost, left, or was cordoned by an operator may be back any time. A run that has
    not begun yet goes on until all have been heard of: who came after its end would wait in vain.
    """
    low, opening = legal_sizes.smallest(run.settings), run.opening
    if opening.min_since is not None or fixed_nodes - len(run.unfit) - len(run.cordons) >= low:
        return (
            ""  # enough are fit even if all of these are out: so nearly every join is answered without a look at them
        )
    gives_up_at = opening.below_since + run.settings.join_timeout_s
    out = left_unfit(run)
    for node_id, cordon in run.cordons.items():
        if cordon.excludes and (cordon.until is None or cordon.until >= gives_up_at):
            out[node_id] = told.excluded(node_id, None, cordon.reason)
    if not out or (run.membership is None and _number_known(run, out) < fixed_nodes):
        return ""
    left = max(fixed_nodes - len(out), _number_fit(run, out))
    if left >= low:
        return ""
    return words.too_few_fit(left, fixed_nodes, low, _unfit(out))


def _number_known(run: Run, out: dict[str, str]) -> int:
    """Number of the nodes that are part of the run, are `out` of it, or are gone."""
    gone = out.keys() | {departure.node_id for departure in run.departures}
    return len(run.node_ids) + sum(node_id not in run.node_ids for node_id in gone)


def _number_fit(run: Run, out: dict[str, str]) -> int:
    """Number of agents that may get a seat: their nodes are not `out`, and they do not leave."""
    leaving = run.by_state[AgentState.DRAINING]
    kept_out = (agent_id for node_id in out for agent_id in run.node_ids.get(node_id, ()))
    return len(run.agents) - len(leaving) - sum(agent_id not in leaving for agent_id in kept_out)


def _stopping(run: Run) -> str:
    return words.to_stop(names(run.stopping), run.round - 1)


def _joined(run: Run) -> str:
    return words.joined(len(run.waiting), names(run.waiting))


def names(agents: dict[str, Agent], number: int | None = None) -> str:
    """The first `number` of the agents' nodes, or all of them; the first few by name."""
    number = len(agents) if number is None else number
    return words.names((agent.node_id for agent in agents.values()), number)


def arrivals(run: Run) -> str:
    """Sentence about a scale-up: whom it admits."""
    admitted = min(len(run.waiting), admission.free_seats(run))
    return words.admitting(admitted, names(run.waiting, admitted)) if admitted > 0 else words.ADMITTING_NOBODY
