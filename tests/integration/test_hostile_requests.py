"""Garbage on every path gets a 4xx answer and leaves the server unharmed."""

import asyncio
import gzip
import re
from collections.abc import AsyncIterator
from contextlib import suppress

import aiohttp
import msgpack
import pytest
import pytest_asyncio
from rdzv_protocol import actions, paths
from rdzv_protocol.codec import decode
from rdzv_protocol.constraints import MAX_MESSAGE_BYTES
from rdzv_protocol.messages import ErrorReply

from benchmarks.machine import cpu_s, peak_rss_mb
from rdzv_server.words import attempts, http
from tests.support.programs import Server, ended_programs
from tests.support.strangers import HEADER

AGENT_PATHS = [paths.JOIN, paths.POLL, paths.REPORT, paths.LEAVE]
OPERATOR_PATHS = [paths.STATUS, paths.METRICS, paths.HEALTHZ, paths.READYZ]

DEEP: object = 1
for _ in range(100):
    DEEP = [DEEP]

BODIES = {
    "empty": (b"", 400),
    "text": (b"hello", 400),
    "truncated": (msgpack.packb({"run_id": "x"})[:-1], 400),
    "not a map": (msgpack.packb([1, 2, 3]), 400),
    "wrong types": (msgpack.packb({"run_id": 1, "agent_id": [], "node_id": None}), 400),
    "integer keys": (msgpack.packb({1: 2}), 400),
    "deep": (msgpack.packb({"run_id": DEEP}), 400),
    "a promise of 4 GB": (b"\xdd\xff\xff\xff\xff", 400),
    "oversized": (b"\xc1" * (MAX_MESSAGE_BYTES + 1), 413),
    "control characters": (msgpack.packb({"run_id": "a\x00b", "agent_id": "a", "revision": 1}), 400),
}


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Server]:
    """One server for all tests, which stays unharmed."""
    async with ended_programs():
        yield await Server.listen("--store", "memory", "--allow-host", "rdzv.example.com", is_forked=False)


@pytest.fixture(autouse=True)
def programs_end_with_each_test() -> None:
    """Override of the shared fixture: programs of this module end with the module."""


def session_at(server: Server) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(f"http://{server.endpoint}", headers={"Content-Type": paths.MEDIA_TYPE})


async def test_garbage_on_the_agents_paths(server: Server) -> None:
    async with session_at(server) as session:
        for path in AGENT_PATHS:
            for name, (body, status) in BODIES.items():
                async with session.post(path, data=body) as answer:
                    assert answer.status == status, (path, name)
                    refusal = decode(ErrorReply, await answer.read())
                    assert refusal.code == ("message_too_large" if status == 413 else "malformed_message")
                    assert refusal.message
    await is_unharmed(server)


NO_JSON = http.not_json('{"run_id": "..."}')
JSON_BODIES = {
    "empty": (b"", 400, NO_JSON),
    "no JSON": (b'{"run_id":', 400, NO_JSON),
    "no text": (b"\xff\xfe", 400, NO_JSON),
    "no map": (b"[1, 2]", 400, "Request must be a map, not"),
    "no run": (b"{}", 400, "Request.run_id is missing"),
    "a number": (b'{"run_id": 7}', 400, "run_id must be text of 1 to 256 visible characters, not 7"),
    "deep": (b'{"run_id": ' + b"[" * 100_000, 400, NO_JSON),
    "a number of many digits": (b'{"run_id": ' + b"9" * 100_000 + b"}", 400, ""),
    "no name": (b'{"run_id": "a\\u0000b"}', 400, "visible characters, not 'a\\x00b'"),
    "half a letter": (b'{"run_id": "\\ud800"}', 400, ""),
    "oversized": (b" " * (MAX_MESSAGE_BYTES + 1), 413, http.message_too_large(MAX_MESSAGE_BYTES)),
    "a run that there is not": (b'{"run_id": "../../etc/passwd"}', 404, attempts.unknown_run("../../etc/passwd")),
}


async def test_garbage_on_the_operators_paths(server: Server) -> None:
    async with session_at(server) as session:
        for path in (actions.STOP.path, actions.ADMIT.path):
            for name, (body, status, says) in JSON_BODIES.items():
                async with session.post(path, data=body) as answer:
                    assert answer.status == status, (path, name)
                    message = (await answer.json())["message"]
                    assert says in message and message.isprintable(), (path, name)
    await is_unharmed(server)


async def test_oversized_without_a_length(server: Server) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b"x" * 65_536

    async with session_at(server) as session, session.post(paths.JOIN, data=endless()) as answer:
        assert answer.status == 411
    await is_unharmed(server)


