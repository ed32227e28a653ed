"""Feature: the agent leaves, as after SIGTERM, when its machine is about to be preempted."""

import asyncio
import os
from functools import partial

from node_agent.features import preemption
from node_agent.features.preemption import words
from node_agent.kernel.feature import Feature, Kernel
from node_agent.kernel.output.threads import in_thread
from node_agent.kernel.transport.base import spawn

LOOK_S = 1.0
"""Seconds between two checks of `--preemption-file`."""


class Preemption(Feature):
    """Watches for a preemption while the agent lives."""

    def __init__(self, kernel: Kernel, options: preemption.Preemption) -> None:
        super().__init__(kernel)
        self._options = options
        self._watches: set[asyncio.Task[None]] = set()

    def began(self) -> None:
        if self._options.preemption_poll:
            spawn(self._await_cloud(*self._options.preemption_poll), self._watches)
        if self._options.preemption_file:
            spawn(self._await_file(self._options.preemption_file), self._watches)

    async def close(self) -> None:
        for each in self._watches:
            each.cancel()

    async def _await_file(self, path: str) -> None:
        while not await in_thread(partial(os.path.exists, path)):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        self.kernel.leave("SIGTERM", words.preempted(words.file_is_there(path)))

    async def _await_cloud(self, cloud: str, base: str) -> None:
        from node_agent.features.preemption.cloud_metadata import PreemptionPoll

        notice = await PreemptionPoll(cloud, base, self.kernel.console.log).notice()
        self.kernel.leave("SIGTERM", words.preempted(notice))
