"""Warns about locks that killed builds of torch extensions have left: workers that load such an extension wait forever.

During a build, `torch.utils.cpp_extension` keeps a file called lock open in the extension's build folder, and removes
it at the end (`FileBaton`, torch 2.13). If the build is killed, as with its worker at a restart, the file remains.
"""

import asyncio
import os
from collections.abc import Iterator, Mapping
from functools import partial

from rdzv_protocol.messages import Assignment

from node_agent.kernel.feature import Feature, Kernel
from node_agent.kernel.tasks import spawn
from node_agent.kernel.threads import in_thread


class ExtensionLocks(Feature):
    """Looks for such locks at each start of workers. Each lock is logged once."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self._named: set[str] = set()
        self.looking: asyncio.Task[None] | None = None
        """The last look, which may still be running."""

    def started(self, assignment: Assignment, pids: Mapping[int, int]) -> None:
        if self.looking is None or self.looking.done():
            self.looking = spawn(self._look())

    async def _look(self) -> None:
        for path in await in_thread(partial(left_over, self.kernel.config.environment)):
            if path not in self._named:
                from node_agent.features import words

                self._named.add(path)
                self.kernel.console.log(words.lock_left(path))


def left_over(environment: Mapping[str, str]) -> list[str]:
    """Return the paths of locks in these workers' build folders that no process of this machine has open."""
    locks = [*_locks(environment)]
    if not locks:
        return []
    held = {*_open_files()}
    return [path for path in locks if os.path.realpath(path) not in held]


def _locks(environment: Mapping[str, str]) -> Iterator[str]:
    if root := environment.get("TORCH_EXTENSIONS_DIR"):
        roots = [root]
    else:
        cache = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME", ""), ".cache")
        default = os.path.join(cache, "torch_extensions")
        roots = [os.path.join(default, name) for name in _names(default)]  # one for each Python and CUDA
    for root in roots:
        for name in _names(root):
            if os.path.isfile(path := os.path.join(root, name, "lock")):
                yield path


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _open_files() -> Iterator[str]:
    for pid in _names("/proc"):
        if pid.isdecimal():
            for number in _names(f"/proc/{pid}/fd"):
                try:
                    yield os.readlink(f"/proc/{pid}/fd/{number}")
                except OSError:  # just closed
                    continue
