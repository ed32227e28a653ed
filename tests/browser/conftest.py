"""Debian's Chromium, driven by Playwright, with a check that it does not log complaints.

One browser serves all tests, in one process, so the tests and their fixtures share one event loop.
"""

import os
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Error, Page, ViewportSize, async_playwright, expect

from tests.integration.conftest import etcd
from tests.integration.replicas import Replicas
from tests.support.cluster import Cluster
from tests.support.etcd import Etcd
from tests.support.message_search import nameless
from tests.support.programs import PATIENCE_S, Server, ended_programs
from tests.support.worker_hub import WorkerHub

HERE = str(Path(__file__).parent)
__all__ = ["etcd"]

CHROMIUM = shutil.which("chromium")
PHONE: Any = {"width": 390, "height": 844}
DESKTOP: Any = {"width": 1200, "height": 860}
SCREENSHOTS = os.environ.get("SCREENSHOTS", "")
"""Folder for the README's pictures: SCREENSHOTS=docs/images."""

BROKEN_WORDS = """[...document.querySelectorAll(".badge, thead th:not(:has(button)), thead button")].filter((each) => {
  const range = document.createRange();
  range.selectNodeContents(each);
  const lines = new Set([...range.getClientRects()].map((rect) => Math.round(rect.top)));
  return lines.size > each.textContent.trim().split(/\\s+/).length;
}).map((each) => each.textContent)"""


class Tab:
    """A page in the browser, with the output of its console."""

    def __init__(self, page: Page, folder: Path) -> None:
        self.page = page
        self.complaints: list[str] = []
        self._folder = folder
        page.set_default_timeout(1e3 * PATIENCE_S)
        page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    async def go(self, url: str) -> None:
        """Load a page. Chromium fails if a network interface of the machine appears or goes, as in other tests."""
        while True:
            try:
                await self.page.goto(url)
            except Error as error:
                if "ERR_NETWORK_CHANGED" not in error.message:
                    raise
            else:
                return

    async def open(self, server: Cluster | Server, path: str = "/") -> None:
        """Open a page of the server, and wait until it is current."""
        await self.go(f"http://{server.endpoint}{path}")
        await self.is_live()

    async def stays(self) -> None:
        """Mark the present page. `is_same` later returns whether it was reloaded."""
        await self.page.evaluate("window.isSame = true")

    async def is_same(self) -> bool:
        return bool(await self.page.evaluate("window.isSame"))

    async def act(self, button: str, *, of: str = "", **answers: str) -> None:
        """Press a button, fill in the fields of its dialog by their ids, and confirm.

        `of`: the button's object, if there are several buttons, as a screen reader says it.
        """
        await self.page.get_by_role("button", name=f"{button} {of}".strip(), exact=True).click()
        for field, answer in answers.items():
            await self.page.fill(f"#ask-{field}", answer)
        await self.page.click("#dialog-do")
        await self.shows("#done", f"{button}: ")

    async def choose(self, node: str) -> None:
        """Choose a node of the grid."""
        await self.page.locator(".node", has_text=f"· {node}").click()

    async def is_live(self) -> None:
        await self.page.wait_for_selector("#live[data-word=live]")

    async def shows(self, selector: str, text: str | re.Pattern[str]) -> None:
        """Wait until an element contains the text. JavaScript does not support Python's named groups."""
        if isinstance(text, re.Pattern):
            text = re.compile(nameless(text.pattern), text.flags)
        await self.page.locator(selector, has_text=text).first.wait_for()

    async def counts(self, selector: str, count: int) -> None:
        """Wait until this number of elements exists.

        (`Page.wait_for_function` evaluates text within the page, which the server's Content-Security-Policy refuses.)
        """
        await expect(self.page.locator(selector)).to_have_count(count, timeout=1e3 * PATIENCE_S)

    async def focuses(self, button: str) -> None:
        """Wait until a button has the keyboard's focus."""
        located = self.page.get_by_role("button", name=button, exact=True)
        await expect(located).to_be_focused(timeout=1e3 * PATIENCE_S)

    async def text(self, selector: str) -> str:
        return await self.page.inner_text(selector)

    async def tone(self, selector: str, tone: str) -> None:
        await self.page.wait_for_selector(f"{selector}[data-tone={tone}]")

    async def picture(self, name: str, *, full: bool = False) -> None:
        """Save what is visible, or the whole page. (A cell of the grid is not drawn while it is out of sight.)"""
        size = self.page.viewport_size
        if full and size:
            height = await self.page.evaluate("document.documentElement.scrollHeight")
            await self.page.set_viewport_size(ViewportSize(width=size["width"], height=height))
        await self.page.screenshot(path=self._folder / f"{name}.png", full_page=full)
        if full and size:
            await self.page.set_viewport_size(size)

    async def is_accessible(self) -> None:
        """Check that axe-core finds nothing, nothing is wider than the screen, and no word of a state or heading is
        broken.
        """
        found = await Axe().run(self.page)
        assert found.violations_count == 0, found.generate_report()
        width = await self.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert width[0] <= width[1], "wider than the screen"
        assert await self.page.evaluate(BROKEN_WORDS) == []

    def is_content(self) -> None:
        """Check that the browser has refused nothing and missed nothing."""
        assert self.complaints == []


NewTab = Callable[..., Awaitable[Tab]]


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(HERE):  # thousands: `item.path.parents` would take half a second
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
            item.add_marker(pytest.mark.xdist_group("browser"))


@pytest_asyncio.fixture(loop_scope="session", autouse=True)
async def programs() -> AsyncIterator[None]:
    """End every program that the test starts."""
    async with ended_programs():
        yield


@pytest_asyncio.fixture(loop_scope="session")
async def hub(programs: None, tmp_path: Path) -> AsyncIterator[WorkerHub]:
    async with WorkerHub(tmp_path / "hub") as hub:
        yield hub


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(hub: WorkerHub) -> AsyncIterator[Cluster]:
    async with Cluster(hub) as cluster:
        await cluster.serve()
        yield cluster


@pytest_asyncio.fixture(loop_scope="session")
async def replicas(hub: WorkerHub, etcd: Etcd, tmp_path: Path) -> AsyncIterator[Replicas]:
    """Two servers, the first of which leads."""
    async with Replicas(hub, etcd, tmp_path.name) as replicas:
        await (await replicas.replicate()).leads()
        await (await replicas.replicate()).line("following")
        yield replicas


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def browser() -> AsyncIterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        await browser.close()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return Path(SCREENSHOTS) if SCREENSHOTS else tmp_path


@pytest_asyncio.fixture(loop_scope="session")
async def new_tab(browser: Browser, pictures: Path) -> AsyncIterator[NewTab]:
    """Open windows, each with separate cookies: a desktop's unless the options say otherwise."""
    contexts = []

    async def new_tab(**options: Any) -> Tab:
        context = await browser.new_context(**({"viewport": DESKTOP, "color_scheme": "light"} | options))
        contexts.append(context)
        return Tab(await context.new_page(), pictures)

    yield new_tab
    for context in contexts:
        await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def tab(new_tab: NewTab) -> Tab:
    """A window of a desktop."""
    return await new_tab()
