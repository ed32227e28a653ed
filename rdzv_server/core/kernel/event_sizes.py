"""Sizes of the large events that an attempt keeps: their total in bytes, and which events to drop to free some.

An event is large if it has evidence of a failure, or a long sentence. Other events are limited only by their number.
None takes more than about a kilobyte, most take half of it, and counting their bytes would make each join slower.

The sizes are added up in blocks of consecutive events, so they take only a few numbers for any number of events. If the
first events of a block are dropped, the size of the rest is an estimate: its share of the block.
"""

from math import ceil

from msgspec import Struct, field

BLOCK_BYTES = 64 << 10
"""Bytes of a block: the event that reaches this size ends it."""
LONG = 200
"""Characters above which the sentence of an event is long."""


class EventSizes(Struct):
    """Sizes of an attempt's large events."""

    total: int = 0
    """Bytes of all large events."""
    open: int = 0
    """Bytes of the last block, which is not full yet."""
    blocks: list[tuple[int, int]] = field(default_factory=list)
    """The other blocks: the number of the last event of each, and its bytes."""

    def add(self, number: int, size: int) -> None:
        """Note a large event, which is newer than all events noted before."""
        self.total += size
        self.open += size
        if self.open >= BLOCK_BYTES:
            self.blocks.append((number, self.open))
            self.open = 0

    def drop(self, first: int, below: int, end: int) -> None:
        """Note that the events from `first`, the oldest one, up to but not including `below` are dropped.

        `end`: number of the attempt's last event.
        """
        while self.blocks and self.blocks[0][0] < below:
            last, size = self.blocks.pop(0)
            self.total -= size
            first = last + 1
        if first >= below:
            return
        last, size = self.blocks[0] if self.blocks else (end, self.open)
        left = size * (last - below + 1) // (last - first + 1)
        self.total -= size - left
        if self.blocks:
            self.blocks[0] = last, left
        else:
            self.open = left

    def first_left(self, first: int, dropped: int, end: int) -> int:
        """Return the number of the oldest event that is left when `dropped` bytes from event `first` on are dropped."""
        for last, size in (*self.blocks, (end, self.open)):
            if size >= dropped:
                return first + ceil((last - first + 1) * dropped / size) if size else first
            dropped -= size
            first = last + 1
        return first
