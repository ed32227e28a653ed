"""Messages for an agent that may not join a run, or that joins a run with other settings than it asked for."""

from collections.abc import Iterable
from typing import Literal

from rdzv_protocol.text import count


def min_above_max(min_nodes: int, max_nodes: int) -> str:
    return f"min_nodes {min_nodes} is above max_nodes {max_nodes}: ask for --nnodes MIN:MAX"


def fixed_below_min(fixed_nodes: int, min_nodes: int) -> str:
    return f"fixed_nodes {fixed_nodes} is below min_nodes {min_nodes}: such a run could never start"


def grace_too_long(grace_s: float, most_s: float) -> str:
    return f"disconnect_grace_s is {grace_s:g}, but may be at most {most_s:g}: ask for a shorter --disconnect-grace"


def no_legal_size(none_legal: str) -> str:
    """`none_legal`: a message of that kind, from `words.sizes`."""
    return f"{none_legal}: ask for --nnodes MIN:MAX with a legal size in it"


def run_is_full(run_id: str, most: int) -> str:
    return f"run {run_id} already has {most} agents, the most that a run can have"


def other_secret(agent_id: str, run_id: str) -> str:
    return f"agent {agent_id} has joined run {run_id} with another secret: give each agent its own id"


def other_node(agent_id: str, node_id: str) -> str:
    """An agent joins again with another node id or `--node-rank`."""
    return f"agent {agent_id} joined as node {node_id}: it must join again with the same node id and --node-rank"


def fenced(agent_id: str, node_id: str, run_id: str) -> str:
    """An agent that the run has given up joins again."""
    return f"agent {agent_id} of node {node_id} is no longer part of run {run_id}"


def other_settings(run_id: str, conflicts: Iterable[str]) -> str:
    return (
        f"run {run_id} has other settings: {'; '.join(conflicts)}. "
        "Start every agent of a run with the same values, or leave them out to take the run's"
    )


def asks_for_other_settings(asked: Iterable[str]) -> str:
    """The same agent, for people who wait for its node. `asked`: its values beside the run's."""
    return ", ".join(asked)


def other_program(run_id: str, theirs: str, first_node: str, ours: str, node_id: str) -> str:
    return (
        f"run {run_id} runs {theirs} on node {first_node}, but node {node_id} would run {ours}. "
        "Give another --run-id if these are two runs, or give each program of one run its own --role"
    )


def runs_other_program(ours: str, theirs: str) -> str:
    """The same agent, for people who wait for its node."""
    return f"{ours} instead of {theirs}"


Likeness = Literal["nothing", "program", "command"]
"""Common part of two agents' different commands: with `command`, only the folder or the script's content differs."""


def _other_command(program: str, likeness: Likeness) -> str:
    """Return a phrase about a command that differs from another one. `program`: empty if it is unknown."""
    if program and likeness == "command":
        return f"another {program} (its folder or its content differs)"
    if program and likeness == "program":
        return f"{program} with other arguments"
    return program or "another command"


def succeeded_with_another(run_id: str, first_node: str, program: str, likeness: Likeness) -> str:
    """A succeeded run had another command than an agent that comes late. `program`: the run's; empty if unknown."""
    return (
        f"run {run_id} has already succeeded, but it ran {_other_command(program, likeness)} on node {first_node}. "
        "Give another --run-id to run this command, or --rerun to start this run again with this command"
    )


def not_wanted(run_id: str, nodes: int, node_id: str, program: str, likeness: Likeness) -> str:
    """A run has no free seat for an agent with another command. `program`: the agent's; empty if it named none."""
    what = _other_command(program, likeness)
    return (
        f"run {run_id} already has its {count(nodes)}. Node {node_id} would run {what}, so it cannot stand by. Give "
        "another --run-id to start another run, or use this run's command"
    )


def node_rank_taken(node_rank: int, run_id: str, node_id: str, last_rank: int, *, is_same_node: bool) -> str:
    """`last_rank`: highest group rank of the run. `is_same_node`: whether both agents have the same node id."""
    taken = f"{'another agent of ' * is_same_node}node {node_id} already has --node-rank {node_rank} of run {run_id}"
    if last_rank == 0:
        return f"{taken}, which has one node. Give another --run-id to start another run, or no --node-rank to stand by"
    return f"{taken}: give each node its own --node-rank, from 0 to {last_rank}"


def claims_taken_rank(node_rank: int, holder: str) -> str:
    """The same agent, for people who wait for its node. `holder`: the node that has the rank."""
    return f"--node-rank {node_rank}, which node {holder} has"


def resized(run_id: str, sizes: Iterable[str]) -> str:
    """An agent asks for another size than an operator gave the run."""
    return f"an operator has resized run {run_id}: {'; '.join(sizes)}"


def other_command(node_id: str, first_node: str) -> str:
    return (
        f"node {node_id} runs a different command than node {first_node}: give another --run-id if these are two runs"
    )
