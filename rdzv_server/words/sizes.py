"""Legal sizes of a round."""

from collections.abc import Sequence


def legal_sizes(sizes: Sequence[int]) -> str:
    return f"legal sizes {', '.join(map(str, sizes))}"


def legal_steps(first: int, second: int, last: int) -> str:
    """Many legal sizes with equal steps."""
    return f"legal sizes {first}, {second}, ..., {last}"


def none_legal(sizes: Sequence[int], node_unit: int, min_nodes: int, max_nodes: int) -> str:
    """No legal size is within the limits. `sizes`: the given sizes; if empty, multiples of the unit are legal."""
    legal = ", ".join(map(str, sizes)) or f"a multiple of {node_unit}"
    if min_nodes == max_nodes:
        return f"{max_nodes} is not a legal size ({legal})"
    return f"no legal size ({legal}) is from {min_nodes} to {max_nodes} nodes"
