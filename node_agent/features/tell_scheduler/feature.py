"""Feature: the agent of group rank 0 sends the run's phase, progress, health and restarts to the scheduler.

The server sends the summary with the answers to this agent's polls. The agent sends the newest one, at most once in
`Channel.every_s`, and drops those in between. Each message has a time limit. If one fails, the agent logs that
once and tries again later. Nothing else depends on it.
"""

import asyncio
from contextlib import suppress

from msgspec.structs import replace
from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.messages import PollRequest, Reply, RunSummary
from rdzv_protocol.text import clip, printable

from node_agent.features import tell_scheduler
from node_agent.features.tell_scheduler import words
from node_agent.features.tell_scheduler.channels import Channel, NotInside, Untold, channel
from node_agent.kernel.feature import Feature, Kernel
from node_agent.kernel.tasks import spawn
from node_agent.kernel.threads import in_thread

LIMIT_S = 10.0
"""Most seconds for one message."""
LAST_S = 5.0
"""Most seconds that an exiting agent waits until the scheduler knows how the run has ended."""
AGAIN_S = 60.0
"""Seconds to wait after a failed message, unless the scheduler names another time."""
MOST_WAIT_S = 600.0
"""Most seconds to wait, even if the scheduler asks for more."""
SHOWN = 200


class TellScheduler(Feature):
    """Sends the newest summary whenever it is due."""

    def __init__(self, kernel: Kernel, options: tell_scheduler.TellScheduler) -> None:
        super().__init__(kernel)
        assert options.tell_scheduler
        self._wanted = options.tell_scheduler
        self._channel: Channel | None = None
        self._latest: RunSummary | None = None
        self._sent: RunSummary | None = None
        self._news = asyncio.Event()
        """Set when there may be something to send."""
        self._over = asyncio.Event()
        """Set when the agent exits."""
        self._has_failed = False
        self._tasks: set[asyncio.Task[None]] = set()

    def began(self) -> None:
        spawn(self._tell(), self._tasks)

    def polling(self, request: PollRequest, now: float) -> PollRequest:
        """Ask for the summary if this agent had group rank 0 in the round that it was last part of."""
        return replace(request, wants_summary=True) if self._channel is not None and self._leads else request

    @property
    def _leads(self) -> bool:
        return self.kernel.assignment is not None and self.kernel.assignment.group_rank == 0

    def answered(self, answer: Reply | ProtocolError) -> None:
        summary = answer.summary if isinstance(answer, Reply) else None
        # since the workers of this agent were started, another node may have become rank 0
        if summary and self._leads and self.kernel.assignment and self.kernel.assignment.round >= summary.round:
            self._latest = summary
            self._news.set()

    def ended(self, exit_code: ExitCode) -> None:
        self._over.set()
        self._news.set()

    async def close(self) -> None:
        self.ended(ExitCode.SUCCEEDED)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LAST_S)
        for task in self._tasks:
            task.cancel()

    async def _tell(self) -> None:
        """Send summaries until the agent exits. The last one is sent at once, and not tried again."""
        try:
            self._channel = await in_thread(lambda: channel(self._wanted, self.kernel.config.environment), LIMIT_S)
        except (NotInside, OSError) as error:
            self.kernel.console.log(str(error))
            return
        while not self._over.is_set() or self._latest != self._sent:
            await self._news.wait()
            self._news.clear()
            if self._latest is None or self._latest == self._sent:
                continue
            is_last = self._over.is_set()
            pause_s = await self._send(self._channel, self._latest)
            if is_last:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._over.wait()
            self._news.set()

    async def _send(self, channel: Channel, summary: RunSummary) -> float:
        """Send this summary, and return the seconds to wait before the next one."""
        try:
            async with asyncio.timeout(LIMIT_S):
                await channel.send(summary)
        except TimeoutError:
            return self._failed(channel, words.took_too_long(LIMIT_S), None)
        except Untold as error:
            return self._failed(channel, str(error), error.again_s)
        self._sent = summary
        if self._has_failed:
            self._has_failed = False
            self.kernel.console.log(words.told_again(channel.where))
        return channel.every_s

    def _failed(self, channel: Channel, why: str, again_s: float | None) -> float:
        """Log the first of several failures in a row, and return the seconds to wait before the next try."""
        if not self._has_failed:
            self._has_failed = True
            self.kernel.console.log(words.not_told(channel.where, clip(printable(why), SHOWN)))
        return AGAIN_S if again_s is None else min(max(again_s, channel.every_s), MOST_WAIT_S)