async def test_wrong_methods_and_unknown_paths(server: Server) -> None:
    async with session_at(server) as session:
        for path in AGENT_PATHS:
            async with session.get(path) as answer:
                assert (answer.status, answer.headers["Allow"]) == (405, "POST")
        for path in OPERATOR_PATHS:
            async with session.post(path, data=b"x") as answer:
                assert (answer.status, answer.headers["Allow"]) == (405, "GET,HEAD")
        for path in ("/v1", "/v1/agent/../../etc/passwd", "/v1/agent/join/x", "/%00", "/%1b[2Jx"):
            async with session.get(path) as answer:
                assert (answer.status, await answer.text()) == (404, "404 Not Found\n")
        async with session.get("/") as answer:
            assert answer.status == 200 and paths.STATUS in await answer.text()
    await is_unharmed(server)


HOST = b"Host: x\r\n"
GET = b"GET /healthz HTTP/1.1\r\n" + HOST
POLL = b"POST /v1/agent/poll HTTP/1.1\r\n" + HOST + b"Content-Type: application/msgpack\r\n"
STOP = b"POST /v1/runs/stop HTTP/1.1\r\n" + HOST
LAST = GET + b"Connection: close\r\n\r\n"
CHUNKED = POLL + b"Transfer-Encoding: chunked\r\n\r\n"

