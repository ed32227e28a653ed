"""Suspicions that workers hang, and what a run remembers of its hangs."""

from collections.abc import KeysView
from math import inf

from msgspec import Struct, field
from msgspec.structs import replace
from rdzv_protocol.hang_sources import LOG_RULE, PREPARATION, SILENCE
from rdzv_protocol.messages import Failure

from rdzv_server.core.events import PolicyFact
from rdzv_server.core.kernel.run import PolicyState, Run, Stage


class HangSuspected(PolicyFact, frozen=True):
    """An agent suspects, by one source, that its workers with these ranks hang. Without ranks it takes that back."""

    agent_id: str
    round: int
    source: str
    reason: str
    ranks: tuple[int, ...]
    silent_s: float = 0.0
    """Seconds for which these workers had shown no progress at that time."""
    limit_s: float | None = None
    """Limit that the workers had exceeded, in seconds; None if the source is not a time limit."""
    number: int = 0
    """Number among the agent's suspicions; 0 from an older agent."""
    ends_rules: bool = False
    """Whether a worker has reported that all work is done, so that no log rule counts in this round any more."""
    is_untold: bool = False
    """Whether no worker of the node has reported progress in this round: see `SuspectRequest.is_untold`."""

    @property
    def is_of_rule(self) -> bool:
        return self.source.startswith(LOG_RULE)


class HangFound(PolicyFact, frozen=True):
    """A hang has been judged. The failure names the rank that is to blame, with the evidence."""

    agent_id: str
    failure: Failure
    source: str = ""
    """Source of the suspicion that was judged."""
    limit_s: float | None = None
    """Limit in seconds that is the only sign of the hang; None if there is proof, or the source has no limit."""


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
    """Limit that the workers exceeded, in seconds; None if it is unknown, or if the source is not a time limit."""
    is_untold: bool = False
    """Whether no worker of the node has reported progress in this round."""

    @property
    def is_of_preparation(self) -> bool:
        """Whether the node has not started its workers, so that no rank is to blame."""
        return self.source.startswith(PREPARATION)


class HangVerdict(Struct, frozen=True):
    """Findings of the server about a hang that it only reports."""

    sentence: str
    agent_id: str | None = None
    """Agent of the rank to blame; None if no rank is singled out. `node_id`, `rank`: its node, and this rank."""
    node_id: str | None = None
    rank: int | None = None


