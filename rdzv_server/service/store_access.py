"""Access of the driver to its store, which outlasts failures of the store.

A write that fails is repeated until the store accepts it. A store that rejects a write, or that does not return for
`STUCK_S`, is in an outage until a call succeeds. If nothing is written for long, a check shows whether it could be.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from rdzv_protocol.events import RunEvent

from rdzv_server.core.effects import Record
from rdzv_server.core.journals import Key
from rdzv_server.service.measurements import Measurements
from rdzv_server.storage.base import Change, Store, StoreUnavailable
from rdzv_server.storage.outage import Outage, OutageLog
from rdzv_server.words import service as words

RETRY_S = 0.5
"""Seconds until a failed write to the store is tried again."""
STUCK_S = 5.0
"""Seconds after which a call of the store that has not returned counts as an outage: a disk may hang silently."""
CHECK_S = 60.0
"""Seconds without a write after which a check shows whether the store still accepts writes. Otherwise a read-only disk
would be noticed only when a worker fails, perhaps at night."""


class StoreAccess:
    """Access to one store. `clock`: the server's time. `failing`: called when an outage begins. `outages`: log of
    the outages of several drivers.

    Its methods raise `StoreBroken` or `StoreFenced`, but no `StoreUnavailable`.
    """

    def __init__(
        self,
        store: Store,
        measurements: Measurements,
        clock: Callable[[], float],
        failing: Callable[[], None],
        outages: OutageLog | None = None,
    ) -> None:
        self.outage = Outage(lambda: words.NOTHING_DECIDED, lambda: words.STORE_IS_BACK, clock, shared=outages)
        self._store, self._measurements, self._clock, self._failing = store, measurements, clock, failing
        self._accepted_at = 0.0

    @property
    def check_at(self) -> float:
        """Time at which `check` is due if nothing is written before."""
        return self._accepted_at + CHECK_S

    async def write(self, changes: Sequence[Change], events: Sequence[RunEvent]) -> None:
        """Return once the store has accepted the batch: agents and operators must not learn what is not written."""
        await self._at_last(partial(self._append, changes, events))

    async def check(self) -> None:
        """Return once the store would accept a write."""
        await self._at_last(self._store.check)

    async def read_attempt(self, run_id: str, attempt: int) -> tuple[Sequence[Record], int]:
        """Return the records of the attempt, and the number of its last event, however long that takes."""
        with self.noticing_hangs():
            records = await self.outage.outlast(partial(self._store.read_records, run_id, attempt), RETRY_S)
            numbers = await self.outage.outlast(self._store.event_numbers, RETRY_S)
        key: Key = (run_id, attempt)
        return records, numbers.get(key, 0)

    def accepts(self) -> None:
        """Note that the store has just been opened, and is expected to accept writes."""
        self._accepted_at = self._clock()

    @contextmanager
    def noticing_hangs(self) -> Iterator[None]:
        """Count it as an outage if the store takes longer than `STUCK_S` for the block's work."""
        timer = asyncio.get_running_loop().call_later(STUCK_S, self._hangs)
        try:
            yield
        finally:
            timer.cancel()
        self.outage.end()

    async def _at_last(self, write: Callable[[], Awaitable[None]]) -> None:
        async def attempt() -> None:
            try:
                await write()
            except StoreUnavailable as error:
                self._fails(str(error))
                raise

        with self.noticing_hangs():
            await self.outage.outlast(attempt, RETRY_S)
        self.accepts()

    async def _append(self, changes: Sequence[Change], events: Sequence[RunEvent]) -> None:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        await self._store.append(changes, events)
        self._measurements.written(changes, loop.time() - began_at)

    def _hangs(self) -> None:
        if self.outage.reason is None:
            self._fails(words.store_hangs(STUCK_S))

    def _fails(self, reason: str) -> None:
        is_first = self.outage.reason is None
        self._measurements.store_failed(is_first=is_first)
        self.outage.begin(reason)
        if is_first:
            self._failing()
