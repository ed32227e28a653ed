"""Documents that people watch: one of all runs, and one of each watched run.

A watcher gets the document, and then its differences as JSON merge patches (RFC 7386), as server-sent events. A
difference is made once for all watchers, and only from the nodes that the core's effects name. Nothing is made without
watchers. The work is done in slices (see `operator_scheduler.py`), at most once in `INTERVAL_S`: agents come first.

A watcher is only a position in the list of the latest differences. One that falls behind the list gets the whole
document again; one that reads nothing is cut off by its connection. Each difference has a number. A watcher that
reconnects with the number of the last one that it has seen gets the differences that it has missed.
"""

import asyncio
import logging
import os
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

import msgspec
import rdzv_protocol
from msgspec import Struct
from rdzv_protocol.errors import ServerUnavailable
from rdzv_protocol.states import Health

from rdzv_server.core.effects import Effect, ForgetRun, Happened, Record, WakeAgents
from rdzv_server.core.kernel import restart_budget
from rdzv_server.core.kernel.run import Run, Stage
from rdzv_server.core.views import health, watch_view
from rdzv_server.core.views.watch_view import Document, difference, merge
from rdzv_server.service.interface import Service, Shows, latest_runs, state_for
from rdzv_server.service.operator_scheduler import Broadcast, checkpoint
from rdzv_server.service.reading import read
from rdzv_server.words import service as words

log = logging.getLogger("rdzv_server")

INTERVAL_S = 0.2
"""Least seconds between two differences."""
CHECK_INTERVAL_S = 1.0
"""Seconds between two checks for changes without an effect of the core: quiet nodes, and the server's own state."""
PING_S = 5.0
"""Seconds between two signs of life to a watcher."""
LINGER_S = 20.0
"""Seconds for which a document without watchers is kept up to date, in case they come back."""
EACH_EVENT = 64
"""Most nodes, or runs, in one event while the whole document is sent."""
EACH_PATCH = 128
"""Most nodes, or runs, in one difference."""
MOST_PATCHES, MOST_BYTES = 256, 1 << 20
"""Most differences, and their total bytes, that are kept for watchers that are behind or come back."""
MOST_WATCHERS = 128
"""Most watchers; one peer may have half of them."""

Now = Callable[[str], float]
"""Clock of a run, by its id."""


class Patch(Struct, frozen=True):
    """Difference as JSON, and as a server-sent event."""

    number: int
    content: bytes
    event: bytes


class Feed:
    """A document, its parts by name, and its latest differences. Some watchers see only a part of `parts`."""

    def __init__(self) -> None:
        self.document: Document = {}
        self.incarnation = os.urandom(6).hex()
        """Id that distinguishes this document from all others; its numbers belong to it."""
        self.number = 0
        self.is_over = False
        self._changed = Broadcast(PING_S)
        self._patches: deque[Patch] = deque()
        self._bytes = 0

    @property
    def is_known(self) -> bool:
        """Whether the document has anything that a watcher may come back for."""
        return "run" in self.document or "runs" in self.document

    def publish(self, patch: Document) -> None:
        """Apply a difference, and send it to the watchers; an empty one is ignored."""
        patch = {name: part for name, part in patch.items() if part != {} or name not in self.document}
        if not patch:
            return
        self.number += 1
        content = msgspec.json.encode(patch)
        self._patches.append(Patch(self.number, content, server_sent("patch", content, self._id(self.number))))
        self._bytes += len(content)
        while len(self._patches) > MOST_PATCHES or self._bytes > MOST_BYTES:
            self._bytes -= len(self._patches.popleft().content)
        merge(self.document, patch)
        self.wake()

    def note(self, run_id: str, agent_ids: Iterable[str], node_id: str | None) -> None:
        """Note that these agents, or those of the node, have changed in the run."""

    def look(self, runs: dict[str, Run], now: Now, *, is_new_leader: bool) -> None:
        """Note what has changed without an effect of the core."""

    async def update(self, runs: dict[str, Run], now: Now) -> None:
        """Publish what has changed."""

    def wake(self) -> None:
        """Wake the watchers, so that they check for differences."""
        self._changed.notify_all()

    def after(self, number: int) -> list[Patch] | None:
        """Return the differences after the one with `number`; None if some of them are no longer kept."""
        if number == self.number:
            return []
        if not self._patches or number < self._patches[0].number - 1 or number > self.number:
            return None
        return [patch for patch in self._patches if patch.number > number]

    def place(self, last_event_id: str) -> int | None:
        """Return the number of the last difference that a watcher has seen; None if it needs the whole document."""
        incarnation, _, number = last_event_id.rpartition(".")
        return int(number) if incarnation == self.incarnation and number.isascii() and number.isdigit() else None

    async def follow(self, last_event_id: str, audience: "Audience | None") -> AsyncGenerator[bytes, None]:
        """Yield the events for one watcher, until the server closes. `audience`: None if it may know of every run."""
        seen, shows = self.place(last_event_id), audience.shows if audience else None
        while not self.is_over:
            await checkpoint()
            changed = self._changed.number
            patches = None if seen is None else self.after(seen)
            if patches is None:
                seen = self.number
                async for event in self._whole(seen, shows):
                    yield event
                if audience:
                    audience.cordons = None
                continue
            if audience and (cordons := audience.known_cordons()) != audience.cordons:
                audience.cordons = cordons
                yield _event("patch", {"server": {"cordons": cordons}})
            for patch in patches:
                yield patch.event if shows is None else self._filtered(patch, shows)
                seen = patch.number
                await checkpoint()
            if not patches and not await self._changed.wait(changed):
                yield _event("ping", {"time": time.time()})

    async def _whole(self, number: int, shows: Shows | None) -> AsyncGenerator[bytes, None]:
        """Yield the whole document: large parts a little at a time, as they are when they are sent.

        Only the last event has the number, since a watcher that continued after an earlier one would miss the rest.
        What changes meanwhile is sent once more.
        """
        parts = {name: part for name, part in self.document.items() if name not in LARGE}
        if shows is not None:
            parts["server"] = _without_cordons(parts.get("server", {}))
        large: Document = {name: {} for name in LARGE if name in self.document}
        yield _event("snapshot", {"time": time.time(), **parts, **large})
        for name in LARGE:
            of_part = self.document.get(name, {})
            for keys in _batches(list(of_part), EACH_EVENT):
                shown = {key: of_part[key] for key in keys if key in of_part and (shows is None or shows(key))}
                if shown:
                    yield _event("patch", {name: shown})
                await checkpoint()
        yield _event("patch", {}, self._id(number))

    def _filtered(self, patch: Patch, shows: Shows) -> bytes:
        content = msgspec.json.decode(patch.content)
        content["runs"] = {run_id: part for run_id, part in content.get("runs", {}).items() if shows(run_id)}
        content["server"] = _without_cordons(content.get("server", {}))
        return _event("patch", content, self._id(patch.number))

    def _id(self, number: int) -> str:
        return f"{self.incarnation}.{number}"


