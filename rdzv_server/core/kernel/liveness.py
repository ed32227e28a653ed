"""Liveness of agents: a lease for each agent, and a shorter time for an agent that may be dead.

An agent is uncertain while its connection is closed, and after a restart of the server until its lease is renewed. It
is also uncertain while it is probed: another agent claims to be its node, so the server asks it for a sign of life. An
uncertain agent keeps its place, but gets no seat.

The server's own trouble is no evidence against agents. Deadlines do not count time in which the server's process stood
still. If the server answered no agent for a time after which agents may have given it up, each agent gets one fresh
lease. The close of its connection does not count until the server hears the agent. Since each agent gets only one such
lease, endless trouble does not keep a lost agent in the run.

The server reads messages from the time of the trouble later, in any order. The agent may no longer wait for the answer
to such a poll. So these polls do not make the close of a connection count.

If several nodes vanish at once, the likelier cause is the network path to the server. So the server ignores the grace
and waits for the agents' leases, and does not blame a node, in three cases:

- Connections of several nodes close at the same time.
- All other agents of the run are away when the connection closes. A proxy that restarts twice may have let back only
  this one.
- When the grace ends, the server has not heard another agent since the close, and no other agent waits for an answer. A
  proxy that restarts between the requests of agents breaks only a connection on which an agent waits.

Such a lease counts from the close: the agent's poll was parked, so it had nothing to send before. So a node survives a
path that is broken for less than a lease.

If all agents of a run are silent, a verdict helps none of them. So a loss needs a witness: an agent that the server
hears. For a grace, one agent must be certain when the grace ends, and the server must have heard it recently. For a
lease, the server must hear one after the lost agent is overdue.

Leases need a witness only while workers run, because a wrong verdict would stop them. If the server hears an agent
after a time in which it heard none, that agent is no witness for that time. Each of the others gets one fresh lease.

All leases of a run have the same length. Renewing a lease moves its entry to the end, so the first entry is the next
deadline. Neither takes longer with more nodes. A plain dict would be slower: to find its first entry, it steps over the
places of all entries that were removed before.
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator
from math import inf
from operator import itemgetter
from typing import Any

from msgspec import Struct
from rdzv_protocol.timing import HOLDS_PER_LEASE

from rdzv_server.words import losses as words

OVERDUE = 1.2 / HOLDS_PER_LEASE
"""Part of a lease after which a silent agent is overdue. An agent polls `HOLDS_PER_LEASE` times in each lease."""
TOGETHER, TOGETHER_S = 3, 1.0
"""If the connections of this many nodes, of any runs, close within this many seconds, the path to them is at fault."""
MOST_CLOSINGS = 256
"""Number of latest closings that are compared. If there are more within a second, these are enough to decide."""

RETURN_S = 3.0
"""Seconds for which other agents may still be away when one has returned on a path that works again. Agents try at
least that often."""
READ_WITHIN_S = 1.0
"""Seconds after trouble of the server in which it may still read closes from the time of the trouble."""
UNREAD_S = 0.5
"""Seconds after a close in which the server may still read what agents have sent before it."""
UNANSWERED = 0.5
"""Part of a lease after which agents may give up a server that does not answer: less than the agents' own limit."""


class HoldUp(Struct, frozen=True):
    """Trouble of the server that is over.

    `still_s`: seconds in which the process stood still, so that it could not hear agents. `silent_s`: seconds in which
    an agent may have waited for an answer in vain.
    """

    still_s: float = 0.0
    silent_s: float = 0.0


class Closing(Struct, frozen=True):
    """Close of a connection while an agent's poll was parked on it."""

    run_id: str
    node_id: str
    at: float


class Closings:
    """Latest closes, in all runs."""

    def __init__(self) -> None:
        self._latest: deque[Closing] = deque(maxlen=MOST_CLOSINGS)

    def note(self, closing: Closing) -> None:
        self._latest.append(closing)

    def is_shared(self, closing: Closing) -> bool:
        """Return whether another node of the run, or two nodes of any runs, vanished at about the same time."""
        others: set[str] = set()
        for each in reversed(self._latest):
            if each.at <= closing.at - TOGETHER_S:
                break
            if each.at < closing.at + TOGETHER_S and each.node_id != closing.node_id:
                others.add(each.node_id)
                if each.run_id == closing.run_id or len(others) >= TOGETHER - 1:
                    return True
        return False


