"""`--numa-binding`: starts each worker on the CPUs near its GPU."""

from collections.abc import Collection

from node_agent.features import numa
from node_agent.kernel.feature import Feature, Kernel


class NumaBinding(Feature):
    """Binds each worker to its CPUs."""

    def __init__(self, kernel: Kernel, options: numa.NumaBinding) -> None:
        super().__init__(kernel)
        self._cpus = options.cpus

    def cpus(self, local_rank: int) -> Collection[int]:
        return self._cpus[local_rank]
