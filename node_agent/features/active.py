"""Features of one agent: those that its options turn on, those without flags, and those that only answer queries."""

from collections.abc import Callable

from rdzv_protocol.queries import Describe, Examine, FindCause, Query

from node_agent.features.table import OPTIONS
from node_agent.kernel.config import Options
from node_agent.kernel.feature import Feature, Kernel, load

UNASKED: tuple[tuple[str, Callable[[Kernel], bool]], ...] = (
    ("node_agent.features.live_line:LiveLine", lambda agent: agent.console.can_redraw),
    ("node_agent.features.store:Store", lambda agent: True),
    ("node_agent.features.extension_locks:ExtensionLocks", lambda agent: True),
    ("node_agent.features.imports:Imports", lambda agent: True),
    ("node_agent.features.earlier_workers:EarlierWorkers", lambda agent: agent.orphans is not None),
    ("node_agent.features.meeting_place:MeetingPlace", lambda agent: agent.config.join.settings.max_nodes != 1),
    (
        "node_agent.features.file_timer:WorkerTimers",
        lambda agent: agent.config.environment.get("TORCHELASTIC_ENABLE_FILE_TIMER") == "1",
    ),
)
"""Features without flags, each with a function that returns whether an agent has it."""
ANSWERING: dict[type[Query], str] = {
    Examine: "node_agent.features.evidence.feature:Evidence",
    Describe: "node_agent.features.description:Describer",
    FindCause: "node_agent.features.causes:Causes",
}
"""Features without flags that only answer queries, by the kind of query."""


class Features(list[Feature]):
    """The features of one agent that are on. Features that answer a query are imported when the server sends one."""

    def __init__(self, agent: Kernel) -> None:
        super().__init__()
        self._agent = agent
        self._asked: dict[type[Query], Options | None] = dict.fromkeys(ANSWERING)
        self._answering: dict[type[Query], Feature] = {}
        unlisted = [each for each in agent.config.features if type(each) not in OPTIONS]
        for options in (*unlisted, *map(agent.config.options, OPTIONS)):
            feature = load(options.feature)(agent, options) if options.is_on else None
            self.extend([feature] if feature else [])
            for kind in options.answers:
                self._asked[kind] = options
                if feature:
                    self._answering[kind] = feature
        self.extend(load(name)(agent) for name, is_on in UNASKED if is_on(agent))

    @property
    def queries(self) -> tuple[type[Query], ...]:
        """Kinds of queries that the agent answers."""
        return tuple(self._asked)

    def overriding(self, hook: str) -> bool:
        """Return whether any feature overrides this hook."""
        return any(getattr(type(each), hook) is not getattr(Feature, hook) for each in self)

    def answering(self, kind: type[Query]) -> Feature | None:
        """Return the feature that answers queries of a kind, None if there is none."""
        if kind in self._asked and kind not in self._answering:
            options = self._asked[kind]
            name = options.feature if options else ANSWERING[kind]
            self._answering[kind] = load(name)(self._agent, *([options] if options else []))
        return self._answering.get(kind)
