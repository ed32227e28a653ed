"""Limits of the events that are kept: for each attempt, and for all attempts together; for large events also in bytes.

If there are more, the oldest are dropped. If all attempts together exceed a limit, the attempt that ended first loses
its events first. If no ended attempt has any left, the attempts with the most events lose some. An attempt always keeps
its last event, since a server that starts again continues with the number after it. The numbers of dropped events are
never used again.
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush, nsmallest

from msgspec import Struct

from rdzv_server.core.events import EventsDropped
from rdzv_server.core.kernel.run import Run

MOST_EVENTS = 200_000
"""Most events of all attempts of a server by default: 10,000 runs of 20 events each, about 100 MB."""
MEAN_BYTES = 512
"""Memory that the large events of all attempts may take together, divided by the most events. An event with all its
evidence takes twenty times as much."""
EVENTS_KEPT = 10_000
"""Number of an attempt's latest events that are kept when it exceeds `MOST_OF_ATTEMPT`."""
MOST_OF_ATTEMPT = EVENTS_KEPT + EVENTS_KEPT // 10
ROOM = 100
"""Divisor of a total, and of the ended attempts, for the part to drop at once: finding the oldest takes time."""


class _Measure(Struct, frozen=True):
    """Measure of what an attempt's events take: their number or their bytes."""

    kept: Callable[[Run], int]
    spare: Callable[[Run], int]
    """Part that the attempt may lose: all events but the last one, which is kept."""
    first_left: Callable[[Run, int], int]
    """Number of the oldest event that is left after dropping this much, but never beyond the last event."""


def _first_left_by_bytes(run: Run, dropped: int) -> int:
    first = run.event_sizes.first_left(run.first_event, dropped, run.event_number)
    return min(max(first, run.first_event + 1), run.event_number)


_NUMBER = _Measure(
    lambda run: run.events_kept, lambda run: run.events_kept - 1, lambda run, dropped: run.first_event + dropped
)
_BYTES = _Measure(lambda run: run.event_sizes.total, lambda run: run.event_sizes.total, _first_left_by_bytes)


def beyond_own(run: Run) -> EventsDropped | None:
    """Return the drop that an attempt's own limit requires; None if it is within the limit."""
    if run.events_kept <= MOST_OF_ATTEMPT:
        return None
    return EventsDropped(run.event_number - EVENTS_KEPT + 1)


def beyond_total(runs: Iterable[Run], kept: int, most: int) -> Iterator[tuple[Run, EventsDropped]]:
    """Yield drops, each of another attempt, that make room if the attempts have `kept` events and may have `most`."""
    return _beyond(runs, kept - most + most // ROOM, _NUMBER)


def beyond_bytes(runs: Iterable[Run], kept: int, most: int) -> Iterator[tuple[Run, EventsDropped]]:
    """Yield drops, each of another attempt, that make room if the events take `kept` bytes and may take `most`."""
    return _beyond(runs, kept - most + most // ROOM, _BYTES)


def _beyond(runs: Iterable[Run], surplus: int, measure: _Measure) -> Iterator[tuple[Run, EventsDropped]]:
    having = [run for run in runs if run.events_kept > 1 and measure.spare(run) > 0]
    ended = [(run.ended_at, run.run_id, run.attempt, run) for run in having if run.ended_at is not None]
    for *_, run in nsmallest(1 + len(ended) // ROOM, ended):
        if surplus <= 0:
            return
        dropped = min(surplus, measure.spare(run))
        surplus -= dropped
        yield run, EventsDropped(measure.first_left(run, dropped))
    if not ended:
        yield from _of_the_largest(having, surplus, measure)


def _of_the_largest(runs: Iterable[Run], surplus: int, measure: _Measure) -> Iterator[tuple[Run, EventsDropped]]:
    """Yield drops of `surplus` in total. The attempt with the most at each step loses at most half of it."""
    largest = [(-measure.kept(run), run.run_id, run.attempt, run) for run in runs]
    heapify(largest)
    dropped_of: dict[tuple[str, int], tuple[Run, int]] = {}
    while surplus > 0 and largest:
        left, run_id, attempt, run = heappop(largest)
        dropped = min(surplus, -left // 2)
        surplus -= dropped
        _, before = dropped_of.get((run_id, attempt), (run, 0))
        dropped_of[run_id, attempt] = run, before + dropped
        if -left - dropped > 1:
            heappush(largest, (left + dropped, run_id, attempt, run))
    for run, dropped in dropped_of.values():
        yield run, EventsDropped(measure.first_left(run, dropped))
