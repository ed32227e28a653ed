"""Tracing: OpenTelemetry spans of a node's start of each round."""

from collections.abc import Callable
from typing import Annotated

from node_agent.flags import our_switch
from node_agent.kernel.config import LaunchPlan, Options, UsageError


class Tracing(Options, frozen=True, kw_only=True):
    """Whether spans are exported."""

    feature = "node_agent.features.tracing.feature:RoundTrace"
    after = "log_format"

    # fmt: off
    otel: Annotated[bool, our_switch(
        "export OpenTelemetry spans of this node's steps in each round: join, wait, spawn, first output. OTEL_* "
        "variables configure the export (OTLP over HTTP; docs/how-to/tracing.md)")] = False
    # fmt: on

    def completed(self, plan: LaunchPlan, source: Callable[[str], str]) -> "Tracing":
        if self.otel:
            from rdzv_protocol.tracing import missing

            if what := missing():
                raise UsageError(f"{source('otel')} {what}")
        return self
