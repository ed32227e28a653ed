"""What an agent is told that may not join a run."""


def min_above_max(min_nodes: int, max_nodes: int) -> str:
    return f"min_nodes {min_nodes} is above max_nodes {max_nodes}: ask for --nnodes MIN:MAX"


def fixed_below_min(fixed_nodes: int, min_nodes: int) -> str:
    return f"fixed_nodes {fixed_nodes} is below min_nodes {min_nodes}: such a run could never start"


def run_is_full(run_id: str, most: int) -> str:
    return f"run {run_id} holds {most} agents, as many as a run may"
