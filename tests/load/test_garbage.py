"""What begins and ends at a server leaves no garbage in cycles.

A server keeps such garbage until it has grown by a quarter: see ADR 53.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from rdzv_protocol import paths

from rdzv_server.http.routes import ROUTES
from tests.load.soak import PATIENCE_S, Soak
from tests.support.garbage import garbage_of, reporting
from tests.support.programs import Server

TIMES = 10
"""Number of runs, and of repetitions of each request. Fewer objects than that are not garbage of each of them."""
STREAMS = (paths.WATCH, f"{paths.WATCH}?run_id=run", paths.EVENTS)
PAGES = (paths.ROOT, "/?plain=0", "/runs/run", "/runs/run?plain=0", "/nodes/node", paths.LOGIN)
ALONE = {
    'rdzv_http_connections{state="authenticated"} 1.0',
    'rdzv_http_connections{state="unauthenticated"} 0.0',
}
"""Metrics of a server that has no connection but that of the question."""
NO_MESSAGES = (b"", b"x", b"{}", b"\x80", b'{"run_id": 1}', b"\x81\xa6run_id\x01")
"""Bodies that are no message, neither in JSON nor in MessagePack, or one without its fields."""


async def test_nothing_that_ends_leaves_garbage(programs: None, tmp_path: Path) -> None:
    server = await Server.listen(
        "--store", f"sqlite:{tmp_path}/server.db", "--retention", "1", env=reporting(), is_forked=False
    )
    soak = Soak(server.port, runs=TIMES)
    what: dict[str, Callable[[], Awaitable[None]]] = {
        "runs": soak.play,
        "operators' requests": lambda: _answered(server, *map(_get, _read_paths())),
        "pages": lambda: _answered(server, *(_get(path, "text/html") for path in PAGES)),
        "streams": lambda: _answered(server, *(_get(path.format(run_id="run"), paths.STREAM_TYPE) for path in STREAMS)),
        "bad messages": lambda: _answered(server, *_bad_messages()),
    }
    left = {}
    for name, happens in what.items():
        await happens()  # what is made once, such as a template, is made now
        await _settled(server)
        await garbage_of(server)
        await happens()
        await _settled(server)
        left[name] = {kind: count for kind, count in (await garbage_of(server)).items() if count >= TIMES}
    assert left == {name: {} for name in what}


async def _settled(server: Server) -> None:
    """Return once the server has no run, and no connection but that of the question."""
    async with asyncio.timeout(PATIENCE_S):
        while (await server.status())["runs"] or not {*(await server.get(paths.METRICS)).splitlines()} >= ALONE:
            pass  # `get` pauses between two requests


def _read_paths() -> list[str]:
    return [route.path.format(run_id="run") for route in ROUTES if route.method == "GET" and route.path != paths.WATCH]


def _get(path: str, accept: str = "application/json") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: {accept}\r\nConnection: close\r\n\r\n".encode()


def _bad_messages() -> list[bytes]:
    """Return requests with each body that is no message to each path that takes one."""
    requests: list[bytes] = []
    for route in (each for each in ROUTES if each.method == "POST"):
        media = paths.MEDIA_TYPE if route.path.startswith(paths.AGENT) else "application/json"
        head = f"POST {route.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {media}\r\nConnection: close\r\n"
        requests += [f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body for body in NO_MESSAGES]
    return requests


async def _answered(server: Server, *requests: bytes) -> None:
    """Send each of the requests several times, and close each connection when its answer begins or ends."""
    for request in requests:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(_exchange(server.port, request) for _ in range(TIMES)))


async def _exchange(port: int, request: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        is_stream = paths.STREAM_TYPE.encode() in request
        await reader.readuntil(b"\r\n\r\n")
        while await reader.read(1 << 16) and not is_stream:
            pass
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
