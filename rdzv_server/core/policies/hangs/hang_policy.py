"""Hangs: from agents' suspicions to one failure that names a rank, and then to the action of the run's policy.

An agent reports which of its workers seem to hang, and by which source. The server believes a report of one node,
except about silence: silence counts only if every node reports it. A node whose workers have finished was alive until
then, so the silence of the others counts from that time.

Then the server asks all participants what their workers are doing, if they know that query (see `examination`). For at
least `SETTLE_S` seconds it also waits for further suspicions: in lockstep, all ranks wait for the one that is to blame.
From all of this it makes one `Failure`, a fact, that names the rank: by the stacks if they show it, else by the
suspicions.

The examination is a sign. It begins only on a live server and ends by its own deadline. After a failover the next
leader, which knows the suspicions, begins it again.

If neither the stacks nor the suspicions single out a rank, the failure does not name a rank or count against a node.
With `report`, nothing else happens in this round, unless the hang ends and comes again.
"""

from collections.abc import Mapping
from functools import partial
from math import inf
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace
from rdzv_protocol.errors import MalformedMessage, StaleRound, TooManyRequests
from rdzv_protocol.events import EventKind
from rdzv_protocol.exposition import Metric
from rdzv_protocol.hang_sources import LOG_RULE, PROGRESS, SILENCE, TIMER, UNINTERRUPTIBLE
from rdzv_protocol.messages import Failure
from rdzv_protocol.shell import quoted
from rdzv_protocol.text import clip, printable

from rdzv_server.core.kernel import admission, final_report, restart_budget
from rdzv_server.core.kernel.policy import IMMEDIATELY, Finding, Policy, Rule, Rules
from rdzv_server.core.kernel.protocols import Kernel
from rdzv_server.core.kernel.restart_budget import Verdict
from rdzv_server.core.kernel.run import AgentState, Cause, FailureRecord, Run, Seat, Stage
from rdzv_server.core.policies.hangs import examination, repeated_hangs, words
from rdzv_server.core.policies.hangs.examination import StacksAsked
from rdzv_server.core.policies.hangs.stack_summary import StackSummary
from rdzv_server.core.policies.hangs.suspicions import (
    Hang,
    HangFound,
    HangsState,
    HangSuspected,
    HangVerdict,
    Suspicion,
)
from rdzv_server.words import failures, health

SETTLE_S = 2.0
"""Seconds to wait for other nodes' suspicions after the first one that is believed."""
EXAMINED_AGAIN_AFTER_S = (0.0, 60.0, 120.0, 300.0)
"""Seconds between the starts of a round's examinations; the last value is for all that follow.

So nodes are not examined all the time if an agent suspects a hang and takes it back again and again. A hang that lasts
is still examined.
"""
_SURE = (UNINTERRUPTIBLE, TIMER, LOG_RULE)
"""Prefixes of sources that say something about a worker itself, not about what it waits for."""
LASTING = 0.5
"""Part of a worker's silence after which other workers must have made progress to count as workers that continue."""
HUNG = 1
"""Exit code of the failure that represents a hang, since the worker has none."""
CAUSE_BYTES = 900
HINT_BYTES = 900
ERROR_BYTES = 512
FOUND = Metric("rdzv_hangs_found_total", "counter", "Hangs that the server has found.")
MOST_SOURCES = 16
"""Most sources by which one agent may suspect its workers at the same time."""


class Examined(Struct):
    """Examination of the workers of a hang: a sign. `summary` is None until it ends."""

    summary: StackSummary | None = None
    asked: list[tuple[str, int]] = []
    """Agents that are asked, each with the number of its query."""


class HangSigns(Struct):
    """Examinations of a run's workers."""

    examined: Examined | None = None
    """Examination of the hang that is to be judged; a restarted server begins it again."""
    examinations: int = 0
    """Number of examinations in the running round."""
    again_at: float = 0.0
    """Earliest time of the next one."""
    stacks_again_at: float = 0.0
    """Earliest time at which an operator may examine the workers again."""


