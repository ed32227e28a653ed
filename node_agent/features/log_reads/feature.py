"""Feature: answers the server's queries for the end of a worker's log file."""

from rdzv_protocol.queries import LogTail, Query, Refused, TailLog

from node_agent.features import log_reads
from node_agent.features.log_reads import words
from node_agent.features.log_reads.log_tail import LogReader
from node_agent.kernel.feature import Feature, Kernel


class LogReads(Feature):
    """Answers `TailLog` queries."""

    def __init__(self, kernel: Kernel, options: log_reads.LogReads) -> None:
        super().__init__(kernel)
        self._is_allowed = options.allow_log_reads
        self._reader = LogReader(kernel.config.join.node_id)

    async def answer(self, query: Query) -> LogTail | Refused:
        assert isinstance(query, TailLog)
        node_id = self.kernel.config.join.node_id
        if not self._is_allowed:
            return Refused(reason=words.not_allowed(node_id))
        if (started := self.kernel.started) is None:
            return Refused(reason=words.no_worker_yet(node_id))
        return await self._reader.tail(query, started)
