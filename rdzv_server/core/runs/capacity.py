"""Capacity of a server: how much its attempts take in total, and how much they may take."""

from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec import Struct
from rdzv_protocol.errors import ServerUnavailable

from rdzv_server.core.events import EventsDropped
from rdzv_server.core.journals import Key
from rdzv_server.core.kernel import kept_failures, silent_runs
from rdzv_server.core.kernel.machine import RunMachine
from rdzv_server.core.kernel.run import MOST_DEPARTED, Run
from rdzv_server.core.runs import kept_events
from rdzv_server.words import attempts as words

DEPARTED_ROOM = 10
"""Part of all ids of gone agents, as a divisor, that is forgotten at once: a tenth, since the search takes time."""


class Usage(Struct):
    """Capacity that an attempt uses, as it was last counted."""

    run: Run
    places: int = 0
    """Number of its agents, or of its last round's seats if these are more."""
    events: int = 0
    event_bytes: int = 0
    """Bytes of its large events."""
    evidence: int = 0
    """Bytes of its failures. `last_failure`: the last failure among them."""
    last_failure: object = None
    departed: int = 0
    """Number of gone agents whose ids it remembers."""


class Capacity:
    """Limits of the numbers of runs, agents, events and bytes of evidence, and how much the attempts take.

    The ids of `max_agents` gone agents are remembered, or of `MOST_DEPARTED` if that is more. Beyond that, the attempt
    that ended first forgets its ids first. If none has ended, the attempts with the most forget at most half of theirs.
    As with evidence, this is not a fact: a server that restarts reads all ids, and forgets as many.
    """

    def __init__(self, max_runs: int, max_agents: int, max_events: int, max_evidence: int) -> None:
        self.max_runs, self.max_agents = max_runs, max_agents
        self._max_events, self._max_evidence = max_events, max_evidence
        self._max_event_bytes = max_events * kept_events.MEAN_BYTES
        self._max_departed = max(max_agents, MOST_DEPARTED)
        self.agents = self.events = self.event_bytes = self._evidence = self.departed = 0
        """Sums over all attempts: places, events, bytes of large events and of failures, and ids of gone agents."""
        self._taken: dict[Key, Usage] = {}
        self._evident: dict[Key, Usage] = {}
        """Usage of the attempts that keep evidence which they may drop."""
        self._asked = float("-inf"), float("-inf")
        """Times of the first and the last request of newcomers that have repeatedly asked for a place: signs."""

    def count(self, run: Run) -> bool:
        """Count what an attempt takes now. Return whether its events exceed its own limit, or the limit for all."""
        taken = self._of(run)
        if len(run.agents) != taken.places:
            self._count_places(taken)
        is_beyond = False
        if more := run.event_number - run.first_event + 1 - taken.events:
            self.events += more
            taken.events += more
            is_beyond = more > 0 and (taken.events > kept_events.MOST_OF_ATTEMPT or self.events > self._max_events)
        if more := run.event_sizes.total - taken.event_bytes:
            self.event_bytes += more
            taken.event_bytes += more
            is_beyond |= more > 0 and self.event_bytes > self._max_event_bytes
        if len(run.departed_ids) != taken.departed:
            self._count_departed(taken)
        if run.failures and run.failures[-1] is not taken.last_failure:
            self._count_evidence(taken)
        return is_beyond

    def recount(self, run: Run) -> None:
        """Count what an attempt takes after its state was rebuilt."""
        self.count_places(run)
        self.count(run)

    def leave(self, key: Key) -> None:
        """Give back what an attempt takes."""
        if taken := self._taken.pop(key, None):
            self.agents -= taken.places
            self.events -= taken.events
            self.event_bytes -= taken.event_bytes
            self._evidence -= taken.evidence
            self.departed -= taken.departed
            self._evident.pop(key, None)

    def places_of(self, key: Key) -> int:
        """Return the places that an attempt takes."""
        return self._taken[key].places if key in self._taken else 0

    def _of(self, run: Run) -> Usage:
        taken = self._taken.get(run.key)
        if taken is None:
            taken = self._taken[run.key] = Usage(run)
        return taken

    def count_places(self, run: Run) -> None:
        """Count the agents of an attempt. An attempt that has not ended keeps the places of its last round.

        So newcomers that fill the server do not keep a run from replacing the nodes that it loses.
        """
        self._count_places(self._of(run))

    def _count_places(self, taken: Usage) -> None:
        run = taken.run
        places = 0 if run.gave_place else len(run.agents)
        if run.membership is not None and run.ended_at is None:
            places = max(places, len(run.membership.seats))
        self.agents += places - taken.places
        taken.places = places

    def _count_evidence(self, taken: Usage) -> None:
        """Count the evidence of an attempt that has a new failure, and drop some evidence if there is too much."""
        self._weigh(taken)
        if self._evidence > self._max_evidence:
            keeping = [(each.run, each.evidence) for each in self._evident.values()]
            for run in kept_failures.to_drop(keeping, self._evidence, self._max_evidence):
                kept_failures.drop_evidence(run)
                self._weigh(self._evident[run.key])

    def _weigh(self, taken: Usage) -> None:
        run, size = taken.run, kept_failures.size(taken.run)
        taken.last_failure = run.failures[-1] if run.failures else None
        self._evidence += size - taken.evidence
        taken.evidence = size
        if size > kept_failures.LEAST_BYTES:
            self._evident[run.key] = taken
        else:
            self._evident.pop(run.key, None)

    def _count_departed(self, taken: Usage) -> None:
        """Count the gone agents of an attempt, and forget some ids if there are too many."""
        self._note_departed(taken)
        if self.departed > self._max_departed:
            surplus = self.departed - self._max_departed + self._max_departed // DEPARTED_ROOM
            for each, number in _departed_to_forget(self._taken.values(), surplus):
                each.run.forget_departed(number)
                self._note_departed(each)

    def _note_departed(self, taken: Usage) -> None:
        number = len(taken.run.departed_ids)
        self.departed += number - taken.departed
        taken.departed = number

    def surplus(self, runs: Iterable[Run]) -> list[tuple[Run, EventsDropped]]:
        """Return runs whose events must be dropped, each with the fact that drops them; empty if there is room."""
        if self.events > self._max_events:
            return list(kept_events.beyond_total(runs, self.events, self._max_events))
        if self.event_bytes > self._max_event_bytes:
            return list(kept_events.beyond_bytes(runs, self.event_bytes, self._max_event_bytes))
        return []

    @property
    def is_full_of_agents(self) -> bool:
        return self.agents >= self.max_agents

    def is_full_of_runs(self, machines: Collection[RunMachine]) -> bool:
        """Return whether a new run has no place. A run that gave its place is remembered for at most a minute."""
        if len(machines) < self.max_runs:
            return False
        return sum(not machine.run.gave_place for machine in machines) >= self.max_runs

    def ask_for_run(self, silent: Sequence[RunMachine], now: float) -> RunMachine:
        """Return the attempt that gives its place to a new run. Raises `ServerUnavailable` if there is none yet.

        `silent`: attempts that may give their places.
        """
        giver = next(iter(silent), None)
        gives = self._want(giver, now)
        if giver is None or gives:
            raise ServerUnavailable(words.full_of_runs(self.max_runs, gives or words.WHEN_ONE_HAS_ENDED))
        return giver

    def ask_for_agent(self, silent: Sequence[RunMachine], now: float) -> list[RunMachine]:
        """Return the attempts that give their places to a new agent. Raises `ServerUnavailable` if there are none yet.

        `silent`: attempts that may give their places.
        """
        surplus, givers = self.agents - self.max_agents, list[RunMachine]()
        for machine in silent:
            if surplus < 0:
                break
            givers.append(machine)
            surplus -= self.places_of(machine.run.key)
        giver = givers[0] if surplus < 0 else None
        gives = self._want(giver, now)
        if giver is None or gives:
            raise ServerUnavailable(words.full_of_agents(self.agents, self.max_agents, gives))
        return givers

    def _want(self, giver: RunMachine | None, now: float) -> str:
        """Note that a newcomer asks for a place.

        Return a sentence about the attempt that will give its place, until newcomers have asked for a while; then "".
        """
        since, last = self._asked
        since = since if now <= last + silent_runs.ASKED_AGAIN_S else now
        self._asked = since, now
        if giver is None or now >= since + silent_runs.WANTED_S:
            return ""
        return words.gives_place(giver.run.run_id, silent_runs.WANTED_S)


def silent(machines: Iterable[RunMachine], now: float) -> list[RunMachine]:
    """Return the attempts that may give their places, the one that has been silent for longest first."""
    those = [machine for machine in machines if silent_runs.may_give_place(machine.run, now)]
    return sorted(those, key=lambda machine: machine.run.unheard_since or 0.0)


def _departed_to_forget(attempts: Iterable[Usage], surplus: int) -> Iterator[tuple[Usage, int]]:
    """Yield attempts that forget ids of gone agents, each with the number of ids."""

    def order(taken: Usage) -> tuple[bool, float]:
        ended_at = taken.run.ended_at
        return ended_at is None, -taken.departed if ended_at is None else ended_at

    for taken in sorted((each for each in attempts if each.departed), key=order):
        if surplus <= 0:
            return
        most = taken.departed if taken.run.ended_at is not None else -(-taken.departed // 2)
        surplus -= (number := min(surplus, most))
        yield taken, number
