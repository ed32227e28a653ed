"""Feature: hosts the workers' store in each round in which this agent's group rank is 0."""

from rdzv_protocol.messages import Assignment

from node_agent.features.store.host import StoreHost
from node_agent.features.warm import WarmWorkers
from node_agent.kernel.feature import Feature, Kernel


class Store(Feature):
    """Hosts the store of each round."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        at_once = kernel.config.options(WarmWorkers).has_torch
        ignored = kernel.config.eviction_signals
        self._host = StoreHost(kernel.config.environment, kernel.fail, at_once=at_once, ignored=ignored)
        self.hosts_store = self._host.is_available

    def joining(self) -> None:
        self._host.close()  # no node needs the store of a round whose workers have succeeded here

    def starting(self, assignment: Assignment) -> None:
        if assignment.agent_store and assignment.group_rank == 0:
            assert self.kernel.port
            self._host.open(self.kernel.port.socket)

    def stopped(self) -> None:
        self._host.close()

    async def close(self) -> None:
        self._host.shutdown()