class Hangs(Policy[HangsState, HangSigns]):
    name = "hangs"
    State = HangsState
    Signs = HangSigns
    counters: ClassVar[Mapping[Metric, EventKind]] = {FOUND: "hang_found"}

    @classmethod
    def node_remarks(cls, run: Run, agent_id: str) -> Mapping[str, str]:
        """Return the verdict for the node to blame or, until there is a verdict, the suspicion of the node's agent.

        If no rank is singled out, or if all of several nodes are suspected, no node differs from the others.
        """
        hang = cls.of(run).hang
        if hang is None or not hang.is_believed:
            return {}
        if hang.verdict:
            return {"hung": hang.verdict.sentence} if hang.verdict.agent_id == agent_id else {}
        suspicion = None if 1 < len(run.running) == len(hang.agent_ids) else hang.of_agent(agent_id)
        return {"hung": _may_hang(suspicion)} if suspicion else {}

    @classmethod
    def run_remark(cls, run: Run, now: float) -> str:
        """Return the sentences about a limit whose hangs are only reported, and about sources that some nodes lack."""
        return "; ".join(filter(None, (cls.withheld(run, now), *cls.of(run).unwatched)))

    @classmethod
    def finding(cls, run: Run, now: float) -> Finding | None:
        hang = cls.of(run).hang
        believed = hang and hang.is_believed and hang.first_believed(len(run.running))
        if not hang or not believed or run.is_unheard:
            return None
        run_id, withheld = quoted(run.run_id), cls.withheld(run, now) if hang.charge_at is not None else ""
        steps = (
            health.stacks(run_id),
            health.restart(run_id, admission.lacks(run)),
            *((words.RAISE_LIMIT,) if withheld else ()),
        )
        follows = withheld or (words.ONLY_REPORTED if run.settings.on_hang == "report" else "")
        suspicion = _may_hang(believed)
        found = hang.verdict.sentence if hang.verdict else printable(suspicion)
        return Finding("hung", words.hung(found, follows), min(hang.since, believed.silent_since), steps)

    @classmethod
    def withheld(cls, run: Run, now: float) -> str:
        """Return the sentence about a limit whose hangs are only reported; empty if none, or none lately."""
        return repeated_hangs.withheld(run, cls.of(run), now)

    def settle(self, now: float) -> None:
        """Schedule the judgement once a suspicion is believed, and forget the hang when no suspicion is left.

        While the run suspends judgement, nothing is judged: if no agent is heard, no agent could take its suspicion
        back. A hang that was withheld is judged once agents have had time to do so.
        """
        run, hang = self.run, self.state.hang
        if self.state.compared_round != run.round and run.stage is Stage.RUNNING:
            self._compare_sources(now)
        if hang is None:
            return
        hang.silence_counts = now >= self._silence_counts_at(hang)
        hang.untold_counts = run.training_round != run.round
        if hang.is_untold and not self.state.is_told_of_untold:
            self._tell_of_untold(hang, now)
        if run.suspends_judgement:
            hang.judge_at = None
            return
        if hang.charge_at is not None and hang.judge_at is None:
            hang.judge_at = hang.charge_at = max(hang.charge_at, now + SETTLE_S)
        if not hang.counts(len(run.running)):
            hang.withdraw()
        elif (hang.judge_at is None and not hang.is_reported) or self._is_overtaken(hang):
            hang.judge_at, latest = now + SETTLE_S, hang.believed(len(run.running))[-1]
            sentence = printable(_may_hang(latest))
            self.kernel.record_event("hang_suspected", sentence, now, node_id=latest.node_id)
        if not hang.suspicions:
            self.state.hang = None

    def _compare_sources(self, now: float) -> None:
        """Warn if some nodes of the round that begins look for hangs by a source, and others do not."""
        state, joins = self.state, [agent.join for agent in self.run.running.values()]
        known = [(join.node_id, join.watches) for join in joins if join.watches is not None]
        state.compared_round, before, state.unwatched = self.run.round, state.unwatched, ()
        for source, told in words.UNWATCHED.items():
            lack = [node_id for node_id, watches in known if source not in watches]
            if lack and len(lack) < len(known):
                state.unwatched += (printable(told(lack[0], len(lack) - 1)),)
        for sentence in state.unwatched:
            if sentence not in before:
                self.kernel.record_event("warning", sentence, now)

    def _tell_of_untold(self, hang: Hang, now: float) -> None:
        self.state.is_told_of_untold = True
        node_id = next(each.node_id for each in hang.suspicions.values() if each.is_untold)
        self.kernel.record_event("warning", printable(words.untold(node_id)), now, node_id=node_id)

    def workers_succeeded(self, agent_id: str) -> None:
        if self.state.hang is not None:
            self.state.hang.remove_agent(agent_id)

    def round_opened(self, cause: Cause, now: float) -> None:
        self.state.hang, self.signs.examinations, self.signs.again_at = None, 0, 0.0
        self.state.suspected.clear()
        self.state.rules_ended = False

    def run_ended(self, now: float) -> None:
        self.state.hang = None

    def attend(self, now: float) -> None:
        """Begin the examination of a hang that is believed, or end the examination of a hang that is over."""
        signs, hang = self.signs, self.state.hang
        if hang is None and signs.examined is None:
            return
        is_wanted = hang is not None and hang.judge_at is not None and now >= _examine_at(hang.judge_at)
        if is_wanted and signs.examined is None and now >= signs.again_at:
            assert hang
            examined = signs.examined = Examined()
            reason = clip(printable(_guilty(self.run, hang).reason), examination.REASON_BYTES)
            within_s, done = examination.EXAMINED_WITHIN_S, partial(_examined, examined)
            examined.asked = examination.begin(self.kernel, reason, within_s, done, now)
            if examined.summary is None:  # else there was no agent to ask, which costs nothing
                self._space_examinations(now)
        elif not is_wanted and signs.examined is not None:
            examined, signs.examined = signs.examined, None
            examination.end(self.kernel, examined.asked, words.HANG_IS_OVER, now)

    def deadline(self) -> float | None:
        """Return when a hang must be judged, or examined before that, or when silence counts.

        A running examination ends by itself.
        """
        hang, examined = self.state.hang, self.signs.examined
        if hang is None or hang.judge_at is None:
            if examined is not None:
                return IMMEDIATELY
            return self._silence_counts_at(hang) if hang and self._awaits_silence(hang) else None
        if examined is None:
            return max(_examine_at(hang.judge_at), self.signs.again_at)
        return hang.judge_at if examined.summary else None

    def due(self, now: float) -> HangFound | HangSuspected | None:
        """Return the hang as a fact once it is time to judge it, else None.

        Once the silence of all nodes counts, return the first node's suspicion again.
        """
        hang, at = self.state.hang, self.deadline()
        if hang is None or at is None or now < at:
            return None
        if hang.judge_at is None:
            return None if self.signs.examined else self._suspected_again(hang)
        summary = self.signs.examined.summary if self.signs.examined else None
        return None if summary is None else _judge(self.run, hang, summary, now)

    def _silence_counts_at(self, hang: Hang) -> float:
        """Return the time from which the silence of all nodes counts."""
        finished_at = next(reversed(self.run.succeeded_at.values()), -inf)
        return finished_at + hang.silence_s

    def _awaits_silence(self, hang: Hang) -> bool:
        """Return whether all nodes are silent, and only the time since a node has finished is too short."""
        if hang.silence_counts or self.run.suspends_judgement:
            return False
        return hang.is_silent(len(self.run.running))

    def _suspected_again(self, hang: Hang) -> HangSuspected:
        """Return the first suspicion of silence, of workers that have been silent since a node has finished."""
        each = next(each for each in hang.suspicions.values() if each.source == SILENCE)
        number = self.state.suspected.get(each.agent_id, 0)
        return HangSuspected(
            each.agent_id, self.run.round, SILENCE, each.reason, each.ranks, hang.silence_s, each.limit_s, number
        )

    def _is_overtaken(self, hang: Hang) -> bool:
        """Return whether a sure source has found a hang while a withheld one lasts."""
        if hang.charge_at is None or hang.judge_at != hang.charge_at:
            return False
        return _guilty(self.run, hang).limit_s is None

    def _space_examinations(self, now: float) -> None:
        signs = self.signs
        pause_s = EXAMINED_AGAIN_AFTER_S[min(signs.examinations, len(EXAMINED_AGAIN_AFTER_S) - 1)]
        signs.examinations, signs.again_at = signs.examinations + 1, now + pause_s

    # Suspicions.

    def _check(self, event: HangSuspected, now: float) -> HangSuspected | None:
        """Return the suspicion; None if it is not new. Raises `StaleRound`, `MalformedMessage` or `TooManyRequests`."""
        run, hang = self.run, self.state.hang
        agent = run.agents.get(event.agent_id)
        seat = run.seat_of(event.agent_id)
        if agent is None or seat is None or run.stage is not Stage.RUNNING or event.round != run.round:
            raise StaleRound(words.round_is_over(event.round, run.run_id))
        ranks = seat.ranks
        if foreign := [rank for rank in event.ranks if rank not in ranks]:
            raise MalformedMessage(failures.foreign_rank(foreign[0], agent.node_id, ranks[0], ranks[-1]))
        if event.ends_rules:
            return None if self.state.rules_ended else event
        if self._is_late(event):
            return None
        if self.state.rules_ended and event.ranks and event.is_of_rule:
            return None
        known = hang is not None and _key(event) in hang.suspicions
        if hang and not known and event.ranks and hang.number_of(event.agent_id) >= MOST_SOURCES:
            raise TooManyRequests(words.too_many_sources(agent.node_id, MOST_SOURCES))
        return event if known != bool(event.ranks) and agent.state is AgentState.RUNNING else None

    def _is_late(self, event: HangSuspected) -> bool:
        """Return whether it is a copy of a suspicion that the agent may have taken back since."""
        return 0 < event.number <= self.state.suspected.get(event.agent_id, 0)

    def _heard(self, event: HangSuspected, now: float) -> None:
        if not self._is_late(event):
            self.kernel.hear(event.agent_id, now)

    def _suspect(self, fact: HangSuspected, now: float) -> None:
        """Add a suspicion, or take it back; `settle` decides what follows."""
        run, key = self.run, _key(fact)
        self.state.suspected[fact.agent_id] = max(fact.number, self.state.suspected.get(fact.agent_id, 0))
        hang = self.state.hang = self.state.hang or Hang(since=now)
        if fact.ends_rules:
            self.state.rules_ended = True
            hang.remove_overdue_lines()
            return
        if not fact.ranks:
            hang.remove(key)
            return
        if fact.source == SILENCE:
            hang.silence_s = max(hang.silence_s, fact.limit_s or fact.silent_s)
        node_id = run.agents[fact.agent_id].node_id
        since = max(now - fact.silent_s, run.started_at)
        is_untold = fact.is_untold and fact.source != SILENCE
        hang.add(key, Suspicion(
            fact.agent_id, node_id, fact.source, fact.reason, fact.ranks, now, since, fact.limit_s, is_untold
        ))  # fmt: skip

    # The verdict.

    def _found(self, fact: HangFound, now: float) -> None:
        """Emit the event of the hang, and do what the run's setting `on_hang` says."""
        run, failure, hang = self.run, fact.failure, self.state.hang
        assert hang
        verdict, withheld = _verdict(run, now), ""
        if is_withheld := repeated_hangs.is_withheld(run, self.state, fact, verdict, now):
            repeated_hangs.withhold(run, self.state, hang, fact, now)
            withheld = f"; {self.withheld(run, now)}"
        hang.judge_at, hang.is_reported = hang.charge_at if is_withheld else None, True
        seat = run.seat_of(fact.agent_id)
        is_reported = run.settings.on_hang == "report" or is_withheld
        sentence = _reported(failure) if is_reported else failure.sentence
        self.kernel.record_event(
            "hang_found", f"{sentence}{withheld}", now, failure=final_report.details(failure),
            node_id=failure.node_id if failure.singled_out else None,
            group_rank=seat.group_rank if seat and failure.singled_out else None,
        )  # fmt: skip
        if is_reported:
            hang.verdict = _to_show(fact)
            return
        self.kernel.note_root(FailureRecord(run.round, fact.agent_id, now, failure))
        if verdict:
            self.kernel.fail(failure, verdict, now)
        else:
            if warning := repeated_hangs.note_restart(run, self.state, fact, now):
                self.kernel.record_event("warning", warning, now)
            self.kernel.open_round(Cause.HANG, failure.sentence, now)

    # Operators' queries.

    def _check_stacks(self, event: StacksAsked, now: float) -> StacksAsked:
        return examination.check_stacks(self.run, event, self.signs.stacks_again_at, now)

    def _begin_stacks(self, event: StacksAsked, now: float) -> None:
        self.signs.stacks_again_at = now + examination.OPERATORS_PAUSE_S
        examination.begin_for_operator(self.kernel, event, now, is_suspected=self.state.hang is not None)

    def _stacks_asked(self, fact: StacksAsked, now: float) -> None:
        examination.asked_for(self.kernel, fact, now)

    rules: ClassVar[Rules] = {
        HangSuspected: Rule(_check, _suspect, _heard, may_end_round=False),
        HangFound: Rule(apply=_found),
        StacksAsked: Rule(_check_stacks, _stacks_asked, _begin_stacks, may_end_round=False),
    }


