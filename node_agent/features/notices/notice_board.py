"""Notices to the workers of one round: a file that they read, and one for each worker to acknowledge it.

A script calls `node_agent.notice()`, or checks for the file `NODE_AGENT_NOTICE_FILE`. It makes `NODE_AGENT_NOTICE_ACK`
to show that it listens, and writes anything into that file to acknowledge. The agent does not wait for a worker that
has not made the file, or that has ended. The agent reads these files only while a notice is open.
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
from node_agent.in_worker import NOTICE_ACK, NOTICE_FILE, clock
from node_agent.kernel.output.disk_space import in_words
from node_agent.kernel.processes.signalling import handlers
from node_agent.kernel.processes.temp_dir import TempDir
from node_agent.kernel.tasks import spawn
from node_agent.kernel.threads import in_thread, leave_to_thread
from node_agent.kernel.workers.group import READ_WITHIN_S

CHECK_INTERVAL_S = 0.02
"""Seconds between two checks whether all have acknowledged."""
HANDLER_INTERVAL_S = 0.2
"""Seconds between two checks whether a worker that did not handle the signal does so now."""
MARGIN_S = 0.2
"""Seconds before the deadline at which the answer is sent, even if workers have not acknowledged."""


class NoticeBoard:
    """Notice board for the workers of one round. `signal_name`: a signal for workers that handle it. They then count as
    listening. A worker that installs its handler later gets the signal then, even after the notice was answered.
    """

    def __init__(self, temp_dir: TempDir, round_: int, workers: int, signal_name: str | None = None) -> None:
        """`temp_dir`: must have been made."""
        self._is_given = False
        self._saved: frozenset[int] = frozenset()
        """Local ranks of the workers that have acknowledged a notice, as of the last look."""
        self._signum = signal.Signals[signal_name] if signal_name else None
        self._signalled: set[int] = set()
        """Local ranks of workers that have got the signal."""
        self._signalling: set[asyncio.Task[None]] = set()
        """Task that signals the other workers as soon as they handle the signal, while there is one."""
        self._path = temp_dir.path(f"notice-{round_}.json")
        self._acks = [temp_dir.path(f"notice-{round_}-{local_rank}.ack") for local_rank in range(workers)]

    def environment(self, local_rank: int) -> Mapping[str, str]:
        return {NOTICE_FILE: self._path, NOTICE_ACK: self._acks[local_rank]}

    @property
    def is_given(self) -> bool:
        """Whether the workers have the notice."""
        return self._is_given

    async def is_acknowledged(self) -> bool:
        """Return whether a worker has acknowledged a notice, False if the disk does not answer in time."""
        try:
            return self._is_given and (await self._look(READ_WITHIN_S)).acknowledged > 0
        except OSError:
            return False

    async def has_saved(self, local_rank: int) -> bool:
        """Return whether a worker has acknowledged a notice. If the disk is slow, the last look counts."""
        if self._is_given:
            with suppress(OSError):
                await self._look(READ_WITHIN_S)
        return local_rank in self._saved

    async def _look(self, within_s: float, alive: Collection[int] | None = None) -> Noticed:
        """Return how many workers listen, and how many of those have acknowledged or ended.

        `alive`: local ranks of the workers that have not exited, None for all. Raises `OSError` if the disk does not
        answer.
        """
        sizes = await in_thread(lambda: [_size(path) for path in self._acks], within_s)
        listening = [rank for rank, size in enumerate(sizes) if rank in self._signalled or size is not None]
        self._saved = frozenset(rank for rank, size in enumerate(sizes) if size)
        done = [rank for rank in listening if sizes[rank] or not (alive is None or rank in alive)]
        return Noticed(listening=len(listening), acknowledged=len(done))

    async def give(
        self, notice: Notice, alive: Callable[[], Mapping[int, int]], warn: Callable[[str], None]
    ) -> Noticed:  # fmt: skip
        """Tell the workers, and wait until all that listen have saved or ended, or the deadline is near.

        `alive`: returns the pids of the workers that have not exited, by local rank.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + max(0.0, notice.remaining_s - MARGIN_S)
        try:
            await in_thread(partial(self._write, notice), until - loop.time())
        except OSError as error:
            warn(words.not_given(in_words(error)))
            return Noticed(listening=0, acknowledged=0)
        self._is_given = True
        self.stop_signalling()
        if self._signum and (deaf := self._signal(alive(), self._signum)):
            warn(words.signal_not_handled(self._signum.name, deaf))
            spawn(self._signal_later(alive, self._signum, until), self._signalling)
        seen = Noticed(listening=0, acknowledged=0)
        while True:
            with suppress(OSError):  # the disk hangs: the previous look counts
                seen = await self._look(max(CHECK_INTERVAL_S, until - loop.time()), alive())
            if seen.acknowledged >= seen.listening or loop.time() >= until:
                return seen
            await asyncio.sleep(CHECK_INTERVAL_S)

    def _signal(self, alive: Mapping[int, int], signum: signal.Signals) -> list[int]:
        """Send the signal to the workers that handle it. Return the local ranks of the others, which it would end."""
        deaf = []
        for rank, pid in alive.items():
            if pids := handlers(pid, signum):
                self._signalled.add(rank)
            elif rank not in self._signalled:
                deaf.append(rank)
            for each in pids:
                with suppress(OSError):  # it is gone, or another user's
                    os.kill(each, signum)
        return deaf

    async def _signal_later(self, alive: Callable[[], Mapping[int, int]], signum: signal.Signals, until: float) -> None:
        while asyncio.get_running_loop().time() < until:
            await asyncio.sleep(HANDLER_INTERVAL_S)
            left = {rank: pid for rank, pid in alive().items() if rank not in self._signalled}
            if not self._signal(left, signum):
                return

    def stop_signalling(self) -> None:
        """Signal no more workers: they are about to be stopped."""
        for each in self._signalling:
            each.cancel()

    def close(self) -> None:
        """Remove the files, later."""
        self.stop_signalling()
        for path in (self._path, *self._acks):
            leave_to_thread(partial(os.unlink, path))

    def _write(self, notice: Notice) -> None:
        """Replace the file in one step, so that every reader gets a complete file."""
        import json

        now = time.time()
        content = {
            "source": notice.source,
            "node_id": notice.node_id,
            "reason": notice.reason,
            "round": notice.round,
            "deadline": now + notice.remaining_s,
            "remaining_s": notice.remaining_s,
            "given_at": now,
            "monotonic_deadline": time.monotonic() + notice.remaining_s,
            "clock": clock(),
        }
        with open(f"{self._path}.new", "w") as file:
            json.dump(content, file)
            file.write("\n")
        os.rename(f"{self._path}.new", self._path)


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None
