"""Notices to the workers of one round: a file that they read, and one for each of them by which it acknowledges.

A script reads with `node_agent.notice()`, or looks for the file `NODE_AGENT_NOTICE_FILE`. It says that it does by
making `NODE_AGENT_NOTICE_ACK`, and acknowledges by writing anything into it. Who has not made that file does not
listen, and nobody waits for it; nor for one that has ended. The files are looked at while a notice is open, and never
else.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial

from rdzv_protocol.queries import Notice, Noticed

from node_agent.features.notices import words
from node_agent.in_worker import NOTICE_ACK, NOTICE_FILE
from node_agent.kernel.output.room import in_words
from node_agent.kernel.output.threads import in_thread, leave_to_thread
from node_agent.kernel.workers.group import READ_WITHIN_S
from node_agent.kernel.workers.temp_dir import TempDir

LOOK_S = 0.02
"""Time between two looks at whether all have acknowledged."""
MARGIN_S = 0.2
"""Time before the deadline at which the answer goes, whoever has not acknowledged."""


class NoticeBoard:
    """Board of the workers of one round. `signal_name`: what they get besides; they all listen then."""

    def __init__(self, temp_dir: TempDir, round_: int, workers: int, signal_name: str | None = None) -> None:
        """`temp_dir` has been made."""
        self._is_given = False
        self._signal_name = signal_name
        self._path = temp_dir.path(f"notice-{round_}.json")
        self._acks = [temp_dir.path(f"notice-{round_}-{local_rank}.ack") for local_rank in range(workers)]

    def environment(self, local_rank: int) -> Mapping[str, str]:
        return {NOTICE_FILE: self._path, NOTICE_ACK: self._acks[local_rank]}

    @property
    def is_given(self) -> bool:
        """Whether the workers have been told."""
        return self._is_given

    async def is_acknowledged(self) -> bool:
        """Whether a worker has acknowledged a notice; False if the disk does not tell in time."""
        try:
            return self._is_given and (await self._look(READ_WITHIN_S)).acknowledged > 0
        except OSError:
            return False

    async def _look(self, within_s: float, alive: Collection[int] | None = None) -> Noticed:
        """Number of workers that listen, and of those among them that have acknowledged, or have ended.

        `alive`: local ranks of the workers that have not exited; None: of all. Raises `OSError` if the disk does not
        answer.
        """
        sizes = await in_thread(lambda: [_size(path) for path in self._acks], within_s)
        listening = [rank for rank, size in enumerate(sizes) if self._signal_name or size is not None]
        saved = [rank for rank in listening if sizes[rank] or not (alive is None or rank in alive)]
        return Noticed(listening=len(listening), acknowledged=len(saved))

    async def give(
        self, notice: Notice, alive: Callable[[], Mapping[int, int]], warn: Callable[[str], None]
    ) -> Noticed:  # fmt: skip
        """Tell the workers, and wait until all that listen have saved or ended, or until it is nearly too late.

        `alive`: gives the pids of the workers that have not exited, by local rank.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + max(0.0, notice.remaining_s - MARGIN_S)
        try:
            await in_thread(partial(self._write, notice), until - loop.time())
        except OSError as error:
            warn(words.not_given(in_words(error)))
            return Noticed(listening=0, acknowledged=0)
        self._is_given = True
        for pid in alive().values() if self._signal_name else ():
            with suppress(ProcessLookupError):  # the worker alone: what it has started may not know the signal
                os.kill(pid, signal.Signals[self._signal_name or ""])
        seen = Noticed(listening=0, acknowledged=0)
        while True:
            with suppress(OSError):  # the disk hangs: what has been seen before counts
                seen = await self._look(max(LOOK_S, until - loop.time()), alive())
            if seen.acknowledged >= seen.listening or loop.time() >= until:
                return seen
            await asyncio.sleep(LOOK_S)

    def close(self) -> None:
        """Remove the files, at some time."""
        for path in (self._path, *self._acks):
            leave_to_thread(partial(os.unlink, path))

    def _write(self, notice: Notice) -> None:
        """Replace the file in one go: whoever reads it reads a whole one."""
        import json

        now = time.time()
        told = {
            "source": notice.source,
            "node_id": notice.node_id,
            "reason": notice.reason,
            "round": notice.round,
            "deadline": now + notice.remaining_s,
            "remaining_s": notice.remaining_s,
            "given_at": now,
        }
        with open(f"{self._path}.new", "w") as file:
            json.dump(told, file)
            file.write("\n")
        os.rename(f"{self._path}.new", self._path)


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None
