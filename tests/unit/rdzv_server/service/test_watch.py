"""Watchers of a server: their messages add up to the document, however they come, go and lag. No HTTP."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rdzv_protocol.actions import CordonRequest
from rdzv_protocol.errors import ServerUnavailable
from rdzv_protocol.messages import LeaveRequest, ReportRequest

from rdzv_server.core.views import run_view
from rdzv_server.core.views.watch_view import Document, merge
from rdzv_server.server import RendezvousServer
from rdzv_server.service import feeds
from rdzv_server.service import watch as watching
from rdzv_server.service.feeds import Feed, RunsFeed
from rdzv_server.service.interface import OperatorRequest
from rdzv_server.service.watch import Watch
from rdzv_server.words import service as words
from tests.support.message_search import beginning
from tests.support.scenario import RUN_ID, Connection, a_failure, a_join, running, settings_of

PATIENCE_S = 100.0


class Reader:
    """A page without a browser: it makes the document from its messages."""

    def __init__(self) -> None:
        self.document: Document = {}
        self.last_event_id = ""
        self.kinds: list[str] = []

    def take(self, event: bytes) -> None:
        fields = dict(line.split(": ", 1) for line in event.decode().strip().split("\n"))
        content = json.loads(fields["data"])
        self.kinds.append(fields["event"])
        self.last_event_id = fields.get("id", self.last_event_id)
        if fields["event"] == "snapshot":
            self.document = {}
        if fields["event"] != "ping":
            content.pop("time", None)
            merge(self.document, content)

    async def follow(self, events: AsyncIterator[bytes], until: Any) -> None:
        """Read until the document is complete and correct."""
        async with asyncio.timeout(PATIENCE_S), aclosing(events) as events:
            async for event in events:
                self.take(event)
                if self.last_event_id and until(self.document):
                    return


async def catch_up(reader: Reader, feed: Feed) -> None:
    """Read all messages: the reader is up to date when its number is the feed's."""
    async with aclosing(feed.follow(reader.last_event_id, None)) as events:
        while reader.last_event_id != f"{feed.incarnation}.{feed.number}":
            reader.take(await anext(events))


parts = st.dictionaries(st.sampled_from("abc"), st.none() | st.integers(0, 5), max_size=3)
patches = st.fixed_dictionaries({}, optional={"nodes": parts, "run": parts, "server": parts})


@given(st.lists(st.tuples(patches, st.booleans()), min_size=1, max_size=30), st.sampled_from([1, 3, 100]))
def test_a_returning_watcher_gets_the_missed_patches_or_the_whole_document(
    story: list[tuple[Document, bool]], kept: int
) -> None:
    async def tell() -> None:
        feed, reader = Feed(), Reader()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(feeds, "MOST_PATCHES", kept)
            for difference, comes in story:
                feed.publish(difference)
                if comes:
                    await catch_up(reader, feed)
                    assert reader.document == feed.document
            behind = feed.after(feed.place(reader.last_event_id) or 0)
            snapshots = reader.kinds.count("snapshot")
            await catch_up(reader, feed)
        assert reader.document == feed.document
        if reader.kinds and snapshots and behind is not None:
            assert reader.kinds.count("snapshot") == snapshots, "what it has missed was there still"

    asyncio.run(tell())


async def test_a_slow_watcher_gets_the_whole_document_and_nothing_is_buffered_for_it(monkeypatch: Any) -> None:
    monkeypatch.setattr(feeds, "MOST_BYTES", 2_000)
    feed, reader = Feed(), Reader()
    feed.publish({"nodes": {"1": {"state": "waiting"}}})
    async with aclosing(feed.follow("", None)) as events:
        while not reader.last_event_id:
            reader.take(await anext(events))
        for number in range(1_000):
            feed.publish({"nodes": {"1": {"state": f"state {number}"}}})
        assert sum(len(patch.content) for patch in feed._patches) <= 2_000
        while reader.document != feed.document:
            reader.take(await anext(events))
    assert reader.kinds == ["snapshot", "patch", "patch", "snapshot", "patch"]


def test_a_revision_of_an_earlier_document_is_unknown() -> None:
    feed = Feed()
    for wrong in (
        "",
        "1",
        f"{feed.incarnation}.",
        f"{feed.incarnation}.x",
        f"other.{1}",
        f"{feed.incarnation}.-1",
        "é.²",
    ):
        assert feed.place(wrong) is None
    assert feed.place(f"{feed.incarnation}.7") == 7 and feed.after(7) is None, "a number that was never given"


async def test_the_list_of_runs_shows_a_run_that_stalls_without_anything_happening() -> None:
    run, feed = running("2", "a", "b"), RunsFeed()
    runs, health = {RUN_ID: run.run}, []
    for age_s in (60.1, 0.0, 0.0):
        feed.look(runs, lambda _: run.now, is_new_leader=False)
        await feed.update(runs, lambda _: run.now)
        health.append(feed.document["runs"][RUN_ID].get("health", {}).get("state"))
        run.now += 60.1
        run.tells("a", highest_step=7, step_s=0.2, age_s=age_s)
    assert health == [None, "stalled", None]


