"""Which rank each participant gets.

Group ranks are sticky: a participant keeps its own, a replacement takes a vacant one, and a shrink keeps the order.
Each node gets a key, and the order of the keys is the order of the group ranks: a node's key is its `--node-rank` if
it has one, else its last group rank, else the lowest key that nobody has. Worker ranks follow the group ranks,
cumulative over each node's own local_world_size.
"""

from collections import Counter
from ipaddress import ip_address
from itertools import count

from protocol.messages import Assignment
from rdzv_server.core.run import Agent, Membership, Run, Seat


def order(run: Run, chosen: list[Agent]) -> list[Agent]:
    """The chosen agents by group rank."""
    keys: dict[str, int] = {}
    for agent in chosen:
        if agent.join.node_rank is not None:
            keys[agent.agent_id] = agent.join.node_rank
    taken = set(keys.values())
    for agent in chosen:
        seat = run.seat_of(agent.agent_id)
        if agent.agent_id not in keys and seat and seat.group_rank not in taken:
            keys[agent.agent_id] = seat.group_rank
            taken.add(seat.group_rank)
    vacant = (key for key in count() if key not in taken)
    for agent in chosen:
        if agent.agent_id not in keys:
            keys[agent.agent_id] = next(vacant)
    return sorted(chosen, key=lambda agent: keys[agent.agent_id])


def assign(run: Run, ordered: list[Agent], restart_count: int) -> tuple[Membership, dict[str, Assignment]]:
    """The membership of the round that completes, and each participant's assignment by agent id. O(n)."""
    world_size = sum(agent.join.local_world_size for agent in ordered)
    role_sizes: Counter[str] = Counter()
    for agent in ordered:
        role_sizes[agent.join.role] += agent.join.local_world_size
    master_addr = _master_addr(ordered)
    seats: dict[str, Seat] = {}
    assignments: dict[str, Assignment] = {}
    first_rank, first_role_rank = 0, Counter[str]()
    for group_rank, agent in enumerate(ordered):
        join = agent.join
        seats[join.agent_id] = Seat(join.agent_id, join.node_id, group_rank, first_rank, join.local_world_size)
        assignments[join.agent_id] = Assignment(
            round=run.round,
            group_rank=group_rank,
            group_world_size=len(ordered),
            first_rank=first_rank,
            local_world_size=join.local_world_size,
            world_size=world_size,
            first_role_rank=first_role_rank[join.role],
            role_world_size=role_sizes[join.role],
            master_addr=master_addr,
            master_port=ordered[0].join.port,
            restart_count=restart_count,
            max_restarts=run.settings.max_restarts,
            agent_store=ordered[0].join.hosts_store,
        )
        first_rank += join.local_world_size
        first_role_rank[join.role] += join.local_world_size
    return Membership(run.round, seats), assignments


def _master_addr(ordered: list[Agent]) -> str:
    """Where every participant reaches group rank 0.

    An agent on the server's own host may reach the server, and so name itself, by a loopback address that means nothing
    to the others. They reach that host by the address at which they reach the server.
    """
    master = ordered[0]
    if _is_loopback(master.join.addr):
        for agent in ordered:
            if not _is_loopback(agent.join.addr):
                return agent.server_addr
    return master.join.addr


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:  # a name, from --local-addr
        return address == "localhost"
