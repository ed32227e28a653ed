"""Liveness of agents: a lease for each agent, and a shorter time for one of which that is uncertain.

An agent is uncertain while its connection is closed, while it is probed (another agent claims to be its node, and it is
asked for a sign of life), and after a restart of the server until its lease is renewed. It keeps its place, but gets no
seat.

All leases of a run are equally long, so the one renewed longest ago stands first: renewing moves it to the end, the
next deadline is the first entry, and neither depends on the number of nodes. A plain dict would not do: it finds its
first entry behind the places of all those that were taken out before.
"""

from collections import OrderedDict
from collections.abc import Iterable

NOT_HEARD = "not heard for"
"""Beginning of the cause of a loss by an expired lease; no other cause begins so."""


class Leases:
    """The leases of one run's agents. Times are the server's clock, in seconds."""

    def __init__(self, lease_s: float, grace_s: float) -> None:
        self._lease_s = lease_s
        self._grace_s = grace_s
        self.renewed_at: OrderedDict[str, float] = OrderedDict()
        self.uncertain: OrderedDict[str, None] = OrderedDict()
        """Agents that get no seat until their leases are renewed."""
        self.absent_since: OrderedDict[str, float] = OrderedDict()
        """Times at which the connections of agents that have none were closed, or from which their grace counts."""
        self.probed_until: dict[str, float] = {}
        self._proven_at: dict[str, float] = {}

    def renew(self, agent_id: str, now: float) -> None:
        """Give the agent, from which a sign of life came, a fresh lease: nothing is uncertain about it."""
        self.renewed_at[agent_id] = now
        self.renewed_at.move_to_end(agent_id)
        if agent_id in self.uncertain:
            del self.uncertain[agent_id]
            self.absent_since.pop(agent_id, None)
            if self.probed_until.pop(agent_id, None) is not None:
                self._proven_at[agent_id] = now

    def disconnect(self, agent_id: str, now: float) -> None:
        """Note that the agent's connection closed; the first close counts."""
        if agent_id in self.renewed_at:
            self.absent_since.setdefault(agent_id, now)
            self.uncertain[agent_id] = None

    def probe(self, agent_id: str, until: float) -> None:
        """Expect a sign of life of the agent before `until`; the first probe counts."""
        self.probed_until.setdefault(agent_id, until)
        self.uncertain[agent_id] = None

    def counts_copies_of(self, agent_id: str) -> bool:
        """Whether a repeated join, which may be a late copy, is a sign of life: no copy answers a probe."""
        if agent_id not in self.uncertain:
            return True
        return agent_id in self.absent_since and agent_id not in self.probed_until

    def is_proven(self, agent_id: str, now: float) -> bool:
        """Whether the agent has answered a probe within the last lease, and is not uncertain again."""
        return agent_id not in self.uncertain and now < self._proven_at.get(agent_id, float("-inf")) + self._lease_s

    def resume(self, now: float) -> None:
        """Give every agent a fresh lease, or a fresh grace: none could be heard until now."""
        for times in (self.renewed_at, self.absent_since):
            times.update(dict.fromkeys(times, now))
        for agent_id, until in self.probed_until.items():
            self.probed_until[agent_id] = max(until, now + self._grace_s)

    def restart(self, agent_ids: Iterable[str], now: float) -> None:
        """Give every agent a fresh lease after a restart of the server, which holds no connection yet."""
        for agent_id in agent_ids:
            self.renew(agent_id, now)
            self.uncertain[agent_id] = None

    def drop(self, agent_id: str) -> None:
        for entries in self._all():
            entries.pop(agent_id, None)

    def clear(self) -> None:
        for entries in self._all():
            entries.clear()

    def _all(self) -> tuple[dict[str, float] | OrderedDict[str, None], ...]:
        return self.renewed_at, self.uncertain, self.absent_since, self.probed_until, self._proven_at

    def is_connected(self, agent_id: str) -> bool:
        """Whether a connection carries the agent, as far as that is known."""
        is_known = agent_id not in self.uncertain or agent_id in self.probed_until
        return is_known and agent_id not in self.absent_since

    def ends_at(self, agent_id: str) -> float | None:
        """End of the agent's lease; None if it has none."""
        renewed_at = self.renewed_at.get(agent_id)
        return None if renewed_at is None else renewed_at + self._lease_s

    def expired(self, now: float) -> tuple[str, str] | None:
        """Id of an agent that is lost by now, and the cause in words; None while none is."""
        for agent_id, since in self.absent_since.items():
            if now >= since + self._grace_s:
                return agent_id, f"its connection closed and it was not back within {self._grace_s:g} s"
            break
        for agent_id, until in self.probed_until.items():
            if now >= until:
                return agent_id, "another agent of its node joined, and it gave no sign of life"
        for agent_id, renewed_at in self.renewed_at.items():
            if now >= renewed_at + self._lease_s:
                return agent_id, f"{NOT_HEARD} {self._lease_s:g} s"
            break
        return None

    def next_deadline(self) -> float | None:
        """Time at which the next agent is lost unless its lease is renewed before."""
        if not self.renewed_at:
            return None  # who has no lease is neither absent nor probed
        at = next(iter(self.renewed_at.values())) + self._lease_s
        if self.absent_since:
            at = min(at, next(iter(self.absent_since.values())) + self._grace_s)
        if self.probed_until:
            at = min(at, *self.probed_until.values())
        return at
