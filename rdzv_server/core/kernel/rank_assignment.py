"""Assignment of ranks to the participants of a round.

Group ranks are sticky: a participant keeps its own, a replacement takes a vacant one, and a shrink keeps the order.
Each node gets a key, and the nodes' group ranks follow the order of their keys. A node's key is its `--node-rank` if it
has one, else its last group rank, else its preferred rank, else the lowest free key. Nodes that have none of these get
their keys in the order of their `sort_key`, such as their place in the network's tree. Worker ranks follow the group
ranks, cumulative over each node's own `local_world_size`.

That is the policy `sticky`. With `topology` no rank is sticky: in every round, all nodes that did not ask for a rank
are in the order of their `sort_key`. So the nodes of one block stay together after a replacement. With `fill-gaps`, if
a round has fewer nodes, the last nodes move into the gaps and the others keep their ranks.
"""

from itertools import count
from math import inf

from rdzv_protocol.messages import Assignment, Start

from rdzv_server.core.kernel import restart_budget
from rdzv_server.core.kernel.run import Agent, Membership, Run, Seat


def order(run: Run, chosen: list[Agent]) -> list[Agent]:
    """Return the chosen agents in the order of their group ranks."""
    policy = run.settings.rank_policy
    keys = {agent.join.agent_id: agent.join.node_rank for agent in chosen if agent.join.node_rank is not None}
    taken = set(keys.values())
    ranks = {agent_id: seat.group_rank for agent_id, seat in run.seats.items()}
    for agent in chosen if ranks and policy != "topology" else ():
        agent_id = agent.join.agent_id
        rank = None if agent_id in keys else ranks.get(agent_id)
        if rank is not None and rank not in taken:
            keys[agent_id] = rank
            taken.add(rank)
    for agent in chosen:
        preferred = agent.join.preferred_rank
        if preferred is not None and preferred not in taken and agent.join.agent_id not in keys:
            keys[agent.join.agent_id] = preferred
            taken.add(preferred)
    newcomers = sorted(
        [agent for agent in chosen if agent.join.agent_id not in keys],
        key=lambda agent: (agent.join.sort_key, ranks.get(agent.join.agent_id, inf)),
    )
    if not keys:
        return newcomers
    vacant = (key for key in count() if key not in taken)
    keys.update((agent.join.agent_id, key) for agent, key in zip(newcomers, vacant, strict=False))
    if policy == "fill-gaps":
        _fill_gaps(keys, chosen)
    return sorted(chosen, key=lambda agent: keys[agent.join.agent_id])


def _fill_gaps(keys: dict[str, int], chosen: list[Agent]) -> None:
    """Move keys beyond the number of nodes into the gaps below it, except the keys of nodes that claim their rank."""
    taken = set(keys.values())
    gaps = (key for key in range(len(chosen)) if key not in taken)
    beyond = [agent for agent in chosen if keys[agent.join.agent_id] >= len(chosen) and agent.join.node_rank is None]
    for agent in sorted(beyond, key=lambda agent: keys[agent.join.agent_id]):
        keys[agent.join.agent_id] = next(gaps)


def assign(run: Run, ordered: list[Agent], reason: str, now: float) -> Membership:
    """Return the membership of the completing round.

    Takes O(n), with little work for each agent: `start` does the rest.
    """
    role_sizes: dict[str, int] = {}
    for agent in ordered:
        join = agent.join
        role_sizes[join.role] = role_sizes.get(join.role, 0) + join.local_world_size
    seats: dict[str, Seat] = {}
    first_rank, first_role_rank = 0, dict.fromkeys(role_sizes, 0)
    for group_rank, agent in enumerate(ordered):
        join = agent.join
        role, size = join.role, join.local_world_size
        seats[join.agent_id] = Seat(
            join.agent_id, join.node_id, group_rank, first_rank, size, first_role_rank[role], role_sizes[role]
        )
        first_rank += size
        first_role_rank[role] += size
    master = ordered[0].join
    return Membership(
        round=run.round,
        seats=seats,
        world_size=first_rank,
        master_addr=_master_addr(ordered),
        master_port=master.port,
        agent_store=master.hosts_store,
        restart_count=run.restart_count,
        reason=reason,
        restarts_used=restart_budget.used(run, now),
    )


def start(run: Run, agent_id: str) -> Start:
    """Return the directive with which a participant starts the last completed round."""
    membership = run.membership
    assert membership
    seat = membership.seats[agent_id]
    assignment = Assignment(
        round=membership.round,
        group_rank=seat.group_rank,
        group_world_size=len(membership.seats),
        first_rank=seat.first_rank,
        local_world_size=seat.local_world_size,
        world_size=membership.world_size,
        first_role_rank=seat.first_role_rank,
        role_world_size=seat.role_world_size,
        master_addr=membership.master_addr,
        master_port=membership.master_port,
        restart_count=membership.restart_count,
        max_restarts=run.settings.max_restarts,
        restarts_used=membership.restarts_used,
        agent_store=membership.agent_store,
    )
    return Start(assignment=assignment, reason=membership.reason)


def _master_addr(ordered: list[Agent]) -> str:
    """Return the address at which every participant reaches group rank 0.

    An agent on the server's own host may reach the server by a loopback address, and so report a loopback address as
    its own. The other participants cannot use that. They reach that host by the address at which they reach the server.
    """
    master, *others = ordered
    if others and _is_loopback(master.join.addr):
        for agent in others:
            if not _is_loopback(agent.join.addr):
                return agent.server_addr
    return master.join.addr


def _is_loopback(address: str) -> bool:
    from ipaddress import ip_address  # a standalone agent loads this file, too, without needing it

    try:
        return ip_address(address).is_loopback
    except ValueError:  # a name, from --local-addr
        return address == "localhost"
