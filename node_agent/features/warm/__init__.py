"""Warm workers: forked from a process that has already imported their modules."""

from typing import Annotated

from node_agent.flags import START, modules, ours
from node_agent.kernel.config import SIDE_BY_SIDE, Options

FILES = 2
"""Descriptors of a process that is held ready: the process itself, and a connection to it."""


class WarmWorkers(Options, frozen=True, kw_only=True):
    """Modules that workers need not import."""

    feature = "node_agent.features.warm.feature:WarmWorkers"
    after = "run_path"

    # fmt: off
    preload: Annotated[tuple[str, ...], ours(
        "MODULE,MODULE", modules, "import these modules once and fork workers from that process, so that a restart "
        "imports nothing. For Python scripts only, and not for modules that start threads or open a GPU on import",
        is_commands=True, task=START)] = ()
    # fmt: on

    @property
    def has_torch(self) -> bool:
        """Whether workers have torch when they start."""
        return "torch" in {name.partition(".")[0] for name in self.preload}

    def descriptors(self, workers: int) -> int:
        """Count the next round's workers, the fork server, and the second ends of the pipes of starting workers."""
        return FILES * (workers + 1 + min(workers, SIDE_BY_SIDE)) if self.preload else 0
