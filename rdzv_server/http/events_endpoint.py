"""Events of a run over HTTP: a page of them as JSON, or all of them as server-sent events when they happen.

A stream has no queue of its own. It sends the events after the last number that it has sent. They come from the latest
events, which all streams of a run share, or else from the store. A slow reader gets at most one page beyond what it has
read. If it does not read that page for too long, its connection is cut, and it can continue by number.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Annotated

import msgspec
from msgspec import Meta
from rdzv_protocol.errors import MalformedMessage, ProtocolError, TooManyRequests
from rdzv_protocol.events import EventPage, RunEvent

from rdzv_server.core.effects import Effect, EmitEvent
from rdzv_server.http.responses import reply_to
from rdzv_server.service.driver import Driver
from rdzv_server.service.feeds import server_sent
from rdzv_server.service.interface import Service
from rdzv_server.service.operator_scheduler import Broadcast, checkpoint
from rdzv_server.words import http as words

DEFAULT_LIMIT, MOST_EVENTS = 100, 1_000
"""Number of events in a page: the default, and the most."""
LAST_NUMBER = 2**53
After = Annotated[int, Meta(ge=0, le=LAST_NUMBER)]
Limit = Annotated[int, Meta(ge=1, le=MOST_EVENTS)]
"""Parameters of a page."""
STREAM_PAGE = 100
MOST_STREAMS = 1_000
"""Most streams at a time; the server refuses further ones."""
HEARTBEAT_S = 5.0
"""Seconds after which a stream without events sends a comment, and checks whether this server still leads the run."""
RECENT = 256
"""Number of latest events of a run that are kept in memory for all its streams."""
RETRY_MS = 1_000
"""Milliseconds after which a browser reconnects when its stream has ended."""


class _StreamedEvent:
    """Event as streams send it, encoded once for all of them."""

    def __init__(self, event: RunEvent) -> None:
        self.event = event
        self.number = event.number

    @cached_property
    def frame(self) -> bytes:
        return server_sent(self.event.kind, msgspec.json.encode(self.event), str(self.number))


class _Feed:
    """Latest events of one run, for its streams."""

    def __init__(self) -> None:
        self.recent: deque[_StreamedEvent] = deque(maxlen=RECENT)
        self.followers = 0
        self.changed = Broadcast(HEARTBEAT_S)

    def add(self, event: RunEvent) -> None:
        if self.recent and event.number != self.recent[-1].number + 1:
            self.recent.clear()  # one was skipped: streams read it from the store
        self.recent.append(_StreamedEvent(event))
        self.changed.notify_all()

    def after(self, number: int) -> Sequence[_StreamedEvent] | None:
        """Return at most a page of events after `number`; None if they have to be read from the store."""
        if self.recent and self.recent[0].number <= number + 1:
            return [streamed for streamed in self.recent if streamed.number > number][:STREAM_PAGE]
        return None


class EventsView:
    """Events of the runs of one server, for any number of readers. One page at a time is read from the store."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._feeds: dict[str, _Feed] = {}
        self._turn = asyncio.Lock()
        service.observe(self._observe)

    async def page(self, run_id: str, after: int, limit: int) -> EventPage:
        """Return a page of events after a number. Raises `UnknownRun` or `NotLeader`."""
        events = tuple(await self._read(run_id, after, limit))
        last = max((run.event_number for run in self._service.runs() if run.run_id == run_id), default=after)
        return EventPage(events=events, after=events[-1].number if events else after, last=last)

    async def _read(self, run_id: str, after: int, most: int) -> Sequence[RunEvent]:
        """Read from the store, one reader at a time, so that a write waits for at most one page. Returns in a slice."""

        async def in_turn(driver: Driver) -> Sequence[RunEvent]:
            async with self._turn:
                return await driver.read_events(run_id, after, most)

        events = await self._service.with_driver(run_id, in_turn)
        await checkpoint()
        return events

    @contextmanager
    def _following(self, run_id: str) -> Iterator[_Feed]:
        """Keep the latest events of the run in memory until the context ends. Raises `TooManyRequests`."""
        if sum(feed.followers for feed in self._feeds.values()) >= MOST_STREAMS:
            raise TooManyRequests(words.too_many_streams(MOST_STREAMS))
        feed = self._feeds.setdefault(run_id, _Feed())
        feed.followers += 1
        try:
            yield feed
        finally:
            feed.followers -= 1
            if not feed.followers:
                del self._feeds[run_id]

    async def stream(self, run_id: str, after: int) -> AsyncGenerator[bytes, None]:
        """Yield the pieces of a stream, forever. If the run can no longer be read here, the stream ends with an `error`
        event.

        Raises the refusal if the first read fails, or `TooManyRequests`.
        """
        with self._following(run_id) as feed:
            async for piece in self._pieces(feed, run_id, after):
                yield piece

    async def _pieces(self, feed: _Feed, run_id: str, after: int) -> AsyncGenerator[bytes, None]:
        is_first = True
        while True:
            await checkpoint()
            changed, events = feed.changed.number, feed.after(after)
            if events is None:
                try:
                    events = [_StreamedEvent(event) for event in await self._read(run_id, after, STREAM_PAGE)]
                except ProtocolError as error:
                    if is_first:
                        raise
                    yield server_sent("error", msgspec.json.encode(reply_to(error)))
                    return
            if is_first:
                yield b"retry: %d\n\n" % RETRY_MS
                is_first = False
            if events:
                after = events[-1].number
                yield b"".join([streamed.frame for streamed in events])
            elif not await feed.changed.wait(changed):
                feed.recent.clear()  # next, read from the store, which knows whether this server leads the run
                yield b":\n\n"

    def _observe(self, effect: Effect) -> None:
        if isinstance(effect, EmitEvent) and (feed := self._feeds.get(effect.event.run_id)):
            feed.add(effect.event)


def number_of(name: str, text: str | None, default: int, low: int, high: int) -> int:
    """Return the number in a query parameter or a header; `default` if there is none. Raises `MalformedMessage`."""
    if text is None or text == "":
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and low <= int(text) <= high):
        raise MalformedMessage(words.bad_number(name, low, high, text))
    return int(text)
