"""Feature: a notice board for the workers of each round, and answers to the server's notices."""

import asyncio
from collections.abc import Awaitable, Mapping

from msgspec.structs import replace
from rdzv_protocol.messages import Assignment, Failure
from rdzv_protocol.queries import Notice, Noticed, Query

from node_agent.features import notices
from node_agent.features.notices import words
from node_agent.features.notices.notice_board import NoticeBoard
from node_agent.kernel.core.effects import Level
from node_agent.kernel.feature import Feature, Kernel


class Notices(Feature):
    """Notice board for each round."""

    def __init__(self, kernel: Kernel, options: notices.Notices) -> None:
        super().__init__(kernel)
        self._options = options
        self.leave_notice_s = options.notice_s
        self._board: NoticeBoard | None = None

    def starting(self, assignment: Assignment) -> None:
        self._close_board()

    async def preparing(self, assignment: Assignment) -> None:
        temp_dir = self.kernel.temp_dir
        if temp_dir.is_made:
            workers, signal_name = assignment.local_world_size, self._options.notice_signal
            self._board = NoticeBoard(temp_dir, assignment.round, workers, signal_name)
        else:
            self.kernel.console.log(words.no_folder(temp_dir.folder), Level.WARNING)

    def variables(self, assignment: Assignment, local_rank: int) -> Mapping[str, str]:
        return self._board.environment(local_rank) if self._board else {}

    def stopping(self) -> None:
        if self._board:
            self._board.stop_signalling()

    def interruption(self) -> Awaitable[bool] | None:
        return self._board.is_acknowledged() if self._board and self._board.is_given else None

    async def judged(self, failure: Failure) -> Failure:
        """Return the failure. If its worker had acknowledged a notice, the failure follows from that.

        Then the server ends the round as the notice would, unless another failure is its cause.
        """
        if failure.blame == "node" or self._board is None or not await self._board.has_saved(failure.local_rank):
            return failure
        return replace(failure, consequence=True)

    async def answer(self, query: Query) -> Noticed:
        """Tell the workers that the round is about to end, and wait until they have saved."""
        assert isinstance(query, Notice)
        started, board = self.kernel.started, self._board
        if not started or not board or started.assignment.round != query.round:
            return Noticed(listening=0, acknowledged=0)
        loop, log = asyncio.get_running_loop(), self.kernel.console.log
        told_at = loop.time()
        self.kernel.noticed()
        answer = await board.give(query, lambda: started.group.by_local_rank, log)
        if answer.listening:
            message = words.saved(query.reason, answer.acknowledged, answer.listening, loop.time() - told_at)
            log(message, Level.NOTICE, "noticed")
        elif started.group.by_local_rank:
            log(words.none_listens(query.reason), Level.NOTICE, "noticed")
        return answer

    async def close(self) -> None:
        self._close_board()

    def _close_board(self) -> None:
        if self._board:
            self._board.close()
            self._board = None
