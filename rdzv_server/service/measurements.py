"""Measurements of one server since its process began, for `/metrics`. They are plain numbers, so counting is cheap."""

import time
from collections import Counter
from collections.abc import Sequence

from rdzv_protocol.events import RunEvent
from rdzv_protocol.exposition import Histogram

from rdzv_server.core import events
from rdzv_server.core.effects import Effect, EmitEvent, ForgetRun, Record
from rdzv_server.core.journals import Key
from rdzv_server.core.kernel.run import Cause

REQUEST_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bucket bounds of requests in seconds: a request itself takes 0.2 ms, and after 10 s a peer is disconnected."""
STORE_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Bucket bounds of writes in seconds: SQLite writes within a millisecond, and a busy disk takes a hundred."""
ROUND_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0)
"""Bucket bounds of forming in seconds: a fraction of a second, or the time until workers end or a node is back."""
FIRST = Cause.FIRST.value
BATCH_BOUNDS = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0)


class Measurements:
    """Counters of a server, for all shards that it has led."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, int], Histogram] = {}
        """Seconds of each answer by path and status, without the time for which it was held as a long poll."""
        self.store_writes = Histogram(STORE_BOUNDS_S)
        self.store_batches = Histogram(BATCH_BOUNDS)
        self.store_failures = 0
        """Number of writes that the store refused."""
        self.store_outages = 0
        """Number of times that the store began to refuse writes."""
        self.elections_won = 0
        self.event_errors = 0
        """Number of errors inside the server over events that it passed on."""

        self.happened = Counter[str]()
        """Number of run events, by kind."""
        self.leases_expired = 0
        """Number of nodes that were lost because their leases expired."""
        self.rounds = {cause.value: Histogram(ROUND_BOUNDS_S) for cause in Cause}
        """Seconds from a round's opening to its start, by cause."""
        self.lost_s = dict.fromkeys(self.rounds, 0.0)
        """Seconds in which rounds formed, by cause, including rounds that never started."""

    def answered(self, path: str, status: int, duration_s: float) -> None:
        """Count an answered request. `path`: one of a fixed set, which limits the number of series."""
        histogram = self.requests.get((path, status))
        if histogram is None:
            histogram = self.requests[path, status] = Histogram(REQUEST_BOUNDS_S)
        histogram.observe(duration_s)

    def written(self, records: Sequence[object], duration_s: float) -> None:
        """Count a batch that the store has written."""
        self.store_writes.observe(duration_s)
        self.store_batches.observe(len(records))

    def store_failed(self, *, is_first: bool) -> None:
        """Count a failed write. `is_first`: whether the previous write succeeded."""
        self.store_failures += 1
        self.store_outages += is_first


class RunMeasurements:
    """Counter of what happens to the runs of one driver.

    Its memory of runs ends with the driver's leadership.
    """

    def __init__(self, counted: Measurements) -> None:
        self._counted = counted
        self._opened: dict[Key, tuple[str, float]] = {}
        """Cause and time of the opening of each round that forms."""

    def observe(self, effect: Effect) -> None:
        """Count an effect, which the driver has written and carried out."""
        match effect:
            case Record(fact=events.NodeLost(is_expired=is_expired)):
                self._counted.leases_expired += is_expired
            case EmitEvent(event):
                self._count(event)
            case ForgetRun(run_id, attempt):
                self._opened.pop((run_id, attempt), None)

    def _count(self, event: RunEvent) -> None:
        counted, run = self._counted, (event.run_id, event.attempt)
        counted.happened[event.kind] += 1
        match event.kind:
            case "run_created" | "round_opened":
                self._opened[run] = event.cause or FIRST, time.monotonic()
            case "round_started":
                self._opened.pop(run, None)
                counted.rounds[event.cause or FIRST].observe(event.duration_s or 0.0)
                counted.lost_s[event.cause or FIRST] += event.duration_s or 0.0
            case "run_succeeded" | "run_failed":
                cause, opened_at = self._opened.pop(run, (FIRST, time.monotonic()))
                counted.lost_s[cause] += time.monotonic() - opened_at