class Audience:
    """Watcher that may know only the runs that `shows` accepts, and the cordons that these runs know."""

    def __init__(self, service: Service, shows: Shows) -> None:
        self.shows = shows
        self.cordons: list[Document] | None = None
        """Cordons that the watcher got last; None if it got none."""
        self._service = service

    def known_cordons(self) -> list[Document]:
        """Return the cordons that the watcher may know now."""
        cordons: list[Document] = msgspec.to_builtins(state_for(self._service, self.shows).cordons)
        return cordons


LARGE = ("runs", "nodes")
"""Parts of documents that grow with the number of runs and nodes."""


class RunFeed(Feed):
    """Feed of one run: the `server`, the `run`, its `nodes` by numbers of their own, and the `quiet` ones."""

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self.run_id = run_id
        self._run: Run | None = None
        self._changed_agents: dict[str, None] = {}
        self._keys: dict[str, str] = {}
        """Name of each agent in the document. It replaces the id, with which readers could act as the agent."""
        self._last_key = 0

    def note(self, run_id: str, agent_ids: Iterable[str], node_id: str | None) -> None:
        of_node = self._run.node_ids.get(node_id, ()) if self._run and node_id is not None else ()
        self._changed_agents |= dict.fromkeys([*agent_ids, *of_node])

    def look(self, runs: dict[str, Run], now: Now, *, is_new_leader: bool) -> None:
        if is_new_leader:
            self._run = None  # so that all of it is read again

    async def update(self, runs: dict[str, Run], now: Now) -> None:
        run = runs.get(self.run_id)
        if run is not self._run:  # another attempt, or the same run at a new leader
            self._run = run
            self._changed_agents |= dict.fromkeys([*self._keys, *(run.agents if run else ())])
        await self._update_nodes(run)
        new = self._parts(run, now(self.run_id)) if run else {}
        old: Document = {name: self.document[name] for name in ("run", "quiet") if name in self.document}
        self.publish(difference(old, new))

    async def _update_nodes(self, run: Run | None) -> None:
        changed, self._changed_agents = self._changed_agents, {}
        nodes: Document = {}
        for agent_id in changed:
            self._difference(run, agent_id, nodes)
            if len(nodes) == EACH_PATCH:
                self.publish({"nodes": nodes})
                nodes = {}
            await checkpoint()
        self.publish({"nodes": nodes})

    def _difference(self, run: Run | None, agent_id: str, nodes: Document) -> None:
        agent = run.agents.get(agent_id) if run else None
        if run and agent:
            if agent_id not in self._keys:
                self._last_key += 1
                self._keys[agent_id] = str(self._last_key)
            key = self._keys[agent_id]
            before = self.document.get("nodes", {}).get(key, {})
            if patch := difference(before, read(run, lambda: watch_view.node(run, agent), lambda _: before)):
                nodes[key] = patch
        elif key := self._keys.pop(agent_id, ""):
            nodes[key] = None

    def _parts(self, run: Run, now: float) -> Document:
        """Return the parts of the document that do not grow with the number of nodes."""
        clock = _clock(run)
        return read(
            run,
            lambda: {"run": watch_view.view(run, now, clock), "quiet": self._quiet(run, now, clock)},
            lambda why: {"run": watch_view.unreadable(run, clock, why), "quiet": {}},
        )

    def _quiet(self, run: Run, now: float, clock: watch_view.Clock) -> Document:
        quiet = watch_view.quiet(run, now, clock)
        return {self._keys[agent_id]: each for agent_id, each in quiet.items() if agent_id in self._keys}


