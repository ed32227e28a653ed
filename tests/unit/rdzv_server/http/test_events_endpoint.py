"""Events over HTTP: pages, streams, permissions, and slow readers."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientResponse, ClientSession
from rdzv_protocol import paths
from rdzv_protocol.events import RunEvent

from rdzv_server.auth.authorization import Access, Role, Token
from rdzv_server.config import Limits
from rdzv_server.http import events_endpoint
from rdzv_server.http.events_endpoint import LAST_NUMBER, MOST_EVENTS
from rdzv_server.server import RendezvousServer, bind
from rdzv_server.words import http as words
from tests.support.agent_side import come_and_go, is_forgotten_for_another

PATIENCE_S, NEVER_S = 20.0, 1_000.0
RUN = "a/run with %2F & ?"
STREAM = {"Accept": "text/event-stream"}


class Site:
    """A server on a real socket, and a client of its events."""

    def __init__(self, server: RendezvousServer, port: int, session: ClientSession) -> None:
        self.server, self.port, self.session = server, port, session
        self.joined = 0

    async def happens(self, times: int = 1, run_id: str = RUN) -> None:
        """Let this number of nodes join, and leave at once: two events each."""
        for _ in range(times):
            self.joined += 1
            await come_and_go(self.server.rendezvous, run_id, f"agent-{self.joined}")

    async def page(self, query: str = "", run_id: str = RUN, **headers: str) -> Any:
        async with self.session.get(f"{paths.events_of(run_id)}{query}", headers=headers) as answer:
            return answer.status, json.loads(await answer.read())

    async def read(self, count: int, after: int = 0, **headers: str) -> list[dict[str, str]]:
        """Return the first event frames of a stream, as their fields."""
        async with self.stream(after, **headers) as answer:
            return await frames_of(answer, count)

    @asynccontextmanager
    async def stream(self, after: int = 0, **headers: str) -> AsyncIterator[ClientResponse]:
        headers = STREAM | ({"Last-Event-ID": str(after)} if after else {}) | headers
        async with asyncio.timeout(PATIENCE_S), self.session.get(paths.events_of(RUN), headers=headers) as answer:
            assert (answer.status, answer.content_type) == (200, "text/event-stream")
            yield answer


async def frames_of(answer: ClientResponse, count: int) -> list[dict[str, str]]:
    """Return the next event frames of a stream, as their fields."""
    frames: list[dict[str, str]] = []
    fields: dict[str, str] = {}
    while len(frames) < count:
        line = (await answer.content.readline()).decode().rstrip("\n")
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            frames += [fields] if "data" in fields else []
            fields = {}
    return frames


@asynccontextmanager
async def serving(*tokens: Token, max_runs: int = 100, **limits: float) -> AsyncIterator[Site]:
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    async with ClientSession(f"http://127.0.0.1:{port}") as session, RendezvousServer(max_runs=max_runs) as server:
        await server.listen(listener, access=Access(tokens), limits=Limits(**limits))
        yield Site(server, port, session)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with serving() as site:
        yield site


# Pages.


async def test_a_page_contains_events_and_the_start_of_the_next_page(site):
    await site.happens(2)
    status, first = await site.page("?limit=3")
    assert status == 200
    assert [(event["number"], event["kind"]) for event in first["events"]] == [
        (1, "run_created"), (2, "node_joined"), (3, "node_left"),
    ]  # fmt: skip
    assert (first["after"], first["last"]) == (3, 5)
    _, rest = await site.page(f"?after={first['after']}")
    assert [event["number"] for event in rest["events"]] == [4, 5]
    assert await site.page("?after=5") == (200, {"events": [], "after": 5, "last": 5})
    assert rest["events"][0]["node_id"] == "agent-2" and "failure" not in rest["events"][0]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        *((f"?after={text}", words.bad_number("after", 0, LAST_NUMBER, text)) for text in ("-1", "x")),
        *((f"?limit={text}", words.bad_number("limit", 1, MOST_EVENTS, text)) for text in ("0", "1001")),
    ],
)
async def test_an_invalid_number_is_refused(site, query, says):
    await site.happens()
    status, refusal = await site.page(query)
    assert (status, refusal["code"]) == (400, "malformed_message") and refusal["message"] == says


async def test_an_unknown_run_is_refused_as_a_page_and_as_a_stream(site):
    assert (await site.page(run_id="nobody"))[1]["code"] == "unknown_run"
    status, refusal = await site.page(run_id="nobody", **STREAM)
    assert (status, refusal["code"]) == (404, "unknown_run")


async def test_a_run_without_a_leader_does_not_keep_readers_of_other_runs_waiting(site, monkeypatch):
    """One of several servers waits a while for a leader before it refuses."""
    with_driver, waits = site.server.rendezvous.with_driver, asyncio.Event()

    async def wait_for_leader(run_id: str, work: Any) -> Any:
        if run_id == "leaderless":
            waits.set()
            await asyncio.Event().wait()
        return await with_driver(run_id, work)

    monkeypatch.setattr(site.server.rendezvous, "with_driver", wait_for_leader)
    await site.happens()
    waiting = asyncio.create_task(site.page(run_id="leaderless"))
    async with asyncio.timeout(PATIENCE_S):
        await waits.wait()
        assert (await site.page())[0] == 200
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_a_token_for_some_runs_reads_only_their_events():
    async with serving(Token(Role.AGENT, b"mine", "mine-*"), Token(Role.READ, b"all")) as site:
        await site.happens(run_id="mine-1")
        await site.happens(run_id="yours-1")
        mine, everything = {"Authorization": "Bearer mine"}, {"Authorization": "Bearer all"}
        assert (await site.page(run_id="mine-1", **mine))[0] == 200
        for accept in ({}, STREAM):
            assert (await site.page(run_id="yours-1", **mine, **accept))[1]["code"] == "forbidden"
            assert (await site.page(run_id="yours-1", **accept))[1]["code"] == "unauthorized"
        assert (await site.page(run_id="yours-1", **everything))[0] == 200


async def test_a_stream_ends_when_the_tokens_are_read_again(monkeypatch):
    """A reader that still has permission reconnects with its last number."""
    monkeypatch.setattr(events_endpoint, "HEARTBEAT_S", 0.02)
    headers = STREAM | {"Authorization": "Bearer old"}
    async with serving(Token(Role.READ, b"old")) as site, asyncio.timeout(PATIENCE_S):
        await site.happens()
        async with site.session.get(paths.events_of(RUN), headers=headers) as answer:
            await answer.content.readuntil(b"event: node_left")
            site.server.renew(Access([Token(Role.READ, b"new")]), None)
            assert b"event: node" not in await answer.content.read()
        assert (await site.page(**headers))[1]["code"] == "unauthorized"


# Streams.


async def test_a_stream_begins_with_past_events_and_continues_with_new_ones(site, monkeypatch):
    """It does not wait for the next comment, at which it reads the store."""
    monkeypatch.setattr(events_endpoint, "HEARTBEAT_S", NEVER_S)
    await site.happens()
    async with site.stream() as answer:
        frames = await frames_of(answer, 3)
        await site.happens(2)
        frames += await frames_of(answer, 4)
    assert [int(frame["id"]) for frame in frames] == list(range(1, 8))
    events = [json.loads(frame["data"]) for frame in frames]
    assert [event["kind"] for event in events] == [frame["event"] for frame in frames]
    assert events[1]["reason"] == "node agent-1 joined"


async def test_a_stream_continues_after_the_last_event_that_its_reader_has_seen(site):
    await site.happens(3)
    assert [frame["id"] for frame in await site.read(2, after=4)] == ["5", "6"]


async def test_events_are_sent_even_if_the_store_is_not_read_meanwhile(site, monkeypatch):
    """There are more events than the streams of a run share."""
    monkeypatch.setattr(events_endpoint, "RECENT", 4)
    monkeypatch.setattr(events_endpoint, "STREAM_PAGE", 3)
    await site.happens()
    readers = [asyncio.create_task(site.read(41)) for _ in range(3)]
    await site.happens(20)
    for frames in await asyncio.gather(*readers):
        assert [int(frame["id"]) for frame in frames] == list(range(1, 42))


async def test_a_stream_reads_an_event_that_it_missed_after_an_error_from_the_store(site, monkeypatch):
    await site.happens()
    reading = asyncio.create_task(site.read(9))
    while not reading.done():
        with monkeypatch.context() as broken:
            broken.setattr(events_endpoint._Feed, "add", lambda *_: 1 / 0)
            await site.happens()
        await site.happens()
        await asyncio.sleep(0.01)
    assert [int(frame["id"]) for frame in await reading] == list(range(1, 10))


async def test_an_error_over_an_event_is_shown_by_status_probe_and_metrics(site):
    def odd_observer(effect):
        raise KeyError("odd")

    site.server.service.observe(odd_observer)
    await site.happens()
    async with site.session.get(paths.STATUS) as answer:
        assert (await answer.json())["server"]["event_errors"] == [RUN]
    async with site.session.get(paths.HEALTHZ) as answer:
        assert (answer.status, await answer.text()) == (200, f"ok; {words.event_errors(1)}\n")
    async with site.session.get(paths.METRICS) as answer:
        (line,) = [line for line in (await answer.text()).splitlines() if line.startswith("rdzv_event_errors_total")]
        assert float(line.split()[1]) > 0


async def test_a_stream_continues_when_its_run_is_forgotten_and_begins_again():
    """No number that the reader has seen is reused: the reader would take it for a copy."""
    async with serving(max_runs=1) as site, asyncio.timeout(PATIENCE_S):
        await site.happens()
        async with site.session.get(paths.events_of(RUN), headers=STREAM) as answer:
            await answer.content.readuntil(b"event: node_left")
            await is_forgotten_for_another(site.server.rendezvous, RUN)
            await site.happens()
            await answer.content.readuntil(b"event: run_created")
            seen = await answer.content.readuntil(b"event: node_left")
        (run,) = site.server.rendezvous.runs()
    assert run.attempt == 2 and f"id: {run.event_number - 1}\n".encode() in seen


async def test_a_stream_without_events_is_kept_alive_by_comments(site, monkeypatch):
    monkeypatch.setattr(events_endpoint, "HEARTBEAT_S", 0.02)
    await site.happens()
    async with asyncio.timeout(PATIENCE_S), site.session.get(paths.events_of(RUN), headers=STREAM) as answer:
        while await answer.content.readline() != b":\n":
            pass


async def test_a_stream_ends_with_the_reason_when_the_run_is_forgotten(site, monkeypatch):
    monkeypatch.setattr(events_endpoint, "HEARTBEAT_S", 0.02)
    await site.happens()
    async with asyncio.timeout(PATIENCE_S), site.session.get(paths.events_of(RUN), headers=STREAM) as answer:
        await answer.content.readuntil(b"event: node_left")
        site.server.rendezvous._driver.registry._forget(site.server.rendezvous.runs()[0], 0.0)
        rest = (await answer.content.read()).decode()
    assert "event: error" in rest and '"code":"unknown_run"' in rest


async def test_the_number_of_streams_is_limited_and_a_closed_stream_frees_its_place(site, monkeypatch):
    monkeypatch.setattr(events_endpoint, "MOST_STREAMS", 1)
    await site.happens()
    async with site.session.get(paths.events_of(RUN), headers=STREAM) as answer:
        await answer.content.readline()
        assert (await site.page(**STREAM))[1]["code"] == "too_many_requests"
        assert (await site.page())[0] == 200
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with site.session.get(paths.events_of(RUN), headers=STREAM) as answer:
                if answer.status == 200:
                    break


async def test_a_reader_that_does_not_read_is_cut_off_and_continues_by_number(monkeypatch):
    cut, pages = asyncio.Event(), 0

    async def read_events(run_id: str, after: int, most: int) -> list[RunEvent]:
        """Return a part of a long story. No more is read than is sent."""
        nonlocal pages
        pages += 1
        of_run = {"run_id": RUN, "attempt": 1, "round": 1, "kind": "warning", "reason": "x" * 8_000}
        return [RunEvent(number=after + 1 + place, **of_run) for place in range(most)]

    async with serving(unread_s=0.2) as site, asyncio.timeout(PATIENCE_S):
        await site.happens()
        monkeypatch.setattr(site.server._listener, "_closed", lambda connection: cut.set())
        monkeypatch.setattr(site.server.rendezvous._driver, "read_events", read_events)
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            lazy.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(lazy, ("127.0.0.1", site.port))
            await loop.sock_sendall(
                lazy, f"GET {paths.events_of(RUN)} HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n".encode()
            )
            await cut.wait()
        assert pages < 20, "it was sent what a socket holds, and nothing was set aside for it"
        last = await site.read(3, after=1_000)
        assert [frame["id"] for frame in last] == ["1001", "1002", "1003"]