async def test_the_list_shows_that_a_restart_no_longer_counts() -> None:
    run, feed = running("1", "a", max_restarts=2, restart_window_s=15.0), RunsFeed()
    run.fails("a")
    run.join("a")
    runs, used = {RUN_ID: run.run}, []
    for _ in range(2):
        feed.look(runs, lambda _: run.now, is_new_leader=False)
        await feed.update(runs, lambda _: run.now)
        used.append(feed.document["runs"][RUN_ID]["restarts_used"])
        run.now += 20.0
    assert used == [1, 0]


# With a real service.


class Story:
    """A server whose run happens step by step."""

    def __init__(self, server: RendezvousServer) -> None:
        self.server = server
        self.watch = Watch(server.rendezvous)
        self._tasks: list[asyncio.Task[Any]] = []

    async def join(self, *names: str, run_id: str = RUN_ID, node: str | None = None, nodes: str = "2:4") -> None:
        """Join agents to the run. Their answers may come later. They never poll, and their leases do not end."""
        settings = settings_of(nodes, last_call_timeout_s=0.0, max_restarts=3, lease_s=600.0)
        for name in names:
            request = a_join(name, settings=settings, node=node, run_id=run_id)
            self._tasks.append(asyncio.create_task(self.server.rendezvous.ask(request, Connection(name))))
        await asyncio.sleep(0)

    async def fail(self, name: str) -> None:
        report = ReportRequest(run_id=RUN_ID, agent_id=name, round=1, failure=a_failure(name))
        await self.server.rendezvous.ask(report, Connection(name))

    async def leave(self, name: str) -> None:
        await self.server.rendezvous.ask(LeaveRequest(run_id=RUN_ID, agent_id=name, reason="SIGTERM"), Connection(name))

    def follow(self, run_id: str | None = RUN_ID, last: str = "", shows: Any = None) -> AsyncIterator[bytes]:
        return self.watch.follow("peer", run_id, last, shows)

    async def end(self) -> None:
        self.watch.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.fixture
async def story() -> AsyncIterator[Story]:
    async with RendezvousServer() as server:
        story = Story(server)
        yield story
        await story.end()


def phase(document: Document) -> str:
    return document.get("run", {}).get("phase", "")


def states(document: Document) -> dict[str, str]:
    return {node["node_id"]: node["state"] for node in document.get("nodes", {}).values()}


async def test_a_run_is_followed_from_before_it_begins_to_its_restart(story: Story) -> None:
    early, late = Reader(), Reader()
    watching_early = asyncio.create_task(early.follow(story.follow(), lambda document: phase(document) == "restarting"))
    await asyncio.sleep(0)
    await story.join("a", "b")
    both_run = {"a": "running", "b": "running"}
    await late.follow(story.follow(), lambda document: phase(document) == "running" and states(document) == both_run)
    await story.fail("a")
    await watching_early
    await late.follow(
        story.follow(last=late.last_event_id), lambda document: states(document) == {"a": "stopping", "b": "stopping"}
    )
    assert late.kinds.count("snapshot") == 1, "a watcher that comes back gets what is new"
    await story.leave("b")
    await late.follow(story.follow(last=late.last_event_id), lambda document: document["run"].get("missing"))
    assert late.document["run"]["missing"]["1"]["node_id"] == "b" and states(late.document) == {"a": "stopping"}
    afresh = Reader()
    await afresh.follow(story.follow(), lambda document: document == late.document)


async def test_all_runs_are_followed_and_a_team_sees_its_own(story: Story) -> None:
    everything, own = Reader(), Reader()
    await story.join("a", run_id="team-a-1")
    await everything.follow(story.follow(None), lambda document: "team-a-1" in document.get("runs", {}))
    others = asyncio.create_task(
        own.follow(story.follow(None, shows=lambda run_id: run_id.startswith("team-a")),
        lambda document: "team-a-2" in document.get("runs", {}))
    )  # fmt: skip
    await asyncio.sleep(0)
    await story.join("b", run_id="team-b-1")
    await story.join("c", run_id="team-a-2")
    await others
    assert set(own.document["runs"]) == {"team-a-1", "team-a-2"}
    await everything.follow(
        story.follow(None, last=everything.last_event_id), lambda document: len(document["runs"]) == 3
    )


async def test_a_team_sees_the_cordons_of_its_own_nodes(story: Story) -> None:
    for name in ("a", "b"):
        cordon = CordonRequest(node_id=name, reason=f"fan of {name}")
        await story.server.rendezvous.ask(OperatorRequest(cordon, "me"), Connection("operator"))
    await story.join("b", run_id="team-b-1")
    own = Reader()
    following = asyncio.create_task(
        own.follow(
            story.follow(None, shows=lambda run_id: run_id.startswith("team-a")),
            lambda document: document.get("server", {}).get("cordons"),
        )
    )
    await asyncio.sleep(0)
    await story.join("a", run_id="team-a-1")
    await following
    assert [cordon["reason"] for cordon in own.document["server"]["cordons"]] == ["fan of a"]


