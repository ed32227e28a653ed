"""Limits of the events that are kept: of each attempt, and of all attempts together.

If there are more, the oldest are dropped. For the total, the attempt that ended first loses its events first; if no
ended attempt has any left, the attempts with the most events lose some. An attempt always keeps its last event, since a
server that starts again continues with the number after it. The numbers of dropped events are never used again.
"""

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush, nsmallest

from rdzv_server.core.events import EventsDropped
from rdzv_server.core.kernel.run import Run

MOST_EVENTS = 200_000
"""Most events of all attempts of a server by default: 10,000 runs of 20 events each, about 40 MB."""
EVENTS_KEPT = 10_000
"""Number of the latest events of an attempt that are kept; the others are dropped beyond `MOST_OF_ATTEMPT`."""
MOST_OF_ATTEMPT = EVENTS_KEPT + EVENTS_KEPT // 10
ROOM = 100
"""Divisor of the total, and of the ended attempts: a hundredth is dropped at once, as finding the oldest takes time."""


def beyond_own(run: Run) -> EventsDropped | None:
    """The drop that an attempt's own limit asks for; None: there are no more events than that."""
    if run.events_kept <= MOST_OF_ATTEMPT:
        return None
    return EventsDropped(run.event_number - EVENTS_KEPT + 1)


def beyond_total(runs: Iterable[Run], kept: int, most: int) -> Iterator[tuple[Run, EventsDropped]]:
    """Yield drops that make room if the attempts have `kept` events and may have `most`, each of another attempt."""
    surplus = kept - most + most // ROOM
    having = [run for run in runs if run.events_kept > 1]
    ended = [(run.ended_at, run.run_id, run.attempt, run) for run in having if run.ended_at is not None]
    for *_, run in nsmallest(1 + len(ended) // ROOM, ended):
        if surplus <= 0:
            return
        dropped = min(surplus, run.events_kept - 1)
        surplus -= dropped
        yield run, EventsDropped(run.first_event + dropped)
    if not ended:
        yield from _of_the_longest(having, surplus)


def _of_the_longest(runs: Iterable[Run], surplus: int) -> Iterator[tuple[Run, EventsDropped]]:
    """Yield drops of so many events together: the attempt that has the most at the time loses half of them at most."""
    longest = [(-run.events_kept, run.run_id, run.attempt, run) for run in runs]
    heapify(longest)
    below: dict[tuple[str, int], tuple[Run, int]] = {}
    while surplus > 0 and longest:
        left, run_id, attempt, run = heappop(longest)
        dropped = min(surplus, -left // 2)
        surplus -= dropped
        _, first = below.get((run_id, attempt), (run, run.first_event))
        below[run_id, attempt] = run, first + dropped
        if -left - dropped > 1:
            heappush(longest, (left + dropped, run_id, attempt, run))
    for run, number in below.values():
        yield run, EventsDropped(number)
