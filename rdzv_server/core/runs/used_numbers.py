"""Numbers of attempts and events that a run id has used, so that none is ever used twice.

While a run is remembered, its latest attempt has the highest numbers. When its last attempt is forgotten, the server
records the numbers here. It does so for the latest `MOST_REMEMBERED` run ids. The numbers of earlier ones are merged
into a floor: a run id without an entry begins above the floor, since it may be one of them. So memory is bounded, and
run ids begin with 1 on a server that has forgotten fewer run ids.

The facts are recorded beside the runs, in a journal of their own.
"""

from collections.abc import Iterator
from itertools import islice

from rdzv_server.core.events import NumbersUsed

MOST_REMEMBERED = 10_000
"""Forgotten run ids whose numbers are remembered."""
RUNS_OF_PART = 250
"""Most run ids of one part of a snapshot: a part is one record, which must fit into one value of etcd."""

Numbers = tuple[int, int]
"""Number of an attempt, and number of an event."""


class UsedNumbers:
    """Last attempt and last event of each forgotten run id."""

    def __init__(self) -> None:
        self._last: dict[str, Numbers] = {}
        """Numbers by run id, in the order in which the run ids were forgotten."""
        self._floor: Numbers = 0, 0
        self._unended: set[str] = set()
        """Run ids that were forgotten before they had ended."""
        self._deserted: dict[str, str] = {}
        """Sentences about the ends of run ids that gave their place to a new run."""

    def last(self, run_id: str) -> Numbers:
        """Numbers of the last attempt and event that this run id, which is not remembered, may have used; from 0."""
        return self._last.get(run_id, self._floor)

    def has_ended(self, run_id: str, attempt: int) -> bool:
        """Whether this attempt, which is not remembered, has ended. 0: any attempt of the run id.

        A server that has lost its state knows of no such attempt: its agents form their runs anew.
        """
        last, _ = self.last(run_id)
        return run_id not in self._unended and 0 < max(attempt, 1) <= last

    def end_of(self, run_id: str) -> str:
        """Sentence about how this run id ended, if it gave its place to a new run; else empty."""
        return self._deserted.get(run_id, "")

    def apply(self, fact: NumbersUsed) -> None:
        """Apply a fact, when it happens and when it is replayed. To apply it twice changes nothing."""
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
        """Yield facts that stand for all that were applied, in parts."""
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