async def test_no_secret_agent_id_is_shown(story: Story) -> None:
    name = "agent-" + 8 * "secret-"
    await story.join(name, node="a")
    reader = Reader()
    await reader.follow(story.follow(), lambda document: "run" in document and len(states(document)) == 1)
    assert name not in json.dumps(reader.document)


async def test_a_run_of_1000_nodes_is_streamed_in_parts_below_a_megabyte(story: Story) -> None:
    await story.join(*(f"node-{number}-of-the-cluster-with-a-long-name" for number in range(1_000)), nodes="1000")
    await Reader().follow(story.follow(), lambda document: Counter(states(document).values()) == {"running": 1_000})
    reader, sizes = Reader(), []
    async with asyncio.timeout(PATIENCE_S), aclosing(story.follow()) as events:
        while not reader.last_event_id:
            sizes.append(len(event := await anext(events)))
            reader.take(event)
    assert set(states(reader.document).values()) == {"running"}
    assert sum(sizes) < 1_000_000 and max(sizes) < 50_000


async def test_the_number_of_watchers_is_bounded_and_half_of_it_for_one_address(story: Story) -> None:
    streams = []
    async with asyncio.timeout(PATIENCE_S):
        for number in range(watching.MOST_WATCHERS // 2):
            streams.append(story.watch.follow("crowd", f"none such {number}"))
            await anext(streams[-1])
        with pytest.raises(ServerUnavailable, match=words.TOO_MANY_WATCH):
            await anext(story.watch.follow("crowd", None))
        streams.append(story.watch.follow("somebody else", None))
        await anext(streams[-1])
        assert story.watch.watchers == watching.MOST_WATCHERS // 2 + 1
        for stream in streams:
            await stream.aclose()
        assert story.watch.watchers == 0
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert set(story.watch._feeds) == {None}, "no watcher comes back for a run that is not there"


async def test_when_the_server_closes_every_stream_ends(story: Story) -> None:
    stream = story.follow()
    reading = asyncio.create_task(Reader().follow(stream, lambda document: False))
    await asyncio.sleep(0)
    story.watch.close()
    await asyncio.wait_for(reading, PATIENCE_S)


@pytest.mark.parametrize("run_id", [RUN_ID, None])
async def test_an_unreadable_run_is_shown_as_unreadable_for_that_time_and_others_as_usual(
    story: Story, monkeypatch: pytest.MonkeyPatch, run_id: str | None
) -> None:
    monkeypatch.setattr(watching, "CHECK_INTERVAL_S", 0.05)
    reader = Reader()
    await story.join("a", "b")
    await story.join("a", "b", run_id="other")

    def runs(document: Document) -> list[Document]:
        found = document.get("runs", {})
        return [found.get(RUN_ID, {}), found.get("other", {})] if run_id is None else [document.get("run", {})]

    def has_reasons(*wanted: str) -> Any:
        return lambda document: all(
            want in run.get("reason", "") for want, run in zip(wanted, runs(document), strict=False)
        )

    with monkeypatch.context() as broken:
        whole = run_view.outlook
        broken.setattr(run_view, "outlook", lambda run, now: 1 / 0 if run.run_id == RUN_ID else whole(run, now))
        await reader.follow(story.follow(run_id), has_reasons(beginning(words.run_cannot_be_shown), "round 1 runs"))
    await reader.follow(story.follow(run_id, last=reader.last_event_id), has_reasons("round 1 runs", "round 1 runs"))


@pytest.mark.parametrize("run_id", [None, RUN_ID])
async def test_after_an_error_over_an_event_the_documents_are_read_again(
    story: Story, monkeypatch: pytest.MonkeyPatch, run_id: str | None
) -> None:
    monkeypatch.setattr(watching, "CHECK_INTERVAL_S", 0.05)
    reader, runs = Reader(), {None: "runs", RUN_ID: "run"}
    await story.join("a", "b")

    def has(word: str) -> Any:
        def is_shown(document: Document) -> bool:
            shown = document.get(runs[run_id], {})
            run = shown.get(RUN_ID, {}) if run_id is None else shown
            nodes = run_id is None or set(states(document).values()) == {"stopping" if word == "restarting" else word}
            return run.get("phase") == word and nodes

        return is_shown

    await reader.follow(story.follow(run_id), has("running"))
    with monkeypatch.context() as broken:
        broken.setattr(story.watch, "_note", lambda *_: 1 / 0)
        await story.fail("a")
    await reader.follow(story.follow(run_id, last=reader.last_event_id), has("restarting"))
    assert story.server.service.state().event_errors == [RUN_ID]


async def test_an_error_over_the_server_s_own_state_is_logged_and_tried_again(
    story: Story, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "CHECK_INTERVAL_S", 0.05)
    reader = Reader()
    await story.join("a", "b")
    await reader.follow(story.follow(), lambda document: phase(document) == "running")
    real = watching.Watch._server

    def broken(watch: Watch) -> Document:
        monkeypatch.setattr(watching.Watch, "_server", real)
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(watching.Watch, "_server", broken)
    await story.fail("a")
    await reader.follow(story.follow(last=reader.last_event_id), lambda document: phase(document) == "restarting")
    assert words.PAGE_NOT_UPDATED in caplog.text
