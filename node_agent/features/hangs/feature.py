"""Feature: workers are watched for hangs, round after round."""

from collections.abc import Sequence

from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.messages import Assignment, Reply

from node_agent.features import hangs
from node_agent.features.hangs.hang_watch import HangWatch
from node_agent.kernel.core.hang import HangOptions
from node_agent.kernel.feature import Feature, Kernel
from node_agent.kernel.output.sinks import Sink


class Hangs(Feature):
    """Watch over the workers."""

    def __init__(self, kernel: Kernel, options: hangs.Hangs) -> None:
        super().__init__(kernel)
        sources = HangOptions(
            progress=options.progress_timeout,
            silence_s=options.silence_timeout,
            log_rules=options.log_rule,
            uninterruptible_s=options.uninterruptible_s,
        )
        environment, warn = kernel.config.environment, kernel.console.log
        self._watch = HangWatch(sources, kernel.workers, kernel.progress_readings, kernel.suspect, environment, warn)

    def sinks(self, local_rank: int, *, is_shown: bool) -> list[Sink]:
        return [self._watch.sink(local_rank)]

    def started(self, assignment: Assignment, pids: Sequence[int]) -> None:
        if pids:
            self._watch.start(assignment.ranks, assignment.world_size, self.kernel.machine.answer_gap_s)

    def answered(self, answer: Reply | ProtocolError) -> None:
        if isinstance(answer, Reply):
            self._watch.server_answered()

    def stopping(self) -> None:
        self._watch.stop()

    async def close(self) -> None:
        self._watch.close()
