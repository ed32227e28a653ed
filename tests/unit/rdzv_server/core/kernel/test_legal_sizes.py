"""Next legal size, compared with a search of all numbers of nodes."""

import pytest
from rdzv_protocol.settings import RunSettings

from rdzv_server.core.kernel import legal_sizes


@pytest.mark.parametrize("sizes", [{}, {"node_unit": 4}, {"node_unit": 3}, {"legal_sizes": (16, 4, 9)}])
@pytest.mark.parametrize(("low", "high"), [(1, 18), (5, 17), (9, 9)])
def test_the_next_legal_size_is_the_smallest_one_above(sizes: dict, low: int, high: int) -> None:
    settings = RunSettings(min_nodes=low, max_nodes=high, **sizes)
    legal = [size for size in range(1, high + 1) if legal_sizes.fitting(settings, size) == size]
    for nodes in range(high + 2):
        assert legal_sizes.above(settings, nodes) == min((size for size in legal if size > nodes), default=None)
