"""Suspicions that workers hang, and what a run remembers of its hangs."""

from collections.abc import KeysView
from math import inf

from msgspec import Struct, field
from msgspec.structs import replace
from rdzv_protocol.messages import Failure

from rdzv_server.core.events import PolicyFact
from rdzv_server.core.kernel.run import PolicyState, Run, Stage


class HangSuspected(PolicyFact, frozen=True):
    """An agent suspects that its workers with these ranks hang, by one source; without ranks it takes that back."""

    agent_id: str
    round: int
    source: str
    reason: str
    ranks: tuple[int, ...]
    silent_s: float = 0.0
    """Seconds for which these workers had shown no progress by then."""
    limit_s: float | None = None
    """Limit that they had exceeded, in seconds; None: an older agent, or the source is no limit of time."""


class HangFound(PolicyFact, frozen=True):
    """A hang has been judged: the failure names who is to blame, with the evidence."""

    agent_id: str
    failure: Failure
    source: str = ""
    """Source of the suspicion that was judged."""
    limit_s: float | None = None
    """Limit in seconds that is the only sign of the hang; None: the evidence proves it, or the source is no limit."""


class Suspicion(Struct, frozen=True):
    """Workers of a node that seem to hang, by one source."""

    agent_id: str
    node_id: str
    source: str
    reason: str
    ranks: tuple[int, ...]
    at: float
    silent_since: float = inf
    """Time since which the workers have shown no progress by this source."""
    limit_s: float | None = None
    """Limit that they exceeded, in seconds; None: it is not known, or the source is no limit of time."""


SILENCE = "silence"
"""Source of suspicions that count only if every node has them."""


class Hang(Struct, dict=True):
    """Hang of the running round, as far as it is suspected.

    A whole run may be suspected at once, so indexes answer what every suspicion asks. They are no fields: a snapshot
    does not contain them, and decoding one makes them anew.
    """

    since: float
    suspicions: dict[str, Suspicion] = field(default_factory=dict)
    judge_at: float | None = None
    """Time at which the hang becomes a failure; None: no suspicion is believed yet, or the hang has been reported."""
    is_reported: bool = False
    charge_at: float | None = None
    """Time at which a hang that was only reported costs a restart: see `repeated_hangs`; None: it was not withheld."""

    def __post_init__(self) -> None:
        self._keys: dict[str, dict[str, None]] = {}
        """Keys of each agent's suspicions."""
        self._silent = 0
        """Number of suspicions of silence: one at most for each agent."""
        for key, suspicion in self.suspicions.items():
            self._count(key, suspicion)

    def add(self, key: str, suspicion: Suspicion) -> None:
        self.remove(key)
        self.suspicions[key] = suspicion
        self._count(key, suspicion)

    def remove(self, key: str) -> None:
        """Remove a suspicion, if it is there."""
        if suspicion := self.suspicions.pop(key, None):
            self._silent -= suspicion.source == SILENCE
            keys = self._keys[suspicion.agent_id]
            del keys[key]
            if not keys:
                del self._keys[suspicion.agent_id]

    def remove_agent(self, agent_id: str) -> None:
        """Remove all suspicions of an agent whose workers no longer run."""
        for key in list(self._keys.get(agent_id, ())):
            self.remove(key)

    @property
    def agent_ids(self) -> KeysView[str]:
        """Ids of the agents that suspect their workers."""
        return self._keys.keys()

    def number_of(self, agent_id: str) -> int:
        """Number of the agent's suspicions."""
        return len(self._keys.get(agent_id, ()))

    def counts(self, running: int) -> bool:
        """Whether any suspicion counts, beside `running` agents: silence counts only if all of them are silent."""
        return len(self.suspicions) > self._silent or self._silent == running > 0

    def believed(self, running: int) -> list[Suspicion]:
        """Suspicions that count, beside `running` agents."""
        all_silent = self._silent == running > 0
        return [each for each in self.suspicions.values() if each.source != SILENCE or all_silent]

    def first_believed(self, running: int) -> Suspicion | None:
        """The first suspicion that counts, beside `running` agents; None if none does."""
        all_silent = self._silent == running > 0
        return next((each for each in self.suspicions.values() if each.source != SILENCE or all_silent), None)

    def silent_since(self, running: int) -> float:
        """Time since which the workers have shown no progress by one source: by the last agent that it comes from."""
        sources: dict[str, float] = {}
        for each in self.believed(running):
            sources[each.source] = max(each.silent_since, sources.get(each.source, each.silent_since))
        return min(sources.values(), default=inf)

    def _count(self, key: str, suspicion: Suspicion) -> None:
        self._keys.setdefault(suspicion.agent_id, {})[key] = None
        self._silent += suspicion.source == SILENCE

    @property
    def is_believed(self) -> bool:
        """Whether the workers are taken to hang, whatever follows from that."""
        return self.judge_at is not None or self.is_reported


class RepeatedHangs(Struct):
    """Restarts in a row by the limit of one source: see `repeated_hangs`."""

    source: str
    limit_s: float
    """Limit that found the last of these hangs, in seconds."""
    since: float
    """Time of the first hang of the row; `last_at` of the last one."""
    last_at: float
    step: int | None
    """Highest step of the run at `last_at`."""
    withheld: str = ""
    """Sentence with which the hangs of this source are only reported; empty: they restart the run."""


class HangsState(PolicyState):
    hang: Hang | None = None
    """Hang of the running round; None: none is suspected."""
    repeated_hangs: RepeatedHangs | None = None
    """Hangs in a row that one limit has found; None: the last restart by a hang was no such one."""

    def validate(self, run: Run) -> None:
        if self.hang is not None:
            assert run.stage is Stage.RUNNING
            assert vars(replace(self.hang)) == vars(self.hang)
            assert self.hang.agent_ids <= run.running.keys()
