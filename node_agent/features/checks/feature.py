"""Feature: checks this node when the machine asks for it, and tests the network with another node."""

from rdzv_protocol.queries import PairTest, PairTested, Query

from node_agent.features import checks
from node_agent.features.checks import NETWORK, words
from node_agent.features.checks.pre_join import PreJoinCheck
from node_agent.kernel.core.effects import Level
from node_agent.kernel.feature import Feature, Kernel

LEAST_MB_PER_S = 10.0
"""Limit of the network test if the user sets none. A lower rate means a broken link, or one of at most 100 Mbit/s."""


class NodeChecks(Feature):
    """Checks of this node."""

    def __init__(self, kernel: Kernel, options: checks.NodeChecks) -> None:
        super().__init__(kernel)
        self._options = options
        node_id, environment = kernel.config.join.node_id, kernel.config.environment
        self._check = PreJoinCheck(options, node_id, environment, kernel.console.log)

    async def unfit(self, after_failure: bool) -> str:
        return await self._check.unfit(after_failure)

    async def answer(self, query: Query) -> PairTested:
        """Measure bandwidth and latency to another node."""
        from node_agent.features.checks.network import measure

        assert isinstance(query, PairTest)
        limit = self._options.check[NETWORK]
        tested = await measure(query, LEAST_MB_PER_S if limit is None else float(limit))
        if tested.problem:
            self.kernel.console.log(words.network_test_failed(query.peer, tested.problem), Level.WARNING)
        else:
            message = words.network_tested(query.peer, tested.mb_per_s, tested.latency_s)
            self.kernel.console.log(message, Level.ROUTINE)
        return tested
