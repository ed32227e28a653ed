"""Numbers of attempts and events that a run id has used, so that none is ever used twice.

While a run is remembered, its latest attempt has the highest numbers. When its last attempt is forgotten, the server
records the numbers here, for the latest `MOST_REMEMBERED` run ids. The numbers of earlier run ids are merged into a
floor.

A run id without an entry begins above the floor, since it may be one of them. So memory is bounded. On a server that
has forgotten fewer run ids, all new ones begin with 1.

The facts are recorded in a journal of their own, beside the runs.
"""

from collections.abc import Iterator
from itertools import islice

from rdzv_server.core.events import NumbersUsed

MOST_REMEMBERED = 10_000
"""Number of forgotten run ids whose numbers are remembered."""
RUNS_OF_PART = 250
"""Most run ids in one part of a snapshot: a part is one record, which must fit into one value of etcd."""

Numbers = tuple[int, int]
"""Number of an attempt, and number of an event."""


class UsedNumbers:
    """Last attempt and last event of each forgotten run id."""

    def __init__(self) -> None:
        self._last: dict[str, Numbers] = {}
        """Numbers by run id, in the order in which the run ids were forgotten."""
        self._floor: Numbers = 0, 0
        self._unended: set[str] = set()
        """Run ids that were forgotten before their runs had ended."""
        self._deserted: dict[str, str] = {}
        """Sentences about the ends of runs that gave their place to a new run, by run id."""

    def last(self, run_id: str) -> Numbers:
        """Return the highest numbers of attempt and event that this forgotten run id may have used; 0 if none."""
        return self._last.get(run_id, self._floor)

    def has_ended(self, run_id: str, attempt: int) -> bool:
        """Return whether this forgotten attempt has ended. If `attempt` is 0: whether any attempt of the run id has.

        A server that has lost its state knows no such attempt: its agents form their runs again.
        """
        last, _ = self.last(run_id)
        return run_id not in self._unended and 0 < max(attempt, 1) <= last

    def end_of(self, run_id: str) -> str:
        """Return the sentence about how this run id ended, if it gave its place to a new run; else empty."""
        return self._deserted.get(run_id, "")

    def apply(self, fact: NumbersUsed) -> None:
        """Apply a fact, both when it happens and in a replay. Applying it twice changes nothing."""
        self._raise_floor(fact.floor)
        for run_id, numbers in fact.last.items():
            self._last.pop(run_id, None)
            self._last[run_id] = numbers
            self._unended.discard(run_id)
            self._deserted.pop(run_id, None)
        self._unended.update(fact.unended)
        self._deserted.update(fact.deserted)
        while len(self._last) > MOST_REMEMBERED:
            oldest = next(iter(self._last))
            self._unended.discard(oldest)
            self._deserted.pop(oldest, None)
            self._raise_floor(self._last.pop(oldest))

    def snapshot(self) -> Iterator[NumbersUsed]:
        """Yield, in parts, the facts that replace all facts applied so far."""
        yield NumbersUsed({}, self._floor)
        left = iter(self._last.items())
        while part := dict(islice(left, RUNS_OF_PART)):
            yield NumbersUsed(
                part,
                unended=tuple(run_id for run_id in part if run_id in self._unended),
                deserted={run_id: self._deserted[run_id] for run_id in part if run_id in self._deserted},
            )

    def _raise_floor(self, numbers: Numbers) -> None:
        (attempt, event), (floor_attempt, floor_event) = numbers, self._floor
        self._floor = max(attempt, floor_attempt), max(event, floor_event)
