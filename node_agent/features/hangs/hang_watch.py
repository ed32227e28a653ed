"""Watches a node's workers: passes observations to the hang detectors. It uses one timer and no polling.

It does nothing unless a source is enabled. It takes output lines where the agent reads them anyway. A stream that goes
only to a file is read for this purpose, like a stream on the console. A separate process searches the lines for the
user's patterns.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf

from node_agent.features.hangs import words
from node_agent.features.hangs.detector import HangDetector, HangOptions, LineMatch, Rhythms, Signs, Suspicion
from node_agent.features.hangs.log_rules import Line, LineMatcher
from node_agent.kernel.core.progress import Reading
from node_agent.kernel.output.sinks import Sink
from node_agent.kernel.processes.process import state

LONGEST_LINE = 1 << 16
LOOKED_AT = 4_096
"""Characters of a line that are searched for patterns."""


class HangWatch:
    """Runs a detector for each round.

    `pids`: the running workers, by local rank. `readings`: their progress. `finished_at`: the times at which workers of
    the round exited 0, by local rank and by the event loop's clock.
    """

    def __init__(
        self,
        options: HangOptions,
        pids: Callable[[], Mapping[int, int]],
        readings: Callable[[], Mapping[int, Reading]],
        finished_at: Callable[[], Mapping[int, float]],
        suspect: Callable[[Suspicion], None],
        environment: Mapping[str, str],
        warn: Callable[[str], None],
    ) -> None:
        self._options = options
        self._pids = pids
        self._readings = readings
        self._finished_at = finished_at
        self._suspect = suspect
        self._rhythms = Rhythms()
        self._detector: HangDetector | None = None
        self._round = 0
        self._matcher: LineMatcher | None = None
        self._rules_given_up: set[int] = set()
        self._ranks = range(0)
        self._has_told_unwatched = False
        self._warn = warn
        if rules := options.log_rules:
            self._matcher = LineMatcher(rules, environment, self._matched, self._give_up, self._lines_lost, warn)
        self._last_output_at: dict[int, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def start(self, ranks: range, world_size: int, gap_s: float) -> None:
        """Begin to watch the workers with these ranks, which have been started."""
        self._forget()
        rhythm = self._rhythms.next_round(world_size)
        self._round += 1
        self._ranks = ranks
        self._detector = HangDetector(self._options, ranks, rhythm, gap_s, self._loop.time())
        self._detector.give_up_rules(self._rules_given_up)
        self._arm()

    def stop(self) -> None:
        """End the watch of this round: its workers have a notice of its end, or are about to be stopped."""
        if self._detector:
            self._detector.cut_off(self._signs(), self._loop.time())
        self._forget()

    def close(self) -> None:
        """End the process that searches for patterns."""
        if self._matcher:
            self._matcher.close()

    def _forget(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self._detector = None
        self._last_output_at.clear()

    def server_answered(self) -> None:
        """Record that the server has answered a poll."""
        if self._detector:
            self._detector.server_answered(self._loop.time())
            self._arm()

    def sink(self, local_rank: int) -> Sink:
        """Return a sink for what a worker writes to one of its streams."""
        return _WatchedLines(self, local_rank, splits=bool(self._options.log_rules))

    def wrote(self, local_rank: int, lines: list[bytes]) -> None:
        """Take output of a worker."""
        if self._detector is None:
            return
        now = self._loop.time()
        self._last_output_at[local_rank] = now
        if self._matcher and lines:
            texts = (line.decode(errors="replace")[:LOOKED_AT] for line in lines)
            self._matcher.put([Line(self._round, local_rank, text, now) for text in texts])

    def _matched(self, line: Line, match: LineMatch) -> None:
        if self._detector and line.round == self._round:
            for suspicion in self._detector.line(line.local_rank, match, line.at):
                self._suspect(suspicion)

    def _give_up(self, rules: set[int]) -> None:
        self._rules_given_up |= rules
        if self._detector:
            for suspicion in self._detector.give_up_rules(rules):
                self._suspect(suspicion)

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
            self._suspect(suspicion)
        if not self._has_told_unwatched and (unwatched := detector.unwatched):
            self._has_told_unwatched = True
            self._warn(words.unwatched([self._ranks[local_rank] for local_rank in unwatched]))
        if self._detector is detector:
            self._arm()

    def _signs(self) -> Signs:
        pids = self._pids()
        return Signs(
            readings={rank: reading for rank, reading in self._readings().items() if rank in pids},
            last_output_at={rank: self._last_output_at.get(rank, 0.0) for rank in pids},
            last_sign_at=max((*self._last_output_at.values(), *self._finished_at().values()), default=0.0),
            lines_seen_until=self._matcher.seen_until if self._matcher else inf,
            uninterruptible=frozenset(
                (rank, thread)
                for rank, pid in pids.items()
                if self._options.uninterruptible_s
                for thread in threads_asleep(pid)
            ),
        )


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
    def __init__(self, watch: HangWatch, local_rank: int, *, splits: bool) -> None:
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