class RunsFeed(Feed):
    """Feed of all runs: the latest attempts of all `runs`, and the `server`."""

    def __init__(self) -> None:
        super().__init__()
        self._changed_runs: dict[str, None] = {}
        self._is_new = True
        """Whether all runs have to be read, because the document or the leader is new."""
        self._timed: dict[str, tuple[Health | int, ...]] = {}
        """Facts that change by time, for each run that has any: states of health, and the restarts in the window."""

    def note(self, run_id: str, agent_ids: Iterable[str], node_id: str | None) -> None:
        self._changed_runs[run_id] = None

    def look(self, runs: dict[str, Run], now: Now, *, is_new_leader: bool) -> None:
        """Note forming runs and unreadable ones, and runs that have changed by time.

        A sign of life may change what a forming run waits for without an effect.
        """
        self._is_new |= is_new_leader
        before, self._timed = (
            self._timed,
            {run_id: found for run_id, run in runs.items() if (found := _timed(run, now))},
        )
        self._changed_runs |= dict.fromkeys(
            run_id for run_id in before.keys() | self._timed.keys() if before.get(run_id) != self._timed.get(run_id)
        )
        changing = (run_id for run_id, run in runs.items() if run.stage is Stage.FORMING or run.unreadable)
        self._changed_runs |= dict.fromkeys(changing)

    async def update(self, runs: dict[str, Run], now: Now) -> None:
        known = self.document.get("runs", {})
        if self._is_new:
            self._is_new, self._changed_runs = False, dict.fromkeys([*known, *runs])
        changed, self._changed_runs = self._changed_runs, {}
        for run_ids in _batches(list(changed), EACH_PATCH):
            found: Document = {}
            for run_id in run_ids:
                if (patch := self._difference(run_id, runs.get(run_id), now(run_id))) != {}:
                    found[run_id] = patch
                await checkpoint()
            self.publish({"runs": found})
        if "runs" not in self.document:
            self.publish({"runs": {}})

    def _difference(self, run_id: str, run: Run | None, now: float) -> Document | None:
        known = self.document.get("runs", {})
        if run is None:
            return None if run_id in known else {}
        clock = _clock(run)
        new = read(run, lambda: watch_view.summary(run, now, clock), lambda why: watch_view.unreadable(run, clock, why))
        return difference(known.get(run_id, {}), new)


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

    def happened(self, effects: Iterable[Effect]) -> None:
        """Note what a batch of effects is about. If that raises, all documents are read again."""
        if not self._feeds:
            return
        try:
            self._note_all(effects)
        except Exception:
            self._leaders = None
            raise

    def _note_all(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Record(run_id=run_id, fact=fact):
                    self._note(run_id, _agents_of(fact))
                case WakeAgents(run_id, agent_ids):
                    self._note(run_id, agent_ids)
                case ForgetRun(run_id):
                    self._note(run_id, ())
                case Happened(event):
                    self._note(event.run_id, (), event.node_id)

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


def server_sent(kind: str, content: bytes, event_id: str = "") -> bytes:
    """Return a server-sent event. `content` is JSON in one line."""
    number = f"id: {event_id}\n" if event_id else ""
    return f"{number}event: {kind}\ndata: ".encode() + content + b"\n\n"


def _event(kind: str, content: Document, event_id: str = "") -> bytes:
    return server_sent(kind, msgspec.json.encode(content), event_id)


def _without_cordons(server: Document) -> Document:
    return {name: value for name, value in server.items() if name != "cordons"}


def _agents_of(fact: object) -> Iterator[str]:
    """Yield the ids of the agents that a fact is about."""
    if (join := getattr(fact, "join", None)) is not None:
        yield join.agent_id
        yield from getattr(fact, "replaces", ())
    elif agent_id := getattr(fact, "agent_id", ""):
        yield agent_id


def _timed(run: Run, now: Now) -> tuple[Health | int, ...]:
    at = now(run.run_id)
    return read(run, lambda: (*health.timed(run, at), *_restarts_in_window(run, at)), lambda _: ())


def _restarts_in_window(run: Run, now: float) -> tuple[int, ...]:
    """Return the number of restarts that will no longer count after some time; empty if there are none."""
    return (restart_budget.used(run, now),) if run.charged_at else ()


def _clock(run: Run) -> Callable[[float], float]:
    """Return a function that converts times of the run to wall-clock time."""
    return lambda at: round(run.wall_clock(at), 1)


def _batches(keys: list[str], size: int) -> Iterator[list[str]]:
    return (keys[begin : begin + size] for begin in range(0, len(keys), size))
