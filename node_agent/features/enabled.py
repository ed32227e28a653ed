"""Features of one agent: those that its options turn on, those without flags, and those that only answer queries.

Features answer the server's queries in parallel with the agent's other work, each by its own deadline at the latest. If
a feature raises an exception, the server gets a refusal, and the run continues: a query never ends workers.
"""

import asyncio
from collections.abc import Callable

from rdzv_protocol.queries import Describe, Examine, FindCause, Query, QueryAnswer, Refused
from rdzv_protocol.text import clip, printable

from node_agent import words
from node_agent.features.table import OPTIONS
from node_agent.kernel.config import Options
from node_agent.kernel.core.effects import Level
from node_agent.kernel.core.machine import Capabilities
from node_agent.kernel.feature import Feature, Kernel, load
from node_agent.kernel.output.console import Console
from node_agent.kernel.tasks import spawn

MOST_OF_ERROR = 512
"""Most bytes of an error's text in an answer."""

UNASKED: tuple[tuple[str, Callable[[Kernel], bool]], ...] = (
    ("node_agent.features.live_line:LiveLine", lambda agent: agent.console.can_redraw),
    ("node_agent.features.store:Store", lambda agent: True),
    ("node_agent.features.extension_locks:ExtensionLocks", lambda agent: True),
    ("node_agent.features.imports:Imports", lambda agent: True),
    ("node_agent.features.recorded_errors:RecordedErrors", lambda agent: True),
    ("node_agent.features.ended_scripts:EndedScripts", lambda agent: True),
    ("node_agent.features.earlier_workers:EarlierWorkers", lambda agent: agent.orphans is not None),
    ("node_agent.features.master_addr_check:MasterAddrCheck", lambda agent: agent.config.join.settings.max_nodes != 1),
    (
        "node_agent.features.file_timer:WorkerTimers",
        lambda agent: agent.config.environment.get("TORCHELASTIC_ENABLE_FILE_TIMER") == "1",
    ),
)
"""Features without flags, each with a function that returns whether an agent has it."""
ANSWERING: dict[type[Query], str] = {
    Examine: "node_agent.features.evidence.feature:Evidence",
    Describe: "node_agent.features.description:Describer",
    FindCause: "node_agent.features.find_cause:CauseFinder",
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
    def capabilities(self) -> Capabilities:
        return Capabilities(
            hosts_store=any(each.hosts_store for each in self),
            queries=tuple(self._asked),
            checks=self._is_overridden("unfit"),
            judges_failures=self._is_overridden("judged"),
            notice_s=next((each.leave_notice_s for each in self if each.leave_notice_s is not None), None),
        )

    def _is_overridden(self, hook: str) -> bool:
        return any(getattr(type(each), hook) is not getattr(Feature, hook) for each in self)

    def answering(self, kind: type[Query]) -> Feature | None:
        """Return the feature that answers queries of a kind, None if there is none."""
        if kind in self._asked and kind not in self._answering:
            options = self._asked[kind]
            name = options.feature if options else ANSWERING[kind]
            self._answering[kind] = load(name)(self._agent, *([options] if options else []))
        return self._answering.get(kind)


class Queries:
    """Queries of the server to one agent. `answered` is called once for each query, with its number and the answer."""

    def __init__(
        self, node_id: str, features: Features, console: Console, answered: Callable[[int, QueryAnswer], None]
    ) -> None:
        self._node_id = node_id
        self._console = console
        self._features = features
        self._answered = answered
        self._under_way: set[asyncio.Task[None]] = set()

    def ask(self, query: Query) -> None:
        """Start to find the answer to a query."""
        spawn(self._find_out(query), self._under_way)

    def _report(self, error: Exception) -> str:
        """Log the error of a feature. Return it in one line."""
        from traceback import format_exception

        why = words.agent.query_failed(self._node_id, type(error).__name__, clip(str(error), MOST_OF_ERROR))
        self._console.log("\n".join([why, *format_exception(error)]).rstrip(), Level.ERROR)
        return printable(why)

    def close(self) -> None:
        for task in self._under_way:
            task.cancel()

    async def _find_out(self, query: Query) -> None:
        try:
            async with asyncio.timeout(query.remaining_s):
                feature = self._features.answering(type(query))
                if feature is None:
                    answer: QueryAnswer = Refused(reason=words.agent.query_unknown(self._node_id))
                else:
                    answer = await feature.answer(query)
        except TimeoutError:
            answer = Refused(reason=words.agent.query_too_slow(self._node_id))
        except Exception as error:
            answer = Refused(reason=self._report(error))
        self._answered(query.number, answer)
