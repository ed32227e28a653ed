"""Who is still there: a lease for each agent, and a shorter grace for one whose connection closed or that is in doubt.

An agent comes into doubt when a newcomer claims to be its node: it is asked for a sign of life.

All leases of a run are equally long, so the agent heard longest ago stands first in the dict: renewing is a
re-insertion, the next deadline is the first entry, and neither depends on the number of nodes.
"""


class Leases:
    """The leases of one run's agents. Times are the server's monotonic clock, in seconds."""

    def __init__(self, lease_s: float, grace_s: float) -> None:
        self._lease_s = lease_s
        self._grace_s = grace_s
        self.heard_at: dict[str, float] = {}
        self.absent_since: dict[str, float] = {}
        self.doubted_until: dict[str, float] = {}
        self._proven_at: dict[str, float] = {}

    def renew(self, agent_id: str, now: float) -> None:
        """The agent was heard: a fresh lease, and no longer absent."""
        self.heard_at.pop(agent_id, None)
        self.heard_at[agent_id] = now
        self.absent_since.pop(agent_id, None)
        if self.doubted_until.pop(agent_id, None) is not None:
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
        lease = next((heard + self._lease_s for heard in self.heard_at.values()), None)
        grace = next((since + self._grace_s for since in self.absent_since.values()), None)
        doubt = min(self.doubted_until.values(), default=None)
        return min((at for at in (lease, grace, doubt) if at is not None), default=None)
