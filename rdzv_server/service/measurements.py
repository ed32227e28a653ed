"""Measurements of one server since its process began, for `/metrics`: plain numbers, so that counting costs nothing."""

from collections.abc import Sequence

from rdzv_protocol.exposition import Histogram

REQUEST_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""A request takes 0.2 ms by itself; after 10 s a peer is cut off."""
STORE_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""SQLite writes within a millisecond, a disk that is busy takes a hundred."""
BATCH_BOUNDS = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0)


class Measurements:
    """What a server has done, whichever shards it led meanwhile."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, int], Histogram] = {}
        """By path and status: seconds of each answer, without the time for which it was held as a long poll."""
        self.store_writes = Histogram(STORE_BOUNDS_S)
        self.store_batches = Histogram(BATCH_BOUNDS)
        self.store_failures = 0
        """Attempts to write that the store refused."""
        self.store_outages = 0
        """Times that it began to refuse them."""
        self.elections_won = 0

    def answered(self, path: str, status: int, duration_s: float) -> None:
        """A request has been answered. `path`: one of a few."""
        histogram = self.requests.get((path, status))
        if histogram is None:
            histogram = self.requests[path, status] = Histogram(REQUEST_BOUNDS_S)
        histogram.observe(duration_s)

    def written(self, records: Sequence[object], duration_s: float) -> None:
        """The store has written a batch."""
        self.store_writes.observe(duration_s)
        self.store_batches.observe(len(records))

    def store_failed(self, *, is_first: bool) -> None:
        """The store could not write. `is_first`: it could before."""
        self.store_failures += 1
        self.store_outages += is_first