def _examine_at(judge_at: float) -> float:
    """Return the earliest time to examine the workers for a judgement: at once, unless the hang was withheld."""
    return judge_at - examination.EXAMINED_WITHIN_S


def _examined(examined: Examined, kernel: Kernel, summary: StackSummary, now: float) -> None:
    examined.summary = summary


def _judge(run: Run, hang: Hang, summary: StackSummary, now: float) -> HangFound:
    guilty = _guilty(run, hang)
    seat, rank = run.seat_of(guilty.agent_id), guilty.ranks[0]
    culprits, is_sure = [culprit.rank for culprit in summary.culprits], guilty.source.startswith(_SURE)
    is_one_of_them = rank in culprits and not summary.stack  # else the first one's stack is more useful to people
    if culprits and not is_one_of_them and not is_sure:
        rank = culprits[0]
        seat = run.seat_of_rank(rank) or seat
    failure = _failure(run, guilty, seat, rank, summary, now)
    is_clear = is_sure or bool(culprits) or _is_alone(run, hang, guilty)
    failure = replace(failure, singled_out=is_clear and not guilty.is_of_preparation)
    limit_s = None if summary.proves_hang else guilty.limit_s
    return HangFound(seat.agent_id if seat else guilty.agent_id, failure, guilty.source, limit_s)


