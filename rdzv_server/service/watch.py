"""Watched documents: one of all runs, and one of each watched run.

A watcher gets the document, and then its differences, as server-sent events. Nothing is made without watchers. The work
is done in slices (see `operator_scheduler.py`), at most once in `INTERVAL_S`: agents come first. A watcher that reads
nothing is cut off by its connection.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import contextmanager, suppress

import msgspec
import rdzv_protocol
from rdzv_protocol.errors import ServerUnavailable

from rdzv_server.core.effects import Effect, EmitEvent, ForgetRun, Record, WakeAgents
from rdzv_server.core.views import watch_view
from rdzv_server.core.views.watch_view import Document, difference
from rdzv_server.service.feeds import Audience, Feed, RunFeed, RunsFeed
from rdzv_server.service.interface import Service, Shows, latest_runs
from rdzv_server.service.operator_scheduler import checkpoint
from rdzv_server.words import service as words

log = logging.getLogger("rdzv_server")

INTERVAL_S = 0.2
"""Least seconds between two differences."""
CHECK_INTERVAL_S = 1.0
"""Seconds between two checks for changes without an effect of the core: quiet nodes, and the server's own state."""
LINGER_S = 20.0
"""Seconds for which a document without watchers is kept up to date, in case they come back."""
MOST_WATCHERS = 128
"""Most watchers; one peer may have half of them."""


class Watch:
    """Watched documents of one server."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._feeds: dict[str | None, Feed] = {}
        """Feeds by run id; None for the feed of all runs."""
        self._watchers: Counter[Feed] = Counter()
        self._of_peers: Counter[str] = Counter()
        self._changed: set[str] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._leaders: object = None
        self._is_closed = False
        service.observe(self.happened)

    def happened(self, effect: Effect) -> None:
        """Note what an effect is about. If that raises, all documents are read again."""
        if not self._feeds:
            return
        try:
            match effect:
                case Record(run_id=run_id, fact=fact):
                    self._note(run_id, _agents_of(fact))
                case WakeAgents(run_id, agent_ids):
                    self._note(run_id, agent_ids)
                case ForgetRun(run_id):
                    self._note(run_id, ())
                case EmitEvent(event):
                    self._note(event.run_id, (), event.node_id)
        except Exception:
            self._leaders = None
            raise

    async def follow(
        self, peer: str, run_id: str | None, last_event_id: str = "", shows: Shows | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events about one run, or about all, until the server closes.

        Raises `ServerUnavailable` if there are too many watchers.
        """
        with self._watching(peer, run_id) as feed:
            if "server" not in feed.document:
                await self._update_one(feed)
            async for event in feed.follow(last_event_id, Audience(self._service, shows) if shows else None):
                yield event

    def close(self) -> None:
        """End the events of all watchers."""
        self._is_closed = True
        if self._task:
            self._task.cancel()
        for feed in self._feeds.values():
            feed.is_over = True
            feed.wake()

    @property
    def watchers(self) -> int:
        """Number of watchers."""
        return self._watchers.total()

    @contextmanager
    def _watching(self, peer: str, run_id: str | None) -> Iterator[Feed]:
        if self.watchers >= MOST_WATCHERS or self._of_peers[peer] >= MOST_WATCHERS // 2:
            raise ServerUnavailable(words.TOO_MANY_WATCH)
        if run_id not in self._feeds:
            self._feeds[run_id] = RunsFeed() if run_id is None else RunFeed(run_id)
        feed = self._feeds[run_id]
        self._watchers[feed] += 1
        self._of_peers[peer] += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_up(), name="watch")
        try:
            yield feed
        finally:
            self._watchers -= Counter((feed,))
            self._of_peers -= Counter((peer,))
            if feed not in self._watchers:
                linger_s = LINGER_S if feed.is_known and len(self._feeds) <= MOST_WATCHERS else 0.0
                asyncio.get_running_loop().call_later(linger_s, self._drop, run_id, feed)

    def _drop(self, run_id: str | None, feed: Feed) -> None:
        if feed not in self._watchers and self._feeds.get(run_id) is feed:
            del self._feeds[run_id]

    def _note(self, run_id: str, agent_ids: Iterable[str], node_id: str | None = None) -> None:
        agent_ids = tuple(agent_ids)
        for feed in (self._feeds.get(None), self._feeds.get(run_id)):
            if feed:
                feed.note(run_id, agent_ids, node_id)
                self._changed.add(run_id)
                self._wake.set()

    async def _keep_up(self) -> None:
        """Keep the documents up to date while there are watchers."""
        looked_at = float("-inf")
        while self._feeds and not self._is_closed:
            await checkpoint("")
            began = time.monotonic()
            is_look = began >= looked_at + CHECK_INTERVAL_S
            looked_at = began if is_look else looked_at
            changed, self._changed = self._changed, set()
            try:
                await self._update(changed, is_look)
            except Exception:
                self._leaders = None  # so that all is read again
                log.exception(words.PAGE_NOT_UPDATED)
                await asyncio.sleep(CHECK_INTERVAL_S)
            await asyncio.sleep(INTERVAL_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, looked_at + CHECK_INTERVAL_S - time.monotonic())):
                    await self._wake.wait()
            self._wake.clear()

    async def _update(self, changed: set[str], is_look: bool) -> None:
        runs = latest_runs(self._service)
        server = self._server()
        leaders = (server.get("epoch"), server["leadership"], server.get("shards"))
        is_new, self._leaders = leaders != self._leaders, leaders
        for run_id, feed in list(self._feeds.items()):
            if is_look or is_new:
                feed.look(runs, self._service.now, is_new_leader=is_new)
            if run_id is None or is_look or is_new or run_id in changed:
                await feed.update(runs, self._service.now)
            feed.publish(difference({"server": feed.document.get("server", {})}, {"server": server}))
            await checkpoint()

    async def _update_one(self, feed: Feed) -> None:
        """Make a document that has just been requested."""
        await feed.update(latest_runs(self._service), self._service.now)
        feed.publish({"server": self._server()})

    def _server(self) -> Document:
        """Return the state of the server, without fields that change by themselves or do not apply."""
        state = msgspec.to_builtins(self._service.state()) | {
            "uptime_s": None,
            "set_apart": None,  # each run reports it, to watchers that may know of it
            "event_errors": None,
            "version": rdzv_protocol.VERSION,
        }
        return watch_view.known(**state)


def _agents_of(fact: object) -> Iterator[str]:
    """Yield the ids of the agents that a fact is about."""
    if (join := getattr(fact, "join", None)) is not None:
        yield join.agent_id
        yield from getattr(fact, "replaces", ())
    elif agent_id := getattr(fact, "agent_id", ""):
        yield agent_id
