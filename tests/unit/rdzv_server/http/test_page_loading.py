"""Pages and the API document are made at the first request: once, for all requests meanwhile."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from aiohttp import ClientSession
from rdzv_protocol import paths

from rdzv_server.http import page, routes
from rdzv_server.server import RendezvousServer, bind
from tests.support.threads import refuse_threads

PATIENCE_S = 20.0


async def status_of(session: ClientSession, url: str) -> int:
    async with session.get(url) as answer:
        return answer.status


async def test_many_requests_for_the_first_page_load_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Mock(side_effect=page.load_templates)
    monkeypatch.setattr(page, "load_templates", load)
    bound = bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}{paths.LOGIN}"
    async with asyncio.timeout(PATIENCE_S), RendezvousServer() as server, ClientSession() as session:
        await server.listen(bound)
        answers = await asyncio.gather(*(session.get(url) for _ in range(10)))
        assert {answer.status for answer in answers} == {200}
    load.assert_called_once()


@pytest.fixture
def web_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Copy of the program's folder with templates and static files, from which this test's pages are made."""
    monkeypatch.setattr(page, "WEB", shutil.copytree(page.WEB, tmp_path / "web"))
    caches = (page._environment, page._read, page._static)
    for cache in caches:
        cache.cache_clear()
    yield page.WEB
    for cache in caches:
        cache.cache_clear()


async def test_only_the_first_page_reads_the_programs_folder(web_folder: Path) -> None:
    """Its disk may hang, or another version may have been installed there."""
    bound = bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    async with asyncio.timeout(PATIENCE_S), RendezvousServer() as server, ClientSession() as session:
        await server.listen(bound)
        assert await status_of(session, url + paths.LOGIN) == 200
        shutil.rmtree(web_folder)
        for path in (paths.LOGIN, paths.ROOT, *(f"{paths.STATIC}{name}" for name in page.STATIC)):
            assert await status_of(session, url + path) == 200, path


@pytest.mark.parametrize("path", [paths.LOGIN, paths.OPENAPI])
async def test_a_page_that_could_not_be_made_is_made_at_the_next_request(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError

    bound = bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}{path}"
    async with asyncio.timeout(PATIENCE_S), RendezvousServer() as server, ClientSession() as session:
        await server.listen(bound)
        with monkeypatch.context() as patch:
            patch.setattr(page, "load_templates", fail)
            patch.setattr(routes, "_openapi", fail)
            assert await status_of(session, url) == 503
        assert await status_of(session, url) == 200


@pytest.mark.parametrize("path", [paths.LOGIN, paths.OPENAPI, paths.METRICS])
async def test_without_a_thread_everything_is_answered(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}{path}"
    async with asyncio.timeout(PATIENCE_S), RendezvousServer() as server, ClientSession() as session:
        await server.listen(bound)
        refuse_threads(monkeypatch)
        assert await status_of(session, url) == 200