def _verdict(run: Run, now: float) -> Verdict | None:
    """Return the verdict that a hang ends the run; None if a restart follows."""
    if run.settings.on_hang == "fail":
        return Verdict(failures.FATAL_HANG)
    if given_up := restart_budget.without_progress(run, now):
        return given_up
    most, used = run.settings.max_hang_restarts, run.restarts.get(Cause.HANG, 0)
    if most is not None:
        return None if used < most else Verdict(failures.no_hang_restarts_left(used, most))
    return None if restart_budget.left(run, now) > 0 else restart_budget.spent_verdict(run)


def _reported(failure: Failure) -> str:
    return words.reported(failure.node_id, failure.rank, failure.cause, failure.error, singled_out=failure.singled_out)


def _to_show(fact: HangFound) -> HangVerdict:
    """Return what people read about the hang as long as it lasts."""
    failure = fact.failure
    sentence = _reported(failure)
    if not failure.singled_out:
        return HangVerdict(words.of_unknown_rank(sentence))
    return HangVerdict(sentence, fact.agent_id, failure.node_id, failure.rank)


def _is_alone(run: Run, hang: Hang, guilty: Suspicion) -> bool:
    """Return whether the suspicions suffice to single out the rank: only it is suspected and all others continue, or
    its step is the lowest.
    """
    suspected = {rank for each in hang.believed(len(run.running)) for rank in each.ranks}
    if len(suspected) == 1 and _others_continue(run, guilty):
        return True
    return len(guilty.ranks) == 1 and _is_behind(run, guilty)


