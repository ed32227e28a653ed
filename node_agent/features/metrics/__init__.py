"""Metrics of the agent for Prometheus, at a port of its own."""

from typing import Annotated

from node_agent.flags import ours, place
from node_agent.kernel.config import Options


class Metrics(Options, frozen=True, kw_only=True):
    """Port of the metrics."""

    feature = "node_agent.features.metrics.feature:AgentMetrics"
    after = "local_addr"

    # fmt: off
    metrics_port: Annotated[tuple[str, int] | None, ours(
        "[HOST:]PORT", place, "show this agent's metrics to Prometheus at this port, of loopback unless a host is "
        "named (0: a free one, which it prints)", is_for_one=True)] = None
    # fmt: on