class Loss(Struct, frozen=True):
    """Agent that is lost, and why.

    `excuse`: why the loss does not blame the agent's node; empty if the agent's node is blamed. `is_expired`: whether
    its lease has ended.
    """

    agent_id: str
    cause: str
    excuse: str = ""
    is_expired: bool = False


class Leases:
    """The leases of one run's agents. Times are in seconds by the server's clock."""

    def __init__(self, lease_s: float, grace_s: float, run_id: str = "") -> None:
        self._lease_s = lease_s
        self._grace_s = grace_s
        self._overdue_s = OVERDUE * lease_s
        self._run_id = run_id
        self.all_closings = Closings()
        """Closings of all runs of the server."""
        self.renewed_at: OrderedDict[str, float] = OrderedDict()
        self.heard_at = -inf
        """Time at which the server last heard any of these agents. Only leases that count from a close may be later."""
        self.uncertain: OrderedDict[str, None] = OrderedDict()
        """Agents that get no seat until their leases are renewed."""
        self.absent_since: OrderedDict[str, float] = OrderedDict()
        """Times at which the connections of absent agents closed, or since when their grace counts."""
        self.unconnected: dict[str, None] = {}
        """Agents without a connection, because it was closed or because the server has restarted."""
        self.suspects: set[str] = set()
        """Uncertain agents that vanished together with others: their leases decide, and no node is blamed."""
        self.probed_until: dict[str, float] = {}
        self.excused: set[str] = set()
        """Agents with a fresh lease because of the server's trouble. They get no other one until they are heard."""
        self.unheard: set[str] = set()
        """Agents that the server has not heard since it restarted."""
        self._returned_at = -inf
        """Time at which an absent agent was last heard again."""
        self.certain_at = -inf
        """Time at which an uncertain agent was last heard."""
        self._excused_at = -inf
        """End of the server's latest trouble after which agents got a fresh lease."""
        self.spared: dict[str, float] = {}
        """Agents with a fresh lease since another agent was heard again, each with the time since which none was
        heard."""
        self.awaits_witness = False
        """Whether a lease has ended that counts only once the server hears another agent."""
        self.parked: int | None = None
        """Number of these agents' polls that wait for an answer; None if the server does not count them."""
        self.unread_since = inf
        """Arrival of the oldest message that the server has not read, which may be a sign of life of any agent."""
        self._closings: dict[str, Closing] = {}
        """Close of each absent agent's connection."""
        self._graces: OrderedDict[str, float] = OrderedDict()
        """Times of `absent_since` of the agents whose grace still decides."""
        self._proven_at: dict[str, float] = {}

    def renew(self, agent_id: str, now: float) -> None:
        """Give a fresh lease to an agent that the server has heard: the agent is certain again."""
        if now > self.heard_at:
            if now > self.heard_at + self._overdue_s and self.renewed_at:
                self._spare(now)
            self.heard_at, self.awaits_witness = now, False
        self.renewed_at[agent_id] = now
        self.renewed_at.move_to_end(agent_id)
        if self.excused:
            self.excused.discard(agent_id)
        if self.unheard:
            self.unheard.discard(agent_id)
        if self.unconnected:
            self.unconnected.pop(agent_id, None)
        if agent_id in self.uncertain:
            del self.uncertain[agent_id]
            self.certain_at = now
            self.suspects.discard(agent_id)
            self.spared.pop(agent_id, None)
            if agent_id in self.absent_since:
                self._returned_at = now
            self._forget_closing(agent_id)
            if self.probed_until.pop(agent_id, None) is not None:
                self._proven_at[agent_id] = now

    def _spare(self, now: float) -> None:
        """Give every agent a fresh lease, since none was heard for a while: the path to them may have been broken."""
        self.suspect_all()
        spared = [agent_id for agent_id in self.renewed_at if agent_id not in self.spared]
        self.spared.update(dict.fromkeys(spared, self.heard_at))
        self._excuse(spared, now)

    def suspect_all(self) -> None:
        """Mark every agent as uncertain and suspect the path to them, because the server heard none of them."""
        self.uncertain.update(dict.fromkeys(self.renewed_at))
        self.suspects.update(self.renewed_at)
        self._graces.clear()

    def give_up(self, agent_ids: Collection[str]) -> None:
        """Take back spared agents' fresh leases: each ends as if its agent was heard when the latest was."""
        since = max((self.spared[agent_id] for agent_id in agent_ids), default=-inf)
        for agent_id in agent_ids:
            self.renewed_at[agent_id] = since
            self.renewed_at.move_to_end(agent_id, last=False)

    @property
    def is_any_certain(self) -> bool:
        """Whether at least one agent is certain."""
        return len(self.uncertain) < len(self.renewed_at)

    @property
    def is_none_connected(self) -> bool:
        """Whether no agent has a connection."""
        return len(self.unconnected) == len(self.renewed_at)

    def are_silent(self, now: float) -> bool:
        """Return whether the server did not hear from any agent for a lease."""
        return bool(self.renewed_at) and min(now, self.unread_since) >= self.heard_at + self._lease_s

    def are_gone(self, now: float) -> bool:
        """Return whether the connection of every agent is closed, and all graces are over."""
        if self.is_any_certain or len(self.absent_since) < len(self.renewed_at):
            return False
        return all(now >= since + self._grace_s for since in self.absent_since.values())

    def _forget_closing(self, agent_id: str) -> None:
        self.absent_since.pop(agent_id, None)
        self._closings.pop(agent_id, None)
        self._graces.pop(agent_id, None)

    def disconnect(self, agent_id: str, now: float, *, node_id: str = "") -> None:
        """Note that the agent's connection closed while its poll was parked; only the first close counts.

        If the server did not answer the agent, the agent may have closed the connection for that: then its lease
        decides.
        """
        if agent_id not in self.renewed_at or agent_id in self.absent_since:
            return
        self.uncertain[agent_id] = self.unconnected[agent_id] = None
        if agent_id in self.excused or now <= self._excused_at + READ_WITHIN_S:
            return
        self.absent_since[agent_id] = now
        if not self.is_any_certain and len(self.renewed_at) > 1:
            self.suspects.add(agent_id)  # nothing shows that the path to the server works
        else:
            self._graces[agent_id] = now
        closing = self._closings[agent_id] = Closing(self._run_id, node_id or agent_id, now)
        self.all_closings.note(closing)

    def hang_up(self, agent_id: str) -> None:
        """Note that the agent has no connection. That alone is no sign that it is gone."""
        if agent_id in self.renewed_at:
            self.unconnected[agent_id] = None

    def corroborates(self, agent_id: str) -> bool:
        """Return whether the agent's absence and the failures of other nodes' workers explain each other."""
        return agent_id in self._closings

    def is_missing(self, agent_id: str) -> bool:
        """Return whether the agent has no connection, as after a restart of the server, and owes a sign of life."""
        return agent_id in self.uncertain and agent_id in self.unconnected

    def unheard_since(self, at: float) -> Iterator[str]:
        """Yield the agents that are uncertain, or that the server has not heard since this time, perhaps twice."""
        yield from self.uncertain
        yield from self.excused
        for agent_id, renewed_at in self.renewed_at.items():
            if renewed_at >= at:
                return
            yield agent_id

    def should_return_by(self, agent_ids: Iterable[str]) -> float:
        """Return when these absent agents would be back if only their path had been broken.

        That is the end of the last grace, and some time after the latest return of another one.
        """
        graces_end = self._grace_s + max(self.absent_since[agent_id] for agent_id in agent_ids)
        return max(graces_end, self._returned_at + RETURN_S)

    def is_suspect(self, agent_id: str) -> bool:
        """Return whether the agent has vanished together with others, so that the path to it is suspected."""
        closing = self._closings.get(agent_id)
        return agent_id in self.suspects or (closing is not None and self.all_closings.is_shared(closing))

    def suspect(self, agent_id: str) -> None:
        """Note that the agent fell silent together with others."""
        self.suspects.add(agent_id)
        self.uncertain[agent_id] = None
        self._graces.pop(agent_id, None)

    def probe(self, agent_id: str, until: float) -> None:
        """Expect a sign of life of the agent before `until`; only the first probe counts."""
        self.probed_until.setdefault(agent_id, until)
        self.uncertain[agent_id] = None

    def counts_copies_of(self, agent_id: str) -> bool:
        """Return whether a repeated join, which may be a late copy, counts as a sign of life.

        A copy does not answer a probe.
        """
        if agent_id not in self.uncertain:
            return True
        return agent_id in self.absent_since and agent_id not in self.probed_until

    def is_proven(self, agent_id: str, now: float) -> bool:
        """Return whether the agent has answered a probe within the last lease, and is not uncertain again."""
        return agent_id not in self.uncertain and now < self._proven_at.get(agent_id, float("-inf")) + self._lease_s

    def resume(self, now: float, hold_up: HoldUp) -> None:
        """Make up for a time in which the server could not hear agents, or could not answer them."""
        if hold_up.still_s:
            for times in (self.renewed_at, self.absent_since, self._graces):
                for agent_id, at in times.items():
                    times[agent_id] = min(now, at + hold_up.still_s)
            for agent_id in self.probed_until:
                self.probed_until[agent_id] += hold_up.still_s
            self.heard_at = min(now, self.heard_at + hold_up.still_s)
            self._returned_at = min(now, self._returned_at + hold_up.still_s)
        if hold_up.silent_s >= self._lease_s * UNANSWERED:
            self._excuse([agent_id for agent_id in self.renewed_at if agent_id not in self.excused], now)
            self.heard_at = self._excused_at = now
        self.awaits_witness = False

    def _excuse(self, agent_ids: Collection[str], now: float) -> None:
        """Give the agents a fresh lease. Closes of their connections until now do not count."""
        self.excused.update(agent_ids)
        for agent_id in agent_ids:
            self.renewed_at[agent_id] = now
            self.renewed_at.move_to_end(agent_id)
            self._forget_closing(agent_id)
            if agent_id in self.probed_until:
                self.probed_until[agent_id] = max(self.probed_until[agent_id], now + self._grace_s)

    def restart(self, agent_ids: Iterable[str], now: float) -> None:
        """Give every agent a fresh lease after a restart of the server, which has no connection yet."""
        for agent_id in agent_ids:
            self.renew(agent_id, now)
            self.uncertain[agent_id] = self.unconnected[agent_id] = None
            self.unheard.add(agent_id)

    def drop(self, agent_id: str) -> None:
        if self.suspects or self.excused or self.unheard:
            self.suspects.discard(agent_id)
            self.excused.discard(agent_id)
            self.unheard.discard(agent_id)
        for entries in self._all():
            if entries:
                entries.pop(agent_id, None)
        if self.renewed_at:  # an agent that is gone is no witness
            self.heard_at = min(self.heard_at, next(reversed(self.renewed_at.values())))

    def clear(self) -> None:
        self.suspects.clear()
        self.excused.clear()
        self.unheard.clear()
        for entries in self._all():
            entries.clear()

    def _all(self) -> tuple[dict[str, Any], ...]:
        return (
            self.renewed_at, self.uncertain, self.absent_since, self.probed_until, self._closings, self._graces,
            self._proven_at, self.spared, self.unconnected,
        )  # fmt: skip

    def is_connected(self, agent_id: str) -> bool:
        """Return whether the agent has a connection, as far as the server knows."""
        is_known = agent_id not in self.uncertain or agent_id in self.probed_until
        return is_known and agent_id not in self.absent_since

    @property
    def disconnected(self) -> int:
        """Number of agents that are not `is_connected`."""
        return len(self.uncertain) - sum(agent_id not in self.absent_since for agent_id in self.probed_until)

    def ends_at(self, agent_id: str) -> float | None:
        """Return the end of the agent's lease; None if it has none."""
        renewed_at = self.renewed_at.get(agent_id)
        return None if renewed_at is None else renewed_at + self._lease_s

    def lost_at(self, agent_id: str) -> float | None:
        """Return the time at which the agent is lost unless the server hears it before; None if it has no lease.

        That is the end of its lease, or the end of its grace if the grace can decide.
        """
        ends_at, since = self.ends_at(agent_id), self._graces.get(agent_id)
        if ends_at is None or since is None or not self.is_any_certain or self.is_suspect(agent_id):
            return ends_at
        return min(ends_at, since + self._grace_s)

    def missed_since(self, agent_id: str, now: float) -> float:
        """Return when the agent's connection closed, or else when it was last heard; now if it has no lease."""
        heard_at = self.renewed_at.get(agent_id, now)
        return self.absent_since.get(agent_id, self.spared.get(agent_id, heard_at))

    def overdue(self, now: float) -> Iterator[str]:
        """Yield the overdue agents, the one that was silent longest first."""
        for agent_id, renewed_at in self.renewed_at.items():
            if now <= renewed_at + self._overdue_s:
                break
            yield agent_id

    def settle(self, now: float, *, needs_witness: bool = False) -> None:
        """Do what follows from the time that has passed, other than a loss: `expired` then says which agent is lost.

        Graces that decide nothing end, leases begin to count from closes, or a lease begins to wait for a witness.
        `needs_witness`: whether leases need one.
        """
        now = min(now, self.unread_since)
        while (agent_id := self._out_of_grace(now)) is not None and not self._is_decisive(agent_id):
            self.suspects.add(agent_id)
            del self._graces[agent_id]
        if self._lost_before_lease(now):
            return
        if (agent_id := self._out_of_lease(now)) is not None and self._counts_from_close(agent_id):
            self._count_from_closes()
            agent_id = self._out_of_lease(now)
        if agent_id is not None and needs_witness and not self._is_witnessed(agent_id):
            self.awaits_witness = True

    def expired(self, now: float, *, needs_witness: bool = False) -> Loss | None:
        """Return an agent that is lost by now, after `settle`; None if there is none.

        A deadline passes only after the server has read everything that arrived before it.
        """
        now = min(now, self.unread_since)
        if lost := self._lost_before_lease(now):
            return lost
        agent_id = self._out_of_lease(now)
        if agent_id is None:
            return None
        is_witnessed = self._is_witnessed(agent_id)
        if needs_witness and not is_witnessed:
            return None
        excuse = words.OTHERS_VANISHED if self.is_suspect(agent_id) else ""
        excuse = excuse if is_witnessed else words.NO_AGENT_HEARD
        return Loss(agent_id, words.not_heard(self._lease_s), excuse, is_expired=True)

    def _lost_before_lease(self, now: float) -> Loss | None:
        """Return an agent that is lost because its grace has ended, or because it has not answered a probe."""
        agent_id = self._out_of_grace(now)
        if agent_id is not None and self._is_decisive(agent_id):
            return Loss(agent_id, words.not_back(self._grace_s))
        for agent_id, until in self.probed_until.items():
            if now >= until:
                return Loss(agent_id, words.PROBE_UNANSWERED)
        return None

    def _counts_from_close(self, agent_id: str) -> bool:
        """Return whether the agent's lease should count from the close of its connection, and does not yet.

        A close that comes long after the agent's next poll was due is no sign of life: TCP has given up a silent host.
        """
        closing, renewed_at = self._closings.get(agent_id), self.renewed_at[agent_id]
        if closing is None or not renewed_at < closing.at <= renewed_at + self._overdue_s:
            return False
        return self.is_suspect(agent_id)

    def _count_from_closes(self) -> None:
        for agent_id in filter(self._counts_from_close, list(self._closings)):
            self.renewed_at[agent_id] = self._closings[agent_id].at
        self.renewed_at = OrderedDict(sorted(self.renewed_at.items(), key=itemgetter(1)))

    def _out_of_grace(self, now: float) -> str | None:
        """Return the agent whose grace was the first to end; None if none has ended, or if it has no witness."""
        ends_at = self._grace_ends_at()
        return None if ends_at is None or now < ends_at else next(iter(self._graces))

    def _is_decisive(self, agent_id: str) -> bool:
        """Return whether the end of the agent's grace shows that the agent is lost."""
        return not self.is_suspect(agent_id) and self._works_since(self.absent_since[agent_id])

    def _grace_ends_at(self) -> float | None:
        """Return the end of the first grace; None if it has no witness."""
        if not self._graces or not self.is_any_certain:
            return None
        ends_at = next(iter(self._graces.values())) + self._grace_s
        return ends_at if ends_at <= self.heard_at + self._overdue_s else None

    def _works_since(self, closed_at: float) -> bool:
        """Return whether the path to the agents is known to have worked since the close of a connection."""
        return self.parked is None or self.parked > 0 or self.heard_at > closed_at + UNREAD_S

    def _out_of_lease(self, now: float) -> str | None:
        """Return the agent whose lease was the first to end; None if none has ended."""
        agent_id = next(iter(self.renewed_at), None)
        return None if agent_id is None or now < self.renewed_at[agent_id] + self._lease_s else agent_id

    def _is_witnessed(self, agent_id: str) -> bool:
        """Return whether the server has heard another agent after this one was overdue."""
        return self.heard_at >= self.renewed_at[agent_id] + self._overdue_s

    def next_deadline(self) -> float | None:
        """Return when the next agent is lost unless its lease is renewed before, or when all agents are silent."""
        if not self.renewed_at:
            return None  # an agent without a lease is neither absent nor probed
        at = (self.heard_at if self.awaits_witness else next(iter(self.renewed_at.values()))) + self._lease_s
        if self._graces and (ends_at := self._grace_ends_at()) is not None:
            at = min(at, ends_at)
        if self.probed_until:
            at = min(at, *self.probed_until.values())
        return at