class Hang(Struct, dict=True):
    """Hang of the running round, as far as it is suspected.

    A whole run may be suspected at once, so indexes answer what every suspicion needs to know. The indexes are not
    fields: a snapshot does not contain them, and decoding one rebuilds them.
    """

    since: float
    suspicions: dict[str, Suspicion] = field(default_factory=dict)
    silence_s: float = 0.0
    """Longest limit of a silence that was suspected, in seconds; the length of the silence if the limit is unknown."""
    silence_counts: bool = True
    """Whether the silence of all nodes counts: not within `silence_s` after the workers of a node have finished."""
    untold_counts: bool = True
    """Whether suspicions count of nodes without reports of progress: only while no node has any. Many scripts report
    progress from one rank only."""
    judge_at: float | None = None
    """Time at which the hang becomes a failure; None if no suspicion is believed yet, or if the hang was reported."""
    is_reported: bool = False
    charge_at: float | None = None
    """Time at which a hang that was only reported costs a restart: see `repeated_hangs`. None if not withheld."""
    verdict: HangVerdict | None = None
    """Latest verdict about the hang; None if it was not reported, or by an older server."""

    def __post_init__(self) -> None:
        self._keys: dict[str, dict[str, None]] = {}
        """Keys of each agent's suspicions."""
        self._silent = 0
        """Number of suspicions of silence: at most one for each agent."""
        self._untold = 0
        """Number of suspicions of nodes whose workers report no progress."""
        for key, suspicion in self.suspicions.items():
            self._count(key, suspicion)

    def add(self, key: str, suspicion: Suspicion) -> None:
        if key in self.suspicions:
            self.remove(key)
        self.suspicions[key] = suspicion
        self._count(key, suspicion)

    def remove(self, key: str) -> None:
        """Remove a suspicion, if it is there."""
        if suspicion := self.suspicions.pop(key, None):
            self._silent -= suspicion.source == SILENCE
            self._untold -= suspicion.is_untold
            keys = self._keys[suspicion.agent_id]
            del keys[key]
            if not keys:
                del self._keys[suspicion.agent_id]

    def remove_overdue_lines(self) -> None:
        """Remove all suspicions that lines of the output are overdue."""
        overdue = [
            key
            for key, each in self.suspicions.items()
            if each.source.startswith(LOG_RULE) and each.limit_s is not None
        ]
        for key in overdue:
            self.remove(key)

    def remove_agent(self, agent_id: str) -> None:
        """Remove all suspicions of an agent whose workers no longer run."""
        for key in list(self._keys.get(agent_id, ())):
            self.remove(key)
        if self.verdict and self.verdict.agent_id == agent_id:
            self.verdict = None

    def withdraw(self) -> None:
        """Forget what followed from suspicions that no longer count."""
        self.judge_at, self.is_reported, self.charge_at, self.verdict = None, False, None, None

    @property
    def agent_ids(self) -> KeysView[str]:
        """Ids of the agents that suspect their workers."""
        return self._keys.keys()

    def number_of(self, agent_id: str) -> int:
        """Return the number of the agent's suspicions."""
        return len(self._keys.get(agent_id, ()))

    def is_silent(self, running: int) -> bool:
        """Return whether all of the `running` agents that run workers report silence, which may not count yet."""
        return self._silent == running > 0

    def counts(self, running: int) -> bool:
        """Return whether a suspicion counts if `running` agents run workers: silence counts only if all are silent."""
        others = len(self.suspicions) - self._silent - (0 if self.untold_counts else self._untold)
        return others > 0 or (self.silence_counts and self.is_silent(running))

    @property
    def is_untold(self) -> bool:
        """Whether a suspicion does not count since only other nodes report progress."""
        return self._untold > 0 and not self.untold_counts

    def believed(self, running: int) -> list[Suspicion]:
        """Return the suspicions that count if `running` agents run workers."""
        all_silent = self.silence_counts and self.is_silent(running)
        return [each for each in self.suspicions.values() if self._is_counted(each, all_silent=all_silent)]

    def first_believed(self, running: int) -> Suspicion | None:
        """Return the first suspicion that counts if `running` agents run workers; None if none does."""
        all_silent = self.silence_counts and self.is_silent(running)
        return next((each for each in self.suspicions.values() if self._is_counted(each, all_silent=all_silent)), None)

    def _is_counted(self, each: Suspicion, *, all_silent: bool) -> bool:
        return all_silent if each.source == SILENCE else self.untold_counts or not each.is_untold

    def of_agent(self, agent_id: str) -> Suspicion | None:
        """Return the agent's first suspicion of some of its workers; None if it has none, or only that all are silent.

        Silence is about all nodes, so it says nothing about one.
        """
        suspicions = (self.suspicions[key] for key in self._keys.get(agent_id, ()))
        return next((each for each in suspicions if self._is_counted(each, all_silent=False)), None)

    def silent_since(self, running: int) -> float:
        """Return since when the workers have shown no progress by one source, as its last agent reports it."""
        sources: dict[str, float] = {}
        for each in self.believed(running):
            sources[each.source] = max(each.silent_since, sources.get(each.source, each.silent_since))
        return min(sources.values(), default=inf)

    def _count(self, key: str, suspicion: Suspicion) -> None:
        self._keys.setdefault(suspicion.agent_id, {})[key] = None
        self._silent += suspicion.source == SILENCE
        self._untold += suspicion.is_untold

    @property
    def is_believed(self) -> bool:
        """Whether the workers are believed to hang, even if nothing follows from it."""
        return self.judge_at is not None or self.is_reported


class RepeatedHangs(Struct):
    """Restarts in a row by the limit of one source: see `repeated_hangs`."""

    source: str
    limit_s: float
    """Limit that found the latest of these hangs, in seconds."""
    since: float
    """Time of the first hang of the row. `last_at`: time of the latest one."""
    last_at: float
    step: int | None
    """Highest step of the run at `last_at`."""
    withheld: str = ""
    """Sentence with which the hangs of this source are only reported; empty if they restart the run."""


class HangsState(PolicyState):
    hang: Hang | None = None
    """Hang of the running round; None if none is suspected."""
    repeated_hangs: RepeatedHangs | None = None
    """Hangs in a row that one limit has found; None if the last restart by a hang was not of this kind."""
    is_told_of_untold: bool = False
    """Whether an event has said that a suspicion does not count because only other nodes report progress."""
    compared_round: int = 0
    """Latest round whose nodes' sources of hangs were compared; 0 if none was."""
    unwatched: tuple[str, ...] = ()
    """Sentences about sources of hangs that some nodes of that round have, and others lack."""
    suspected: dict[str, int] = field(default_factory=dict)
    """Number of the latest suspicion of each agent in the running round."""
    rules_ended: bool = False
    """Whether a worker has reported in the running round that all work is done: log rules expect nothing any more."""

    def validate(self, run: Run) -> None:
        if self.hang is not None:
            assert run.stage is Stage.RUNNING
            assert vars(replace(self.hang)) == vars(self.hang)
            assert self.hang.agent_ids <= run.running.keys()
            assert self.hang.is_reported or self.hang.verdict is None
