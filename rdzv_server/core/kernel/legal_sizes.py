"""Legal sizes of a round: the numbers of nodes that it may have, from the minimum to the maximum.

Without `node_unit` and `legal_sizes` every number between the two is legal. A round takes the largest legal size that
the nodes suffice for, and the others stand by.
"""

from rdzv_protocol.settings import RunSettings

from rdzv_server.words import sizes as words


def _given(settings: RunSettings) -> list[int]:
    """Sizes that were given and are within the limits, the smallest first."""
    return sorted(size for size in settings.legal_sizes if settings.min_nodes <= size <= settings.max_nodes)


def fitting(settings: RunSettings, nodes: int) -> int:
    """Largest legal size that `nodes` suffice for; 0: they are too few for any."""
    nodes = min(nodes, settings.max_nodes)
    if settings.legal_sizes:
        return max((size for size in _given(settings) if size <= nodes), default=0)
    size = nodes - nodes % settings.node_unit
    return size if size >= settings.min_nodes else 0


def largest(settings: RunSettings) -> int:
    """Largest legal size, beyond which an agent stands by; 0: no size is legal."""
    if settings.node_unit == 1 and not settings.legal_sizes and settings.min_nodes <= settings.max_nodes:
        return settings.max_nodes  # asked for with every join
    return fitting(settings, settings.max_nodes)


def smallest(settings: RunSettings) -> int:
    """Smallest legal size, below which the run waits."""
    if settings.legal_sizes:
        return min(_given(settings), default=settings.max_nodes)
    return settings.min_nodes + -settings.min_nodes % settings.node_unit


def above(settings: RunSettings, nodes: int) -> int | None:
    """Smallest legal size that `nodes` do not suffice for; None: they suffice for all."""
    if settings.legal_sizes:
        return min((size for size in _given(settings) if size > nodes), default=None)
    size = max(smallest(settings), nodes + settings.node_unit - nodes % settings.node_unit)
    return size if size <= settings.max_nodes else None


def shown(settings: RunSettings) -> str:
    """The legal sizes in words; empty if every number from the minimum to the maximum is legal."""
    if settings.legal_sizes:
        return words.legal_sizes(_given(settings))
    if settings.node_unit == 1 or settings.min_nodes == settings.max_nodes:
        return ""
    unit, low, high = settings.node_unit, smallest(settings), largest(settings)
    steps = range(low, high + 1, unit)
    return words.legal_sizes(steps) if len(steps) <= 4 else words.legal_steps(low, low + unit, high)


def none_of(settings: RunSettings) -> str:
    """Sentence about limits with no legal size between them."""
    given = sorted(settings.legal_sizes)
    return words.none_legal(given, settings.node_unit, settings.min_nodes, settings.max_nodes)
