"""Webhook, for `--webhook URL`: sends every event of the runs that this server leads to an address of the operator.

The events of a run are sent in order, several at a time, and each at least once. The store contains the number of the
last event that the receiver has acknowledged. After a restart, or on the server that takes over, sending continues
after that event. No events are kept in memory: they are read from the store when it is their turn.
"""

import asyncio
import hashlib
import hmac
import random
import time
from contextlib import suppress
from functools import partial

import aiohttp
import msgspec
import rdzv_protocol
from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.events import SIGNATURE, EventDelivery
from yarl import URL

from rdzv_server.core.effects import Effect, EmitEvent
from rdzv_server.service.driver import Driver
from rdzv_server.service.interface import Service
from rdzv_server.storage.outage import Outage
from rdzv_server.tasks import first_of
from rdzv_server.words import exports as words

MOST_AT_ONCE = 100
"""Most events in one request."""
DELIVERIES = 4
"""Most requests at a time, each for another run."""
ANSWER_S = 10.0
FIRST_RETRY_S, LONGEST_RETRY_S = 0.5, 60.0
SWEEP_S = 5.0
"""Seconds between two searches for runs with unsent events that an earlier server left."""


class Webhook:
    """Sender of events to `url`, signed with `secret`. `run` sends them."""

    def __init__(self, service: Service, url: str, secret: bytes) -> None:
        self.secret = secret
        """Secret for the signatures of later requests; may be replaced."""
        self._service = service
        self._url, self._name = url, f"--webhook {URL(url).origin()}"
        self._pending: dict[str, None] = {}
        """Ids of runs with events that have not been sent."""
        self._sending: set[str] = set()
        self._acknowledged: dict[str, int] = {}
        """Number of the last acknowledged event by run id, if it has been read from the store."""
        self._changed = asyncio.Event()
        self._failures = 0
        self._outage = Outage(lambda: words.WEBHOOK_CONSEQUENCE, lambda: words.webhook_answers(self._name))

    def observe(self, effect: Effect) -> None:
        """Note a run with a new event."""
        if isinstance(effect, EmitEvent):
            self._add(effect.event.run_id)

    async def run(self) -> None:
        """Send the events, forever."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        headers = {"User-Agent": f"rdzv-server/{rdzv_protocol.VERSION}", "Content-Type": "application/json"}
        async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
            await first_of(self._sweep(), *(self._send_all(session) for _ in range(DELIVERIES)))

    async def _sweep(self) -> None:
        while True:
            runs = {run.run_id: run.event_number for run in self._service.runs()}
            for run_id in self._acknowledged.keys() - runs.keys():
                # The run is forgotten, or another server leads it and records what it sends.
                del self._acknowledged[run_id]
            for run_id, number in runs.items():
                if number > self._acknowledged.get(run_id, -1):
                    self._add(run_id)
            await asyncio.sleep(SWEEP_S)

    async def _send_all(self, session: aiohttp.ClientSession) -> None:
        while True:
            run_id = await self._next()
            try:
                has_more = await self._service.with_driver(run_id, partial(self._send_some, session, run_id))
            except ProtocolError:
                continue  # it is forgotten, or another server leads; or the sweep finds it again
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                self._add(run_id)
                self._release(run_id)
                await self._back_off(error)
                continue
            except Exception as error:  # an error in the server: the sweep tries again
                with suppress(ProtocolError):
                    await self._service.with_driver(run_id, partial(_failed, run_id, error))
                continue
            finally:
                self._release(run_id)
            if has_more:
                self._add(run_id)

    async def _next(self) -> str:
        """Take the next run with unsent events. No other request sends its events until it is released."""
        while True:
            for run_id in self._pending:
                if run_id not in self._sending:
                    del self._pending[run_id]
                    self._sending.add(run_id)
                    return run_id
            changed = self._changed
            await changed.wait()

    def _add(self, run_id: str) -> None:
        self._pending.setdefault(run_id)
        self._notify()

    def _release(self, run_id: str) -> None:
        self._sending.discard(run_id)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _send_some(self, session: aiohttp.ClientSession, run_id: str, driver: Driver) -> bool:
        """Send the next events of the run. Return whether there may be more."""
        after = self._acknowledged.get(run_id)
        if after is None:
            after = self._acknowledged[run_id] = await driver.read_delivered(run_id)
        events = await driver.read_events(run_id, after, MOST_AT_ONCE)
        if not events:
            return False
        body = msgspec.json.encode(EventDelivery(run_id=run_id, events=tuple(events)))
        headers = {SIGNATURE: signature(self.secret, body, int(time.time()))}
        async with session.post(self._url, data=body, headers=headers, allow_redirects=False) as answer:
            if not 200 <= answer.status < 300:
                raise aiohttp.ClientError(words.webhook_refuses(answer.status, answer.reason or ""))
        self._outage.end()
        self._failures = 0
        await driver.write_delivered(run_id, events[-1].number)
        self._acknowledged[run_id] = events[-1].number
        return len(events) == MOST_AT_ONCE

    async def _back_off(self, error: Exception) -> None:
        self._failures += 1
        self._outage.begin(words.webhook_fails(self._name, str(error) or type(error).__name__))
        longest = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2 ** min(self._failures - 1, 10))
        await asyncio.sleep(longest * random.uniform(0.5, 1.0))


async def _failed(run_id: str, error: Exception, driver: Driver) -> None:
    driver.observers.failed(run_id, Webhook.__name__, error)


def signature(secret: bytes, body: bytes, at: int) -> str:
    """Return the signature header's value: seconds since 1970, and HMAC-SHA256 over them, a dot and the body."""
    digest = hmac.new(secret, b"%d." % at + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"
