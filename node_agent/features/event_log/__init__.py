"""Event log: records the same events as torchrun."""

from typing import Annotated

from node_agent.flags import Flag, one_of
from node_agent.kernel.config import Options


class EventLog(Options, frozen=True, kw_only=True):
    """Destination of events."""

    feature = "node_agent.features.event_log.feature:EventLog"
    after = "otel"

    # fmt: off
    event_log_handler: Annotated[str, Flag(
        "NAME", one_of("null", "console"), "send torchrun's events to this handler: null or console (default: "
            "null)")] = "null"
    # fmt: on
