"""Feature: watches the workers of each round for hangs, with one timer and no polling.

The agent reads most output of the workers for the console or for logs, and this feature uses what the agent reads. If a
worker writes a stream directly into a file, the agent reads that file, too. A separate process searches the lines for
the user's patterns.
"""

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from typing import Any

from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.hang_sources import PREPARATION, SILENCE
from rdzv_protocol.messages import Assignment, Reply

from node_agent.features import hangs
from node_agent.features.hangs import words
from node_agent.features.hangs.detector import HangDetector, preparation_limit
from node_agent.features.hangs.log_rules import Line, LineMatcher
from node_agent.features.hangs.progress_source import Rhythm, Rhythms
from node_agent.features.hangs.rule_source import LineMatch
from node_agent.features.hangs.suspicion import Signs, Suspicion
from node_agent.kernel.core.effects import Level, Log
from node_agent.kernel.core.events import Suspected
from node_agent.kernel.feature import Feature, Kernel
from node_agent.kernel.output.sinks import Sink
from node_agent.kernel.processes.process import state

LONGEST_SOURCE = 128
LONGEST_LINE = 1 << 16
LOOKED_AT = 4_096
"""Characters of a line that are searched for patterns."""


class Hangs(Feature):
    """Runs a detector for each round."""

    def __init__(self, kernel: Kernel, options: hangs.Hangs) -> None:
        super().__init__(kernel)
        self._options = options
        self._rhythms = Rhythms()
        self._rhythm = Rhythm()
        self._detector: HangDetector | None = None
        self._round = 0
        self._matcher: LineMatcher | None = None
        self._rules_given_up: set[int] = set()
        self._ranks = range(0)
        self._has_told_unwatched = False
        if rules := options.log_rule:
            environment, warn = kernel.config.environment, kernel.console.log
            self._matcher = LineMatcher(rules, environment, self._matched, self._give_up, self._lines_lost, warn)
        self._last_output_at: dict[int, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def sinks(self, local_rank: int, *, is_shown: bool) -> list[Sink]:
        return [_WatchedLines(self, local_rank, splits=bool(self._options.log_rule))]

    def starting(self, assignment: Assignment) -> None:
        """Watch the preparations, which may hang too."""
        self._rhythm = self._rhythms.next_round(assignment.world_size)
        given, ranks = self._options, assignment.ranks
        limit = preparation_limit(given.progress_timeout, given.silence_timeout, given.log_rule, ranks)
        self._watch(assignment, preparation=limit, node_id=self.kernel.config.join.node_id)

    def started(self, assignment: Assignment, pids: Mapping[int, int]) -> None:
        for over in self._detector.take_back() if self._detector else ():
            suspect(self.kernel, over)
        self._forget()
        if pids:
            options = self._options
            self._watch(
                assignment,
                progress=options.progress_timeout,
                silence_s=options.silence_timeout,
                uninterruptible_s=options.uninterruptible_s,
                log_rules=options.log_rule,
            )

    def _watch(self, assignment: Assignment, **sources: Any) -> None:
        self._forget()
        self._round += 1
        self._ranks = assignment.ranks
        self._detector = HangDetector(
            self._ranks,
            self._rhythm,
            self.kernel.machine.answer_gap_s,
            self._loop.time(),
            **sources,
        )
        self._detector.give_up_rules(self._rules_given_up)
        self._arm()

    def answered(self, answer: Reply | ProtocolError) -> None:
        if isinstance(answer, Reply) and self._detector:
            self._detector.server_answered(self._loop.time())
            self._arm()

    def noticed(self) -> None:
        self._stop()

    def stopping(self) -> None:
        self._stop()

    async def close(self) -> None:
        if self._matcher:
            self._matcher.close()

    def wrote(self, local_rank: int, lines: list[bytes]) -> None:
        """Take output of a worker."""
        if self._detector is None:
            return
        now = self._loop.time()
        self._last_output_at[local_rank] = now
        if self._matcher and lines:
            texts = (line.decode(errors="replace")[:LOOKED_AT] for line in lines)
            self._matcher.put([Line(self._round, local_rank, text, now) for text in texts])

    def _stop(self) -> None:
        """End the watch of this round: its workers have a notice of its end, or are about to be stopped."""
        if self._detector:
            self._detector.cut_off(self._signs(), self._loop.time())
        self._forget()

    def _forget(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self._detector = None
        self._last_output_at.clear()

    def _matched(self, line: Line, match: LineMatch) -> None:
        if self._detector and line.round == self._round:
            for suspicion in self._detector.line(line.local_rank, match, line.at):
                suspect(self.kernel, suspicion)

    def _give_up(self, rules: set[int]) -> None:
        self._rules_given_up |= rules
        if self._detector:
            for suspicion in self._detector.give_up_rules(rules):
                suspect(self.kernel, suspicion)

    def _lines_lost(self) -> None:
        if self._detector:
            self._detector.lines_lost(self._loop.time())

    def _arm(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._detector and (at := self._detector.next_deadline()) is not None:
            self._timer = self._loop.call_at(at, self._look)

    def _look(self) -> None:
        detector = self._detector
        if detector is None:
            return
        for suspicion in detector.look(self._signs(), self._loop.time()):
            suspect(self.kernel, suspicion)
        if not self._has_told_unwatched and (unwatched := detector.unwatched):
            self._has_told_unwatched = True
            self.kernel.console.log(words.unwatched([self._ranks[local_rank] for local_rank in unwatched]))
        if self._detector is detector:
            self._arm()

    def _signs(self) -> Signs:
        pids, started = self.kernel.workers(), self.kernel.started
        readings = started.progress.read(self._loop.time()) if started else {}
        finished_at = started.group.finished_at if started else {}
        return Signs(
            readings={rank: reading for rank, reading in readings.items() if rank in pids},
            last_output_at={rank: self._last_output_at.get(rank, 0.0) for rank in pids},
            last_sign_at=max((*self._last_output_at.values(), *finished_at.values()), default=0.0),
            lines_seen_until=self._matcher.seen_until if self._matcher else inf,
            uninterruptible=frozenset(
                (rank, thread)
                for rank, pid in pids.items()
                if self._options.uninterruptible_s
                for thread in threads_asleep(pid)
            ),
            preparation=self.kernel.preparation,
            held_since=self.kernel.console.held_since,
        )


def suspect(kernel: Kernel, found: Suspicion) -> None:
    """Report a source's finding about the running workers to people and to the server."""
    if (assignment := kernel.assignment) is None:
        return
    source, ranks = found.source[:LONGEST_SOURCE], tuple(assignment.first_rank + rank for rank in found.local_ranks)
    if found.ends_rules:
        text, level = words.work_is_done(found.reason), Level.ROUTINE
    elif ranks and source.startswith(PREPARATION):
        text, level = words.may_hang_before_start(found.reason), Level.WARNING
    elif source == SILENCE and assignment.group_world_size > 1:
        text, level = words.node_is_silent(found.reason) if ranks else words.NODE_WRITES_AGAIN, Level.ROUTINE
    elif found.is_untold and assignment.group_world_size > 1:
        text, level = words.node_reports_nothing(found.reason), Level.ROUTINE
    else:
        text, level = words.may_hang(ranks, found.reason) if ranks else words.no_longer_hung(source), Level.WARNING
    log = Log(text, level, "hang_suspected")
    also = found.silent_s, found.limit_s, found.ends_rules, found.is_untold
    kernel.suspect(Suspected(assignment.round, source, found.reason, ranks, log, *also))


def threads_asleep(pid: int) -> list[int]:
    """Return the process's threads in uninterruptible sleep: the main thread, or others if the main thread has ended.

    Other threads do not count while the main thread runs, as under torchrun.
    """
    if (letter := state(pid)) != "Z":
        return [pid] if letter == "D" else []
    with suppress(OSError):  # it has just been reaped, or no descriptor is left
        return [int(thread) for thread in os.listdir(f"/proc/{pid}/task") if state(f"{pid}/task/{thread}") == "D"]
    return []


class _WatchedLines(Sink):
    def __init__(self, watch: Hangs, local_rank: int, *, splits: bool) -> None:
        self._watch = watch
        self._local_rank = local_rank
        self._splits = splits
        self._held = b""

    def take(self, chunk: bytes) -> None:
        lines: list[bytes] = []
        if self._splits:
            *lines, self._held = (self._held + chunk).replace(b"\r", b"\n").split(b"\n")
            if len(self._held) > LONGEST_LINE:
                lines, self._held = [*lines, self._held], b""
        self._watch.wrote(self._local_rank, lines)
