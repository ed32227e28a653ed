"""Who is still there: a lease for each agent, and a shorter grace for one whose connection closed or that is in doubt.

An agent comes into doubt when a newcomer claims to be its node: it is asked for a sign of life.

All leases of a run are equally long, so the agent heard longest ago stands first: renewing moves it to the end, the
next deadline is the first entry, and neither depends on the number of nodes. A plain dict would not do: it finds its
first entry behind the places of all those that were taken out before.
"""

from collections import OrderedDict


class Leases:
    """The leases of one run's agents. Times are the server's monotonic clock, in seconds."""

    def __init__(self, lease_s: float, grace_s: float) -> None:
        self._lease_s = lease_s
        self._grace_s = grace_s
        self.heard_at: OrderedDict[str, float] = OrderedDict()
        self.absent_since: OrderedDict[str, float] = OrderedDict()
        self.doubted_until: dict[str, float] = {}
        self._proven_at: dict[str, float] = {}

    def renew(self, agent_id: str, now: float) -> None:
        """The agent was heard: a fresh lease, and no longer absent."""
        self.heard_at[agent_id] = now
        self.heard_at.move_to_end(agent_id)
        if self.absent_since:
            self.absent_since.pop(agent_id, None)
        if self.doubted_until and self.doubted_until.pop(agent_id, None) is not None:
            self._proven_at[agent_id] = now

    def disconnect(self, agent_id: str, now: float) -> None:
        """The agent's connection closed; the first close counts."""
        if agent_id in self.heard_at:
            self.absent_since.setdefault(agent_id, now)

    def doubt(self, agent_id: str, until: float) -> None:
        """The agent must be heard before `until`; the first doubt counts."""
        self.doubted_until.setdefault(agent_id, until)

    def is_proven(self, agent_id: str, now: float) -> bool:
        """Whether the agent has answered a doubt within the last lease."""
        return now < self._proven_at.get(agent_id, float("-inf")) + self._lease_s

    def drop(self, agent_id: str) -> None:
        for kept in (self.heard_at, self.absent_since, self.doubted_until, self._proven_at):
            kept.pop(agent_id, None)

    def clear(self) -> None:
        for kept in (self.heard_at, self.absent_since, self.doubted_until, self._proven_at):
            kept.clear()

    def expired(self, now: float) -> tuple[str, str] | None:
        """An agent that is lost by now, and how that is known; None while nobody is."""
        for agent_id, since in self.absent_since.items():
            if now >= since + self._grace_s:
                return agent_id, f"its connection closed and it was not back within {self._grace_s:g} s"
            break
        for agent_id, until in self.doubted_until.items():
            if now >= until:
                return agent_id, "another agent of its node joined, and it gave no sign of life"
        for agent_id, heard in self.heard_at.items():
            if now >= heard + self._lease_s:
                return agent_id, f"not heard for {self._lease_s:g} s"
            break
        return None

    def next_deadline(self) -> float | None:
        """When the next agent is lost unless it is heard before."""
        if not self.heard_at:
            return None  # who has no lease is neither absent nor in doubt
        at = next(iter(self.heard_at.values())) + self._lease_s
        if self.absent_since:
            at = min(at, next(iter(self.absent_since.values())) + self._grace_s)
        return min(at, *self.doubted_until.values()) if self.doubted_until else at