RAW: dict[str, tuple[bytes, int]] = {
    "HTTP/1.0": (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
    "absolute form": (b"GET http://elsewhere/healthz HTTP/1.1\r\n" + HOST + b"\r\n", 200),
    "empty lines before": (b"\r\n\r\n" + GET + b"\r\n", 200),
    "an unwanted body": (GET + b"Content-Length: 3\r\n\r\nabc", 200),
    "upgrade to websocket": (GET + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n", 200),
    "upgrade to HTTP/2": (GET + b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n", 200),
    "HTTP/2 at once": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "a proxy's method": (b"CONNECT 10.0.0.1:22 HTTP/1.1\r\n" + HOST + b"\r\n", 404),
    "the method TRACE": (b"TRACE /healthz HTTP/1.1\r\n" + HOST + b"\r\n", 405),
    "no method": (b"BREW /healthz HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "no host": (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
    "two hosts": (GET + b"Host: y\r\n\r\n", 400),
    "NUL in the path": (b"GET /\0 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "a path out of the folder": (b"GET /v1/agent/../status HTTP/1.1\r\n" + HOST + b"\r\n", 404),
    "a long path": (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "a long header": (GET + b"X: " + b"y" * 100_000 + b"\r\n\r\n", 400),
    "ten thousand headers": (GET + b"".join(b"X-%d: y\r\n" % number for number in range(10_000)) + b"\r\n", 400),
    "a folded header": (GET + b"X: a\r\n b\r\n\r\n", 400),
    "a space before the colon": (GET + b"X : a\r\n\r\n", 400),
    "a control character": (GET + b"X: a\x01\r\n\r\n", 400),
    "a negative length": (POLL + b"Content-Length: -1\r\n\r\n", 400),
    "a length with a sign": (POLL + b"Content-Length: +3\r\n\r\nabc", 400),
    "two lengths": (POLL + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400),
    "a length beyond any": (POLL + b"Content-Length: 99999999999999999999\r\n\r\nabc", 400),
    "length and chunks": (POLL + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "another encoding": (POLL + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
    "a chunk without a size": (CHUNKED + b"zz\r\nabc\r\n0\r\n\r\n", 411),
    "a chunk of negative size": (CHUNKED + b"-3\r\nabc\r\n0\r\n\r\n", 411),
    "a chunk beyond any size": (CHUNKED + b"f" * 20 + b"\r\nabc\r\n0\r\n\r\n", 411),
    "a chunk longer than it says": (CHUNKED + b"3\r\nabcdef\r\n0\r\n\r\n", 411),
    "ten thousand trailers": (
        CHUNKED + b"0\r\n" + b"".join(b"X-%d: y\r\n" % number for number in range(10_000)) + b"\r\n",
        411,
    ),
    "a giant body, not sent": (POLL + b"Content-Length: 1000000000\r\n\r\n", 413),
    "a giant unwanted body": (GET + b"Content-Length: 1000000000\r\n\r\n", 413),
    "a compressed body, not sent": (POLL + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\n", 415),
    "a compressed body in chunks": (CHUNKED[:-2] + b"Content-Encoding: deflate\r\n\r\n", 415),
    "an unknown compression": (POLL + b"Content-Encoding: x\r\nContent-Length: 3\r\n\r\n", 415),
    "a compression that is none": (STOP + b"Content-Encoding: identity\r\nContent-Length: 3\r\n\r\n", 415),
    "a compressed unwanted body": (GET + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\n", 415),
    "compressed chunks": (POLL + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 411),
    "a body in chunks": (CHUNKED + b"1\r\nx\r\n0\r\n\r\n", 411),
    "chunks of a byte, without end": (CHUNKED + 20_000 * b"1\r\nx\r\n", 411),
    "headers that are large together": (GET + HEADER * 3 + b"\r\n", 431),
    "large headers without an end": (GET + HEADER * 9, 431),
    "headers that are just not too large": (GET + HEADER * 2 + b"\r\n", 200),
    "a large form for the login": (b"POST /login HTTP/1.1\r\n" + HOST + b"Content-Length: 5000\r\n\r\n", 413),
    "an expectation": (POLL + b"Expect: the unexpected\r\nContent-Length: 0\r\n\r\n", 417),
    "bare CR": (b"GET /healthz HTTP/1.1\rHost: x\r\r\r\n\r\n", 400),
    "bare LF": (b"GET /healthz HTTP/1.1\nHost: x\n\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
    "a word": (b"GET\r\n\r\n", 400),
    "a version beyond any": (b"POST / HTTP/9.9\r\n\r\n", 400),
    "a long line": (b"A" * 100_000 + b"\r\n\r\n", 400),
    "SSH": (b"SSH-2.0-OpenSSH_9.0\r\n", 400),
    "redis": (b"*1\r\n$4\r\nPING\r\n", 400),
    "pickle": (b"\x80\x04\x95\x10\0\0\0\0\0\0\0.\r\n\r\n", 400),
}


async def exchange(server: Server, request: bytes) -> bytes:
    """Return all that the server answers until it closes the connection, as the request demands."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    answers = await asyncio.wait_for(reader.read(-1), 10)
    writer.close()
    return answers


async def test_http_that_agents_do_not_use_is_refused(server: Server) -> None:
    statuses: dict[str, int] = {}
    answers: list[bytes] = []
    for name, (noise, _) in RAW.items():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(noise)
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        statuses[name] = int(answer.split()[1])
        answers.append(answer)
        writer.close()
    assert statuses == {name: status for name, (_, status) in RAW.items()}
    assert all(b"\r\nServer: rdzv-server\r\nX-Content-Type-Options: nosniff\r\n" in answer for answer in answers)
    await is_unharmed(server)


async def test_a_refusal_after_the_interim_answer_is_an_answer_too(server: Server) -> None:
    """curl asks before it sends a body of more than a kilobyte. Its person must read why the action is refused."""
    for target, body, status in ((actions.STOP.path, b"{}", 400), ("/a%0aforged%1b%5b31m", b"", 404)):
        head = f"POST {target} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
        answers = await exchange(server, head.encode() + body + LAST)
        statuses = [int(line.split()[1]) for line in re.findall(rb"HTTP/1.1 \d+", answers)]
        assert statuses == [100, status, 200], target
    await is_unharmed(server)


async def test_a_request_without_its_body_times_out(server: Server) -> None:
    """A sender that stalls keeps a connection, but not memory for the body that it announced."""
    writers = [(await asyncio.open_connection("127.0.0.1", server.port))[1] for _ in range(20)]
    for writer in writers:
        writer.write(POLL + b"Content-Length: 1000000000\r\n\r\nabc")
        await writer.drain()
    await is_unharmed(server)
    for writer in writers:
        writer.close()
    assert peak_rss_mb(server.pid) < 100


async def test_pipelined_requests_are_answered_in_their_order(server: Server) -> None:
    answers = await exchange(server, (GET + b"\r\n") * 100 + POLL + b"Content-Length: 3\r\n\r\nabc" + LAST)
    assert [int(line.split()[1]) for line in re.findall(rb"HTTP/1.1 \d+", answers)] == [200] * 100 + [400, 200]
    await is_unharmed(server)


@pytest.mark.parametrize("path", [*OPERATOR_PATHS, paths.OPENAPI])
async def test_head_is_answered_without_a_body(server: Server, path: str) -> None:
    """A client would read a body as the answer to the next request on the connection."""
    answers = await exchange(server, f"HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode() + LAST)
    head, _, rest = answers.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and rest.startswith(b"HTTP/1.1 200") and rest.endswith(b"\r\n\r\nok\n")


async def test_bodies_that_swell_are_not_inflated(server: Server) -> None:
    """4 GB within a few MB, from unauthenticated clients: refused before a byte of them is read, on every path."""
    part = gzip.compress(bytes(10_000_000))

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(400):
            yield part

    async def post(path: str) -> None:
        headers = {"Content-Encoding": "gzip", "Content-Type": paths.MEDIA_TYPE}
        with suppress(aiohttp.ClientError):  # the connection is closed while the body is still being sent
            async with session.post(path, data=chunks(), headers=headers) as answer:
                assert answer.status == 415

    before_s = cpu_s(server.pid)
    async with session_at(server) as session:
        await asyncio.gather(*map(post, (paths.JOIN, actions.STOP.path, paths.STATUS, "/nowhere")))
    assert cpu_s(server.pid) - before_s < 2.0, "inflating 4 GB takes much longer"
    assert peak_rss_mb(server.pid) < 100
    await is_unharmed(server)


BROWSERS: dict[str, tuple[str, str, dict[str, str], int]] = {
    "a page joins": ("POST", paths.JOIN, {"Origin": "http://evil.example"}, 403),
    "the server's own page joins": ("POST", paths.JOIN, {"Origin": "http://127.0.0.1"}, 403),
    "a page without a name joins": ("POST", paths.JOIN, {"Origin": "null"}, 403),
    "a page reports": ("POST", paths.REPORT, {"Origin": "http://evil.example"}, 403),
    "a form's content type": ("POST", paths.JOIN, {"Content-Type": "text/plain;charset=UTF-8"}, 415),
    "no content type": ("POST", paths.POLL, {"Content-Type": ""}, 415),
    "a rebound name": ("GET", paths.STATUS, {"Host": "evil.example:29400", "Accept-Language": "en"}, 403),
    "a rebound name that hides": ("GET", paths.STATUS, {"Host": "evil.example.", "User-Agent": "Mozilla/5.0"}, 403),
    "a browser and an address": ("GET", paths.STATUS, {"Host": "10.0.0.7:29400", "Accept-Language": "en"}, 200),
    "a browser and an IPv6 address": ("GET", paths.STATUS, {"Host": "[fd00::7]:29400", "Accept-Language": "en"}, 200),
    "a browser on this machine": ("GET", paths.STATUS, {"Host": "localhost:29400", "Accept-Language": "en"}, 200),
    "a browser in Kubernetes": ("GET", paths.STATUS, {"Host": "rdzv.x.svc", "Referer": "http://rdzv.x.svc/"}, 200),
    "an allowed name": ("GET", paths.STATUS, {"Host": "Rdzv.Example.com", "Sec-Fetch-Site": "none"}, 200),
    "curl by any name": ("GET", paths.STATUS, {"Host": "head.cluster.example:29400"}, 200),
    "a probe by any name": ("GET", paths.HEALTHZ, {"Host": "evil.example", "Accept-Language": "en"}, 200),
}


async def test_web_pages_may_only_do_what_is_allowed(server: Server) -> None:
    statuses: dict[str, int] = {}
    async with session_at(server) as session:
        for name, (method, path, headers, _) in BROWSERS.items():
            body = b"\x80" if method == "POST" else None
            async with session.request(method, path, data=body, headers=headers) as answer:
                statuses[name] = answer.status
        assert statuses == {name: status for name, (*_, status) in BROWSERS.items()}
        page = {"Host": "head.example:29400", "Accept-Language": "en"}
        async with session.get(paths.STATUS, headers=page) as answer:
            assert (answer.status, "--allow-host head.example" in await answer.text()) == (403, True)
        await session.post(paths.POLL, data=b"\x80", headers={"Host": "head.example:29400"})
        async with session.get(paths.STATUS, headers=page) as answer:
            assert answer.status == 200, "an agent has called the server by this name"
    await is_unharmed(server)


@pytest.mark.parametrize(
    ("query", "agent", "in_lines"),
    [
        ("", "curl/8.5.0", True),
        ("", "Mozilla/5.0 (X11)", True),
        ("", "python-requests/2.31", False),
        ("?pretty", "python-requests/2.31", True),
        ("?pretty=0", "curl/8.5.0", False),
    ],
)
async def test_the_status_is_in_lines_for_people(server: Server, query: str, agent: str, in_lines: bool) -> None:
    path, headers = f"{paths.STATUS}{query}", {"User-Agent": agent}
    async with session_at(server) as session, session.get(path, headers=headers) as answer:
        assert ("\n  " in await answer.text()) == in_lines


async def is_unharmed(server: Server) -> None:
    """The server answers, has no run, and has not logged a failure of its own."""
    assert '"runs":[]' in await server.get(paths.STATUS)
    assert await server.get(paths.HEALTHZ) == "ok\n"
    assert await server.get(paths.READYZ) == "ready\n"
    assert not any("Traceback" in line or re.search(r"ERROR|[A-Z]+ /\S* failed", line) for line in server.err)