def _others_continue(run: Run, guilty: Suspicion) -> bool:
    """Return whether the workers of all other nodes are known to have made progress well after the guilty ones stood
    still.

    In lockstep, all nodes stand still together. Then the only one that suspects its workers has a shorter limit.
    """
    since = guilty.silent_since + LASTING * (guilty.at - guilty.silent_since)
    moved_at = {other: sign.at - sign.progress.age_s for other in run.running if (sign := run.progress.get(other))}
    return all(moved_at.get(other, -inf) > since for other in run.running if other != guilty.agent_id)


def _is_behind(run: Run, guilty: Suspicion) -> bool:
    """Return whether these workers are known to be at a lower step than those of all other nodes.

    A step that was reported before they stood still shows nothing: they may have made steps since.
    """
    signs = {other: sign for other in run.running if (sign := run.progress.get(other))}
    own = signs.pop(guilty.agent_id, None)
    if own is None or own.progress.lowest_step is None or own.at < guilty.silent_since:
        return False
    others = [step for sign in signs.values() if (step := sign.progress.lowest_step) is not None]
    return len(others) == len(run.running) - 1 and all(own.progress.lowest_step < step for step in others)


def _may_hang(suspicion: Suspicion) -> str:
    if suspicion.is_of_preparation:
        return words.may_hang_before_start(suspicion.reason)
    return words.may_hang(suspicion.ranks, suspicion.node_id, suspicion.reason)


