"""Feature: watches the workers of each round for hangs."""

from collections.abc import Mapping
from functools import partial

from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.messages import Assignment, Reply

from node_agent.features import hangs
from node_agent.features.hangs import words
from node_agent.features.hangs.detector import HangOptions, Suspicion
from node_agent.features.hangs.hang_watch import HangWatch
from node_agent.kernel.core.effects import Level, Log
from node_agent.kernel.core.events import Suspected
from node_agent.kernel.feature import Feature, Kernel
from node_agent.kernel.output.sinks import Sink

LONGEST_SOURCE = 128


class Hangs(Feature):
    """Watches the workers."""

    def __init__(self, kernel: Kernel, options: hangs.Hangs) -> None:
        super().__init__(kernel)
        sources = HangOptions(
            progress=options.progress_timeout,
            silence_s=options.silence_timeout,
            log_rules=options.log_rule,
            uninterruptible_s=options.uninterruptible_s,
        )
        report, environment, warn = partial(suspect, kernel), kernel.config.environment, kernel.console.log
        self._watch = HangWatch(
            sources, kernel.workers, kernel.progress_readings, self._finished_at, report, environment, warn
        )

    def sinks(self, local_rank: int, *, is_shown: bool) -> list[Sink]:
        return [self._watch.sink(local_rank)]

    def started(self, assignment: Assignment, pids: Mapping[int, int]) -> None:
        if pids:
            self._watch.start(assignment.ranks, assignment.world_size, self.kernel.machine.answer_gap_s)

    def answered(self, answer: Reply | ProtocolError) -> None:
        if isinstance(answer, Reply):
            self._watch.server_answered()

    def noticed(self) -> None:
        self._watch.stop()

    def stopping(self) -> None:
        self._watch.stop()

    async def close(self) -> None:
        self._watch.close()

    def _finished_at(self) -> Mapping[int, float]:
        """Return the times at which workers of this round exited 0, by local rank."""
        return self.kernel.started.group.finished_at if self.kernel.started else {}


def suspect(kernel: Kernel, found: Suspicion) -> None:
    """Report a source's finding about the running workers to people and to the server."""
    if (assignment := kernel.assignment) is None:
        return
    source, ranks = found.source[:LONGEST_SOURCE], tuple(assignment.first_rank + rank for rank in found.local_ranks)
    if found.ends_rules:
        text, level = words.work_is_done(found.reason), Level.ROUTINE
    elif source == "silence" and assignment.group_world_size > 1:
        text, level = words.node_is_silent(found.reason) if ranks else words.NODE_WRITES_AGAIN, Level.ROUTINE
    elif found.is_untold and assignment.group_world_size > 1:
        text, level = words.node_reports_nothing(found.reason), Level.ROUTINE
    else:
        text, level = words.may_hang(ranks, found.reason) if ranks else words.no_longer_hung(source), Level.WARNING
    log = Log(text, level, "hang_suspected")
    also = found.silent_s, found.limit_s, found.ends_rules, found.is_untold
    kernel.suspect(Suspected(assignment.round, source, found.reason, ranks, log, *also))
