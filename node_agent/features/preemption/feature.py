"""Feature: the agent leaves, as after SIGTERM, when its machine is about to be preempted."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial

from node_agent.features import preemption
from node_agent.features.preemption import words
from node_agent.kernel.feature import Feature, Kernel
from node_agent.kernel.tasks import spawn
from node_agent.kernel.threads import in_thread

CHECK_INTERVAL_S = 1.0
"""Seconds between two checks of `--preemption-file` and `--preemption-annotations`."""
FIRST_LOOK_S = 1.0
"""Most seconds that a join waits for the first look. A cloud may not answer."""
SILENT_S = 10.0
"""Seconds after which the agent logs that such a file does not answer."""
DRAINED = 'nodeset.slinky.slurm.net/pod-cordon="true"'
"""Line of a downward API volume for a pod that Slinky drains."""
MOST_BYTES = 1_048_576
"""Most bytes to read of the annotations; Kubernetes allows 256 KiB."""


class Preemption(Feature):
    """Watches for a preemption while the agent lives. An agent on a machine that is already preempted does not join.

    A service manager may start such an agent again and again, and each join would restart the whole run.
    """

    def __init__(self, kernel: Kernel, options: preemption.Preemption) -> None:
        super().__init__(kernel)
        self._options = options
        self._watches: set[asyncio.Task[None]] = set()
        self._looked: list[asyncio.Event] = []
        """An event for each watch, set after its first look."""

    def began(self) -> None:
        options = self._options
        if options.preemption_poll:
            self._watch(partial(self._cloud, *options.preemption_poll))
        if path := options.preemption_file:
            self._watch(partial(self._look, path, os.path.exists, words.file_is_there(path)))
        if path := options.preemption_annotations:
            self._watch(partial(self._look, path, _is_drained, words.slinky_drains(path)))

    async def unfit(self, after_failure: bool) -> str:
        """Let the node join after the first looks, which may make the agent leave instead."""
        looked, self._looked = self._looked, []  # only the first join waits
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK_S):
                for each in looked:
                    await each.wait()
        return ""

    async def close(self) -> None:
        for each in self._watches:
            each.cancel()

    def _watch(self, notice: Callable[[Callable[[], object]], Coroutine[None, None, str]]) -> None:
        """Leave when `notice` returns. It gets a function to call after each look that has found nothing."""
        looked = asyncio.Event()
        self._looked.append(looked)

        async def leave() -> None:
            self.kernel.leave("SIGTERM", words.preempted(await notice(looked.set)))
            looked.set()

        spawn(leave(), self._watches)

    async def _look(
        self, path: str, shows_preemption: Callable[[str], bool], notice: str, looked: Callable[[], object]
    ) -> str:
        loop, silent = asyncio.get_running_loop(), words.file_silent(path, SILENT_S)
        while True:
            late = loop.call_later(SILENT_S, self.kernel.console.log, silent)
            try:
                if await in_thread(partial(shows_preemption, path)):
                    return notice
            finally:
                late.cancel()
            looked()
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def _cloud(self, cloud: str, base: str, looked: Callable[[], object]) -> str:
        from node_agent.features.preemption.cloud_metadata import PreemptionPoll

        return await PreemptionPoll(cloud, base, self.kernel.console.log).notice(looked)


def _is_drained(path: str) -> bool:
    """Return whether the annotations show a drain. A missing file shows none: the kubelet may not have written it."""
    try:
        with open(path, "rb") as file:
            return DRAINED in file.read(MOST_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return False
