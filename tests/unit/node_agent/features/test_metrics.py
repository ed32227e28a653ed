"""The port of an agent's metrics."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rdzv_protocol.exposition import CONTENT_TYPE
from rdzv_protocol.paths import AGENT_HAS_METRICS_ONLY

from node_agent.features.metrics import Metrics
from node_agent.features.metrics.feature import AgentMetrics
from node_agent.features.metrics.scrape import MOST_HEAD_BYTES
from node_agent.kernel.feature import Kernel
from tests.support.console import FakeConsole

LONG_S = 60.0


@pytest.fixture
async def metrics() -> AsyncIterator[AgentMetrics]:
    kernel = cast(Kernel, SimpleNamespace(console=FakeConsole()))
    metrics = AgentMetrics(kernel, Metrics(metrics_port=("localhost", 0)))
    yield metrics
    await metrics.close()


async def test_the_metrics_host_is_resolved_in_a_thread(metrics: AgentMetrics, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that does not answer must not block the agent's event loop."""
    answer, asked_by = socket.getaddrinfo, list[threading.Thread]()

    def asked(*args: Any, **kwargs: Any) -> Any:
        asked_by.append(threading.current_thread())
        return answer(*args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", asked)
    await metrics.open()
    assert asked_by and threading.main_thread() not in asked_by


async def answer(metrics: AgentMetrics, request: bytes, *, ends: bool = False) -> tuple[str, dict[str, str], bytes]:
    """Return the first line, the headers and the body of the answer, each empty without an answer."""
    if metrics._socket is None:
        await metrics.open()
    assert metrics._socket
    reader, writer = await asyncio.open_connection(*metrics._socket.getsockname()[:2])
    async with asyncio.timeout(LONG_S):
        writer.write(request)
        if ends:
            writer.write_eof()
        try:
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        except ConnectionResetError:
            head = body = b""
    writer.close()
    first, *lines = head.decode().split("\r\n")
    return first, dict(line.split(": ") for line in lines), body


GET = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"
OFFER = b"Upgrade: h2c\r\nConnection: upgrade\r\n\r\n"


@pytest.mark.parametrize(
    "request_",
    [
        GET,
        GET.replace(b"/metrics", b"/metrics?a=b"),
        GET.replace(b"HTTP/1.1", b"HTTP/1.0"),
        GET[:-2] + OFFER,
        GET[:-2] + b"Content-Length: 3\r\n\r\n",
        GET + b"\0",
        GET + GET.replace(b"/metrics", b"/other"),
    ],
    ids=["plain", "query", "HTTP/1.0", "upgrade", "body", "garbage after it", "a second one"],
)
async def test_a_scrape_is_answered(metrics: AgentMetrics, request_: bytes) -> None:
    first, headers, body = await answer(metrics, request_)
    assert first == "HTTP/1.1 200 OK"
    assert headers == {"Content-Type": CONTENT_TYPE, "Content-Length": str(len(body)), "Connection": "close"}
    assert b"rdzv_agent_rounds_started_total 0" in body


async def test_an_answer_to_head_has_no_body(metrics: AgentMetrics) -> None:
    first, headers, body = await answer(metrics, GET.replace(b"GET", b"HEAD"))
    assert (first, body) == ("HTTP/1.1 200 OK", b"")
    assert int(headers["Content-Length"]) > 0


@pytest.mark.parametrize("start", [b"GET /", b"POST /metrics", b"CONNECT a:1", b"GET /metrics/more"])
async def test_other_requests_are_not_found(metrics: AgentMetrics, start: bytes) -> None:
    first, headers, body = await answer(metrics, start + b" HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
    assert first == "HTTP/1.1 404 Not Found"
    assert (headers["Content-Type"], body.decode()) == ("text/plain", f"{AGENT_HAS_METRICS_ONLY}\n")


@pytest.mark.parametrize(
    "request_",
    [
        b"\0\r\n\r\n",
        b"GET /" + b"x" * 2 * MOST_HEAD_BYTES,
        GET[:-2] + b"A: b\r\n" * MOST_HEAD_BYTES,
        GET[:-2] + b"A: b\0c\r\n\r\n",
        GET[:-2] + b"A : b\r\n\r\n",
        GET[:-2] + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        GET.replace(b"\r\n", b"\n"),
        GET.replace(b"HTTP/1.1", b"HTTP/3.7"),
    ],
    ids=["NUL", "long path", "many headers", "NUL in a header", "space", "two lengths", "line ends", "version"],
)
async def test_an_invalid_request_gets_no_answer(metrics: AgentMetrics, request_: bytes) -> None:
    assert await answer(metrics, request_) == ("", {}, b"")
    assert (await answer(metrics, GET))[0] == "HTTP/1.1 200 OK"


async def test_a_client_that_leaves_within_its_request_gets_no_answer(metrics: AgentMetrics) -> None:
    assert await answer(metrics, GET[:-1], ends=True) == ("", {}, b"")
