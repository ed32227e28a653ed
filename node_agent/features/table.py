"""Table of the features: those with options, and those that the agent has without being asked."""

from collections.abc import Callable

from node_agent.config import Options
from node_agent.features.feature import Feature, Kernel, load
from node_agent.features.preemption import Preemption

OPTIONS: tuple[type[Options], ...] = (Preemption,)
"""Options of features, each with its flags."""
UNASKED: tuple[tuple[str, Callable[[Kernel], bool]], ...] = (
    ("node_agent.features.live_line:LiveLine", lambda agent: agent.console.has_live_line),
    ("node_agent.features.extension_locks:ExtensionLocks", lambda agent: True),
    ("node_agent.features.earlier_workers:EarlierWorkers", lambda agent: agent.orphans is not None),
)
"""Features without flags, each with what says whether an agent has it."""


def features_of(agent: Kernel) -> list[Feature]:
    """The features of an agent that are on."""
    asked = [load(options.feature)(agent, options) for options in agent.config.features if options.is_on]
    return [*asked, *(load(feature)(agent) for feature, is_on in UNASKED if is_on(agent))]
