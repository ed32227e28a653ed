"""Legal sizes of a round: the numbers of nodes that it may have, from the minimum to the maximum.

Without `node_unit` and `legal_sizes`, every number between the two is legal. A round takes the largest legal size for
which there are enough nodes; the other nodes stand by.
"""

from rdzv_protocol.settings import RunSettings

from rdzv_server.words import sizes as words


def _given(settings: RunSettings) -> list[int]:
    """Return the given sizes that are within the limits, in ascending order."""
    return sorted(size for size in settings.legal_sizes if settings.min_nodes <= size <= settings.max_nodes)


def fitting(settings: RunSettings, nodes: int) -> int:
    """Return the largest legal size for which `nodes` nodes are enough; 0 if there is none."""
    nodes = min(nodes, settings.max_nodes)
    if settings.legal_sizes:
        return max((size for size in _given(settings) if size <= nodes), default=0)
    size = nodes - nodes % settings.node_unit
    return size if size >= settings.min_nodes else 0


def largest(settings: RunSettings) -> int:
    """Return the largest legal size, beyond which agents stand by; 0 if no size is legal."""
    if settings.node_unit == 1 and not settings.legal_sizes and settings.min_nodes <= settings.max_nodes:
        return settings.max_nodes  # every join asks for this
    return fitting(settings, settings.max_nodes)


def smallest(settings: RunSettings) -> int:
    """Return the smallest legal size. With fewer nodes the run waits."""
    if settings.legal_sizes:
        return min(_given(settings), default=settings.max_nodes)
    return settings.min_nodes + -settings.min_nodes % settings.node_unit


def above(settings: RunSettings, nodes: int) -> int | None:
    """Return the smallest legal size that needs more than `nodes` nodes; None if there is none."""
    if settings.legal_sizes:
        return min((size for size in _given(settings) if size > nodes), default=None)
    size = max(smallest(settings), nodes + settings.node_unit - nodes % settings.node_unit)
    return size if size <= settings.max_nodes else None


def shown(settings: RunSettings) -> str:
    """Return the legal sizes as text; empty if every number from the minimum to the maximum is legal."""
    if settings.legal_sizes:
        return words.legal_sizes(_given(settings))
    if settings.node_unit == 1 or settings.min_nodes == settings.max_nodes:
        return ""
    unit, low, high = settings.node_unit, smallest(settings), largest(settings)
    steps = range(low, high + 1, unit)
    return words.legal_sizes(steps) if len(steps) <= 4 else words.legal_steps(low, low + unit, high)


def none_of(settings: RunSettings) -> str:
    """Return a sentence about limits with no legal size between them."""
    given = sorted(settings.legal_sizes)
    return words.none_legal(given, settings.node_unit, settings.min_nodes, settings.max_nodes)
