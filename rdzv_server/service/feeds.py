"""Feeds: documents that people watch, each with its latest differences as JSON merge patches (RFC 7386).

A difference is made once for all watchers, and only from the nodes that the core's effects name. A watcher is only a
position in the list of the latest differences. A watcher that falls behind the list gets the whole document again. Each
difference has a number. A watcher that reconnects with the number of the last one that it has seen gets the differences
that it has missed.
"""

import os
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator

import msgspec
from msgspec import Struct

from rdzv_server.core.kernel.run import Run
from rdzv_server.core.views import watch_view
from rdzv_server.core.views.watch_view import Document, difference, merge
from rdzv_server.service.interface import Service, Shows, state_for
from rdzv_server.service.operator_scheduler import Broadcast, checkpoint
from rdzv_server.service.reading import read

PING_S = 5.0
"""Seconds between two signs of life to a watcher."""
EACH_EVENT = 64
"""Most nodes, or runs, in one event while the whole document is sent."""
EACH_PATCH = 128
"""Most nodes, or runs, in one difference."""
MOST_PATCHES, MOST_BYTES = 256, 1 << 20
"""Most differences, and their total bytes, that are kept for watchers that are behind or come back."""

Now = Callable[[str], float]
"""Clock of a run, by its id."""


class Patch(Struct, frozen=True):
    """Difference as JSON, and as a server-sent event."""

    number: int
    content: bytes
    event: bytes


class Feed:
    """A document and its latest differences. Some watchers see only some of its runs."""

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

    def note(self, run_id: str, agent_ids: Iterable[str], node_id: str | None) -> None:
        self._changed_runs[run_id] = None

    def look(self, runs: dict[str, Run], now: Now, *, is_new_leader: bool) -> None:
        """Note the runs that time or signs of life may have changed: all that have not ended, and unreadable ones."""
        self._is_new |= is_new_leader
        changing = (run_id for run_id, run in runs.items() if not run.has_ended or run.unreadable)
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


def server_sent(kind: str, content: bytes, event_id: str = "") -> bytes:
    """Return a server-sent event. `content` is JSON in one line."""
    number = f"id: {event_id}\n" if event_id else ""
    return f"{number}event: {kind}\ndata: ".encode() + content + b"\n\n"


def _event(kind: str, content: Document, event_id: str = "") -> bytes:
    return server_sent(kind, msgspec.json.encode(content), event_id)


def _without_cordons(server: Document) -> Document:
    return {name: value for name, value in server.items() if name != "cordons"}


def _clock(run: Run) -> Callable[[float], float]:
    """Return a function that converts times of the run to wall-clock time."""
    return lambda at: round(run.wall_clock(at), 1)


def _batches(keys: list[str], size: int) -> Iterator[list[str]]:
    return (keys[begin : begin + size] for begin in range(0, len(keys), size))
