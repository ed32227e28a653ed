"""Who may join a run, and who of those that joined gets a seat."""

from hmac import compare_digest
from itertools import islice

from rdzv_protocol.errors import AgentFenced, MalformedMessage, NodeRankTaken, ServerUnavailable, SettingsConflict
from rdzv_protocol.messages import JoinRequest
from rdzv_protocol.settings import RequestedSettings, RunSettings
from rdzv_protocol.timing import HOLDS_PER_LEASE

from rdzv_server.core import completion
from rdzv_server.core.run import Agent, AgentState, Run

MOST_AGENTS = 100_000
"""Of one run, those that stand by included; as many nodes as a round may have."""


class HolderInDoubt(ServerUnavailable):
    """Refused or not: that turns out when `holder`, the agent that has the `--node-rank`, is heard, or `until` then."""

    def __init__(self, message: str, holder: str, until: float) -> None:
        super().__init__(message)
        self.holder = holder
        self.until = until


def settings_of(join: JoinRequest) -> RunSettings:
    """The settings of the run that this join founds. Raises `MalformedMessage` when they cannot be met."""
    settings = join.settings.resolve()
    if settings.min_nodes > settings.max_nodes:
        raise MalformedMessage(
            f"min_nodes {settings.min_nodes} is above max_nodes {settings.max_nodes}: ask for --nnodes MIN:MAX"
        )
    return settings


def check(run: Run, join: JoinRequest, agreed: RequestedSettings | None) -> None:
    """Raise the refusal that this join deserves, if any. `agreed`: settings that are known to agree with the run's."""
    if agent := run.agents.get(join.agent_id):
        _check_identity(agent, join)
        return
    if len(run.agents) >= MOST_AGENTS:
        raise ServerUnavailable(f"run {run.run_id} holds {MOST_AGENTS} agents, as many as a run may")
    if join.agent_id in run.departed_ids or join.after_round > 0:
        raise AgentFenced(f"agent {join.agent_id} of node {join.node_id} is no longer part of run {run.run_id}")
    if join.settings != agreed and (conflicts := join.settings.conflicts(run.settings)):
        raise SettingsConflict(
            f"run {run.run_id} has other settings: {'; '.join(conflicts)}. "
            "Start every agent of a run with the same values, or leave them out to take the run's"
        )
    _check_node_rank(run, join)


def _check_identity(agent: Agent, join: JoinRequest) -> None:
    if not compare_digest(join.secret, agent.join.secret):
        raise AgentFenced(f"agent {agent.agent_id} has joined with another secret")
    if (join.node_id, join.node_rank) != (agent.node_id, agent.join.node_rank):
        raise MalformedMessage(f"agent {agent.agent_id} of node {agent.node_id} must keep its node id and --node-rank")


def _check_node_rank(run: Run, join: JoinRequest) -> None:
    holder = None if join.node_rank is None else run.node_ranks.get(join.node_rank)
    if holder is None or holder in run.leases.absent_since:
        return
    held = f"--node-rank {join.node_rank} of run {run.run_id} is taken by node {run.agents[holder].node_id}"
    if (until := run.leases.doubted_until.get(holder)) is not None:
        raise HolderInDoubt(f"{held}, which has been asked whether it lives", holder, until)
    raise NodeRankTaken(f"{held}: give every node its own, or leave it out")


def is_rejoining(run: Run, join: JoinRequest) -> bool:
    """Whether a known agent has stopped the workers of its last round and is ready for the next.

    Any other join of a known agent is a repeated or delayed copy of one that has been taken.
    """
    agent = run.agents[join.agent_id]
    return agent.state is AgentState.STOPPING and join.after_round == agent.round


def predecessors(run: Run, join: JoinRequest) -> list[str]:
    """Agents of a new agent's node, by id or --node-rank, whose connection is closed: it takes their place."""
    absent_since = run.leases.absent_since
    if not absent_since or join.agent_id in run.agents:
        return []
    absent = [agent_id for agent_id in _agents_of_node(run, join) if agent_id in absent_since]
    return sorted(absent, key=absent_since.__getitem__)


def doubtful(run: Run, join: JoinRequest, now: float) -> tuple[str, ...]:
    """Agents that claim to be the node of a newcomer, though their connections stand."""
    claimed = _agents_of_node(run, join)
    if not claimed or join.agent_id in run.agents or join.agent_id in run.departed_ids:
        return ()
    return tuple(
        agent_id
        for agent_id in claimed
        if agent_id not in run.leases.absent_since and not run.leases.is_proven(agent_id, now)
    )


def answers_until(run: Run, agent_id: str, now: float) -> float:
    """By when an agent that lives is heard if it is asked for a sign of life now.

    It polls at once when it is woken, or, while it stops its workers, twice in a lease.
    """
    poll_s = run.settings.lease_s / HOLDS_PER_LEASE
    return now + (1.5 * poll_s if agent_id in run.stopping else poll_s)


def _agents_of_node(run: Run, join: JoinRequest) -> tuple[str, ...]:
    """Agents of the node that joins, by its id or its --node-rank."""
    agents = run.node_ids.get(join.node_id, ())
    holder = None if join.node_rank is None else run.node_ranks.get(join.node_rank)
    return agents if holder is None or holder in agents else (*agents, holder)


def choose(run: Run) -> list[Agent]:
    """The waiting agents that get a seat: participants of the round before first, then by order of joining."""
    seats = run.settings.max_nodes
    taken = run.membership.seats if run.membership else {}
    old = [agent for agent_id, agent in run.waiting.items() if agent_id in taken] if taken else []
    new = (agent for agent_id, agent in run.waiting.items() if agent_id not in taken)
    chosen = old[:seats]
    return chosen + list(islice(new, seats - len(chosen)))


def free_seats(run: Run) -> int:
    """Seats that the running round could still fill. None once some have finished their work."""
    return 0 if run.succeeded else run.settings.max_nodes - len(run.running)


def next_scale_up(run: Run, now: float) -> float | None:
    """When the running round ends to admit those that wait: at once if they fill it, else when the window closes."""
    settings = run.settings
    if not run.waiting or free_seats(run) <= 0 or settings.scale_up == "manual":
        return None
    full = len(run.waiting) >= free_seats(run)
    at = now if full else run.scale_up_at if run.scale_up_at is not None else now + settings.scale_up_window_s
    if settings.scale_up == "cooldown":
        return max(at, run.started_at + settings.scale_up_cooldown_s)
    return at


def arrivals(run: Run) -> str:
    """Whom a scale-up admits."""
    admitted = min(len(run.waiting), free_seats(run))
    return f"admitting {admitted} more: {completion.names(run.waiting, admitted)}"
