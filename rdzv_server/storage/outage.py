"""Outages of a store, or of anything else that the server may lack for a while.

Each is logged once, however long it is.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rdzv_server.storage.base import StoreSilent, StoreUnavailable
from rdzv_server.words import etcd as etcd_words
from rdzv_server.words import storage as words

log = logging.getLogger("rdzv_server")

T = TypeVar("T")
Sentence = Callable[[], str]


class OutageLog:
    """Log of the outages of a server's parts that use the same store: the first to begin and the last to end."""

    def __init__(self) -> None:
        self._present: set[Outage] = set()

    def begins(self, outage: "Outage", line: str) -> None:
        if not self._present:
            log.error("%s", line)
        self._present.add(outage)

    def ends(self, outage: "Outage", line: str) -> None:
        self.forget(outage)
        if not self._present:
            log.info("%s", line)

    def forget(self, outage: "Outage") -> None:
        self._present.discard(outage)


class Outage:
    """Outage. Its beginning is logged with its consequence, and its end as well."""

    def __init__(
        self,
        consequence: Sentence = lambda: words.TRYING_AGAIN,
        over: Sentence = lambda: etcd_words.ANSWERS,
        clock: Callable[[], float] = time.monotonic,
        *,
        logs_silence: bool = True,
        shared: OutageLog | None = None,
    ) -> None:
        """`consequence`, `over`: return the sentences to log. A server without outages does not import them.

        `logs_silence`: whether a store that does not answer is an outage here, or only one that refuses something.

        Several parts of a server may need the same store. One of them logs that it does not answer. `shared`: the log
        of the outages that differ from this one only in their part; None if there are none.
        """
        self.reason: str | None = None
        """Reason of the outage; None while there is none."""
        self.since = 0.0
        """Time at which the latest outage began, by `clock`."""
        self._consequence, self._over, self._clock = consequence, over, clock
        self._logs_silence = logs_silence
        self._log = shared or OutageLog()

    def begin(self, reason: object) -> None:
        """Note that an outage begins or continues."""
        if isinstance(reason, StoreSilent) and not self._logs_silence:
            return
        if self.reason is None:
            self._log.begins(self, words.outage(reason, self._consequence()))
            self.since = self._clock()
        self.reason = str(reason)

    def end(self, over: str = "") -> None:
        """Note that there is no outage, again or still. `over`: the line to log, in place of the usual one."""
        if self.reason is not None:
            self._log.ends(self, over or self._over())
        self.reason = None

    def close(self) -> None:
        """Note that this part of the server ends, perhaps during the outage. Other parts may still log theirs."""
        self._log.forget(self)

    async def outlast(self, work: Callable[[], Awaitable[T]], pause_s: float) -> T:
        """Do the work, and repeat it after each pause while it raises `StoreUnavailable`."""
        while True:
            try:
                result = await work()
            except StoreUnavailable as error:
                self.begin(error)
                await asyncio.sleep(pause_s)
            else:
                self.end()
                return result
