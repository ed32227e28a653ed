"""Sizes of the large events that an attempt keeps: their bytes together, and which events to drop for so many bytes.

An event is large if it has evidence of a failure, or a long sentence. The others are limited by their number alone:
none takes more than about a kilobyte, most take half of it, and counting their bytes would cost each join something.

The sizes are added up in blocks of events that follow each other. So they take a few numbers however many events there
are, and what is left of a block whose first events are dropped is an estimate: its share.
"""

from math import ceil

from msgspec import Struct, field

BLOCK_BYTES = 64 << 10
"""Bytes of a block: it ends with the event that brings it there."""
LONG = 200
"""Characters beyond which the sentence of an event is long."""


class EventSizes(Struct):
    """Sizes of an attempt's large events."""

    total: int = 0
    """Bytes of all of them, as far as they are known: a snapshot of an older server does not tell."""
    open: int = 0
    """Bytes of the last block, which is not full yet."""
    blocks: list[tuple[int, int]] = field(default_factory=list)
    """Number of the last event of each other block, and the bytes of the block."""

    def add(self, number: int, size: int) -> None:
        """Note a large event, which comes after those noted so far."""
        self.total += size
        self.open += size
        if self.open >= BLOCK_BYTES:
            self.blocks.append((number, self.open))
            self.open = 0

    def drop(self, first: int, below: int, end: int) -> None:
        """Note that the events from `first` on, which is the oldest one, are dropped as far as they are below.

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
        """Return the number of the oldest event that is left if so many bytes are dropped, from `first` on."""
        for last, size in (*self.blocks, (end, self.open)):
            if size >= dropped:
                return first + ceil((last - first + 1) * dropped / size) if size else first
            dropped -= size
            first = last + 1
        return first