def _guilty(run: Run, hang: Hang) -> Suspicion:
    """Return the suspicion to blame for the hang, judging only by the suspicions."""
    return min(hang.believed(len(run.running)), key=lambda each: _order(run, each))


def _key(suspected: HangSuspected) -> str:
    return f"{suspected.source}\n{suspected.agent_id}"


def _order(run: Run, suspicion: Suspicion) -> tuple[bool, int, float, int]:
    """Return the sort key of a suspicion: first whether its source is sure, then the lowest step, then the time."""
    sign = run.progress.get(suspicion.agent_id)
    step = sign.progress.lowest_step if sign else None
    return not suspicion.source.startswith(_SURE), -1 if step is None else step, suspicion.at, suspicion.ranks[0]


def _failure(run: Run, guilty: Suspicion, seat: Seat | None, rank: int, summary: StackSummary, now: float) -> Failure:
    reason = clip(printable(guilty.reason), examination.REASON_BYTES)
    evidence = printable(summary.sentence) if summary.has_stacks else ""
    is_first = bool(summary.culprits) and summary.culprits[0].rank == rank
    return Failure(
        node_id=seat.node_id if seat else guilty.node_id,
        rank=rank,
        local_rank=rank - seat.first_rank if seat else 0,
        pid=0,
        exit_code=HUNG,
        cause=clip(words.hang(reason, evidence), CAUSE_BYTES),
        error=clip(summary.error, ERROR_BYTES) if is_first else "",
        traceback=(summary.traceback or summary.stack) if is_first else (),
        hint=clip(_what_to_do(run, guilty, summary), HINT_BYTES),
        failed_at=run.wall_clock(now),
    )


def _what_to_do(run: Run, guilty: Suspicion, summary: StackSummary) -> str:
    """Return advice for people: where to look and, if no worker has ever reported progress, what the script lacks."""
    is_untold = guilty.source == PROGRESS and run.highest_step is None and not run.progress
    return "; ".join(filter(None, (_where_to_look(summary), words.NEVER_TOLD if is_untold else "")))


def _where_to_look(summary: StackSummary) -> str:
    """Return advice for people: the folder with the evidence, and why there is no folder or no Python stack."""
    where = (words.evidence_in(summary.folder, summary.folder_node),) if summary.folder else ()
    missing = () if summary.folder and summary.stack else summary.problems[:1]
    return "; ".join((*where, *missing))
