"""Free GPUs: workers start only when the GPU memory and contexts of dead workers are gone."""

import os
from collections.abc import Callable
from typing import Annotated

from msgspec.structs import replace

from node_agent.flags import RESTART, ours, seconds
from node_agent.kernel.config import LaunchPlan, Options

DRIVER = "/dev/nvidiactl"
"""Device file that exists if NVIDIA's driver is loaded."""
FILES = 2
"""Descriptors of the helper process: the process itself, and the socket to it."""


class FreeGpus(Options, frozen=True, kw_only=True):
    """How long workers wait for their GPUs."""

    feature = "node_agent.features.free_gpus.feature:FreeGpus"
    after = "shutdown_timeout"

    # fmt: off
    gpu_free_timeout: Annotated[float, ours(
        "S", seconds(0, 3_600), "before workers start, wait up to S seconds until processes of ended workers hold no "
        "memory on this node's NVIDIA GPUs. 0: do not wait (default: 30)", task=RESTART)] = 30.0
    # fmt: on
    has_driver: bool = False
    """Whether this machine has NVIDIA's driver."""

    @property
    def is_on(self) -> bool:
        return self.has_driver and self.gpu_free_timeout > 0

    def descriptors(self, workers: int) -> int:
        return FILES if self.is_on else 0

    def completed(self, plan: LaunchPlan, source: Callable[[str], str]) -> "FreeGpus":
        return replace(self, has_driver=os.path.exists(DRIVER))
