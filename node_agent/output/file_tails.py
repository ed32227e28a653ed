"""All followers of an agent, also those whose worker is gone while the console is not yet done with its output."""

import asyncio
from collections.abc import Callable, Sequence

from node_agent.output.console import PATIENCE_S, Console
from node_agent.output.file_tail import Follower
from node_agent.output.file_watcher import Modifications
from node_agent.output.pipe import Sink

DRAIN_TIMEOUT_S = 30.0
"""How long an exiting agent goes on showing what is in the files anyway."""


class Followers:
    """Makes them, and waits for them."""

    def __init__(self, console: Console, trouble: Callable[[OSError], None]) -> None:
        self._console = console
        self._trouble = trouble
        self._modifications = Modifications(asyncio.get_running_loop())
        self._at_work: set[Follower] = set()
        self._news = asyncio.Event()

    def make(self, file: int, sinks: Sequence[Sink], *, shown: bool) -> Follower:
        """For this open file, which becomes the follower's. `shown`: the console is among the sinks."""
        console = self._console if shown else None
        follower = Follower(file, sinks, console, self._modifications, self._trouble, self._done)
        self._at_work.add(follower)
        return follower

    async def drain(self) -> int:
        """Wait for those whose worker is gone, as long as the console takes something. How many bytes are left."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + DRAIN_TIMEOUT_S
        left = -1
        while (behind := self._behind()) and behind + self._console.pending != left and loop.time() < give_up_at:
            left = behind + self._console.pending
            await self._some_news()
        return behind

    def close(self) -> None:
        for follower in list(self._at_work):
            follower.give_up()
        self._modifications.close()

    def _behind(self) -> int:
        return sum(follower.behind for follower in self._at_work)

    async def _some_news(self) -> None:
        self._news.clear()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._news.wait()
        except TimeoutError:
            pass

    def _done(self, follower: Follower) -> None:
        self._at_work.discard(follower)
        self._news.set()
