"""Machines that take part under one node id, because they have the same `--node-id` or host name.

Each of them gets a seat, like agents of one machine that share its host name. But cordons, drains and the history of
failures apply to a node id, and a new agent takes the place of an absent one. So the server warns people.
"""

from collections.abc import Iterator, Mapping

from rdzv_server.core.kernel.run import Run, Seat
from rdzv_server.words import duplicate_node_ids as words

MOST_NAMED = 4
"""Most addresses that a warning names."""


def warning(run: Run, agent_id: str) -> str:
    """Return a warning for an agent of the running round whose node id another machine has, too; empty if none has."""
    if len(run.node_ids) == len(run.agents):
        return ""
    agent = run.agents.get(agent_id)
    if agent is None or len(run.node_ids[agent.node_id]) == 1:
        return ""
    return _sentence(run, agent.node_id)


def new_warnings(run: Run, seats_before: Mapping[str, Seat]) -> Iterator[tuple[str, str]]:
    """Yield each node id that several machines have in the round that has just begun, with its warning.

    Node ids whose agents all had seats in the previous round are left out.
    """
    if len(run.node_ids) == len(run.agents):
        return
    for node_id, agent_ids in run.node_ids.items():
        seated = [agent_id for agent_id in agent_ids if agent_id in run.seats]
        if not all(agent_id in seats_before for agent_id in seated) and (sentence := _sentence(run, node_id)):
            yield node_id, sentence


def _sentence(run: Run, node_id: str) -> str:
    addresses = list(dict.fromkeys(run.agents[each].join.addr for each in run.node_ids[node_id] if each in run.seats))
    if len(addresses) < 2:
        return ""
    named = ", ".join(addresses[:MOST_NAMED]) + (", ..." if len(addresses) > MOST_NAMED else "")
    return words.shared(node_id, len(addresses), named)
