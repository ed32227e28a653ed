"""Feature: the agent leaves, as after SIGTERM, when its machine is about to be preempted."""

import asyncio
import os
from functools import partial

from node_agent.features import preemption
from node_agent.features.preemption import words
from node_agent.kernel.feature import Feature, Kernel
from node_agent.kernel.threads import in_thread
from node_agent.kernel.transport.base import spawn

CHECK_INTERVAL_S = 1.0
"""Seconds between two checks of `--preemption-file` and `--preemption-annotations`."""
DRAINED = 'nodeset.slinky.slurm.net/pod-cordon="true"'
"""Line of a downward API volume for a pod that Slinky drains."""
MOST_BYTES = 1_048_576
"""Most bytes to read of the annotations; Kubernetes allows 256 KiB."""


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

        if self._options.preemption_annotations:
            spawn(self._await_annotation(self._options.preemption_annotations), self._watches)

    async def close(self) -> None:
        for each in self._watches:
            each.cancel()

    async def _await_file(self, path: str) -> None:
        while not await in_thread(partial(os.path.exists, path)):  # noqa: ASYNC110
            await asyncio.sleep(CHECK_INTERVAL_S)
        self.kernel.leave("SIGTERM", words.preempted(words.file_is_there(path)))

    async def _await_annotation(self, path: str) -> None:
        while not await in_thread(partial(_is_drained, path)):  # noqa: ASYNC110
            await asyncio.sleep(CHECK_INTERVAL_S)
        self.kernel.leave("SIGTERM", words.preempted(words.slinky_drains(path)))

    async def _await_cloud(self, cloud: str, base: str) -> None:
        from node_agent.features.preemption.cloud_metadata import PreemptionPoll

        notice = await PreemptionPoll(cloud, base, self.kernel.console.log).notice()
        self.kernel.leave("SIGTERM", words.preempted(notice))


def _is_drained(path: str) -> bool:
    """Return whether the annotations show a drain. A missing file shows none: the kubelet may not have written it."""
    try:
        with open(path, "rb") as file:
            return DRAINED in file.read(MOST_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return False
