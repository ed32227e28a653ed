"""Modules that an agent needs when a problem occurs, imported soon after its first workers have started.

A healthy start imports none of them. Later an import may fail: no file descriptor may be left, the program's disk may
hang, or another version may have been installed.
"""

import asyncio
import sys
from collections.abc import Mapping
from importlib import import_module

from rdzv_protocol.messages import Assignment

from node_agent.kernel.feature import Feature, Kernel
from node_agent.kernel.tasks import spawn
from node_agent.kernel.threads import in_thread

AFTER_S = 1.0
"""Seconds after the first start of workers, so that the workers' own imports come first."""
MODULES = (
    "node_agent.features.description", "node_agent.features.evidence.feature", "node_agent.features.log_reads.feature",
    "node_agent.kernel.failures.diagnose", "node_agent.kernel.failures.error_file", "node_agent.kernel.failures.oom",
    "node_agent.kernel.failures.recorded_causes", "node_agent.kernel.failures.report", "node_agent.words.agent",
    "node_agent.words.connection", "node_agent.words.devices", "node_agent.words.failures", "node_agent.words.hints",
    "node_agent.words.leaving", "node_agent.words.output", "node_agent.words.workers", "node_agent.features.words",
    "rdzv_protocol.words.codec", "rdzv_protocol.words.run", "rdzv_protocol.words.tls", "traceback",
)  # fmt: skip


class Imports(Feature):
    """Imports the modules in a thread, once. If that fails, the agent logs why and continues."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self._timer: asyncio.TimerHandle | None = None

    def started(self, assignment: Assignment, pids: Mapping[int, int]) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(AFTER_S, self._begin)

    def _begin(self) -> None:
        spawn(self._import())

    async def _import(self) -> None:
        try:
            await in_thread(load)
        except (OSError, ImportError) as error:
            from node_agent import words

            self.kernel.console.log(words.progress.not_imported(str(error)))

    async def close(self) -> None:
        if self._timer:
            self._timer.cancel()


def load() -> None:
    """Import the modules."""
    for name in MODULES:
        import_module(name)
    if embedded := sys.modules.get("rdzv_server.server"):
        embedded.import_late()
