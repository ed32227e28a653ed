"""The file of `--ready-file`: it exists while the agent is a member of its run, for readiness probes."""

import asyncio
import os
from contextlib import suppress
from functools import partial

from node_agent.features import readiness
from node_agent.features.readiness import words
from node_agent.kernel.core.effects import Level
from node_agent.kernel.feature import Feature, Kernel
from node_agent.kernel.output.disk_space import in_words
from node_agent.kernel.threads import in_thread

CLOSE_S = 2.0
"""Most seconds that an exiting agent waits until the file is removed."""


class ReadyFile(Feature):
    """File with the agent's process id. A thread writes and removes it, because its disk may hang."""

    def __init__(self, kernel: Kernel, options: readiness.Readiness) -> None:
        super().__init__(kernel)
        assert options.ready_file
        self._path = options.ready_file
        self._is_shown = True  # so that a file left by a killed agent is removed at once
        self._is_wanted = True
        self._work: asyncio.Task[None] | None = None

    def member(self, is_member: bool) -> None:
        """Make the file exist exactly while the agent is a member of its run."""
        self._is_wanted = is_member
        if self._is_wanted != self._is_shown and (self._work is None or self._work.done()):
            self._work = asyncio.get_running_loop().create_task(self._follow())

    async def close(self) -> None:
        """Wait for a bounded time until the file is up to date."""
        if self._work:
            await asyncio.wait([self._work], timeout=CLOSE_S)

    async def _follow(self) -> None:
        while self._is_shown != self._is_wanted:
            self._is_shown = self._is_wanted
            try:
                await in_thread(partial(self._put, self._is_shown))
            except OSError as error:
                self.kernel.console.log(words.failed(self._path, in_words(error)), Level.WARNING)

    def _put(self, is_shown: bool) -> None:
        if is_shown:
            new = f"{self._path}.{os.getpid()}"
            with open(new, "w") as file:
                file.write(f"{os.getpid()}\n")
            os.replace(new, self._path)  # so that a reader never finds half of it
        else:
            with suppress(FileNotFoundError):
                os.remove(self._path)
