"""Metrics of the agent for Prometheus, at a port of their own."""

from typing import Annotated

from node_agent.flags import ours, place
from node_agent.kernel.config import Options


class Metrics(Options, frozen=True, kw_only=True):
    """Port of the metrics."""

    feature = "node_agent.features.metrics.feature:AgentMetrics"
    after = "local_addr"

    # fmt: off
    metrics_port: Annotated[tuple[str, int] | None, ours(
        "[HOST:]PORT", place, "serve this agent's metrics to Prometheus at this port, on loopback unless you name a "
        "host (0: a free port, which the agent prints)", is_for_one=True)] = None
    # fmt: on
