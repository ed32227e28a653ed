"""Feature: starts workers warm, from a pool."""

from collections.abc import Mapping

from rdzv_protocol.messages import Assignment

from node_agent.features import warm
from node_agent.features.evidence import STACKS_FILE
from node_agent.features.warm import words
from node_agent.features.warm.pool import WarmPool
from node_agent.kernel.environment import defaults
from node_agent.kernel.feature import Feature, Kernel


class WarmWorkers(Feature):
    """Pool of processes for the workers of each round."""

    preparation = words.IMPORTS

    def __init__(self, kernel: Kernel, options: warm.WarmWorkers) -> None:
        super().__init__(kernel)
        config, workers = kernel.config, kernel.config.join.local_world_size
        added = defaults(config.environment, workers, limits_threads=config.limits_threads)
        environment = {**config.environment, **added}
        log, ignored = kernel.console.log, config.eviction_signals
        self._pool = WarmPool(options.preload, config.command, environment, workers, log, ignored)
        self.start_worker = self._pool.start_worker
        if kernel.orphans:
            kernel.orphans.expects = self._pool.expects

    async def preparing(self, assignment: Assignment) -> None:
        await self._pool.full()

    def variables(self, assignment: Assignment, local_rank: int) -> Mapping[str, str]:
        """Return the variable with the file to which the worker writes its stacks on request."""
        if not self.kernel.temp_dir.is_made or STACKS_FILE in self.kernel.config.environment:
            return {}
        rank = assignment.first_rank + local_rank
        return {STACKS_FILE: self.kernel.temp_dir.path(f"round_{assignment.round}_{rank}.stacks")}

    async def close(self) -> None:
        self._pool.close()
