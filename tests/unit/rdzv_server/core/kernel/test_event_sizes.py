"""Sizes of large events: their sum, and what is left when the oldest are dropped."""

from hypothesis import given
from hypothesis import strategies as st

from rdzv_server.core.kernel.event_sizes import BLOCK_BYTES, EventSizes

SIZES = st.integers(400, 30_000)


def sizes_of(events: list[int], first: int = 1) -> EventSizes:
    sizes = EventSizes()
    for number, size in enumerate(events, first):
        sizes.add(number, size)
    return sizes


def test_many_events_take_few_numbers() -> None:
    sizes = sizes_of([500] * 11_000)
    assert sizes.total == 11_000 * 500
    assert len(sizes.blocks) <= sizes.total // BLOCK_BYTES


@given(st.lists(SIZES, min_size=1, max_size=60), st.lists(st.integers(1, 60), max_size=6), st.integers(1, 1_000))
def test_the_sum_of_dropped_sizes_is_exact_except_for_a_block(events: list[int], drops: list[int], first: int) -> None:
    sizes, end = sizes_of(events, first), first + len(events) - 1
    oldest = first
    for below in sorted(min(first + drop, end) for drop in drops):
        sizes.drop(oldest, below, end)
        oldest = max(oldest, below)
        assert sizes.total == sizes.open + sum(size for _, size in sizes.blocks)
        assert abs(sizes.total - sum(events[oldest - first :])) < BLOCK_BYTES + max(events)
    assert sizes.first_left(oldest, 0, end) == oldest
    assert sizes.first_left(oldest, sizes.total, end) == end + 1 or not sizes.open
    sizes.drop(oldest, end + 1, end)
    assert sizes.total == 0


@given(st.lists(SIZES, min_size=2, max_size=60), st.data())
def test_at_least_the_requested_number_of_bytes_is_dropped(events: list[int], data: st.DataObject) -> None:
    sizes, end = sizes_of(events), len(events)
    before, dropped = sizes.total, data.draw(st.integers(1, sizes.total))
    sizes.drop(1, sizes.first_left(1, dropped, end), end)
    assert before - sizes.total >= dropped - 1
