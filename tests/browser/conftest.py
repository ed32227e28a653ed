"""Debian's Chromium, driven by Playwright, and the promise that it has nothing to complain of."""

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, async_playwright

from tests.integration.conftest import etcd, replicas, unserved
from tests.support.cluster import Cluster
from tests.support.programs import PATIENCE_S

__all__ = ["etcd", "replicas", "unserved"]

CHROMIUM = shutil.which("chromium")
PHONE = {"width": 390, "height": 844}
SCREENSHOTS = os.environ.get("SCREENSHOTS", "")
"""Folder for the pictures of the README: SCREENSHOTS=docs/images."""


class Tab:
    """A page in the browser, with what its console has said."""

    def __init__(self, page: Page, folder: Path) -> None:
        self.page = page
        self.complaints: list[str] = []
        self._folder = folder
        page.set_default_timeout(1e3 * PATIENCE_S)
        page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    async def open(self, cluster: Cluster, path: str = "/") -> None:
        """Open a page of the server, and wait until it is current."""
        await self.page.goto(f"http://{cluster.endpoint}{path}")
        await self.is_live()

    async def is_live(self) -> None:
        await self.page.wait_for_selector("#live[data-word=live]")

    async def shows(self, selector: str, text: str) -> None:
        """Wait until an element holds the text."""
        await self.page.locator(selector, has_text=text).first.wait_for()

    async def text(self, selector: str) -> str:
        return await self.page.inner_text(selector)

    async def tone(self, selector: str, tone: str) -> None:
        await self.page.wait_for_selector(f"{selector}[data-tone={tone}]")

    async def picture(self, name: str, *, full: bool = False) -> None:
        """Save what is seen."""
        await self.page.screenshot(path=self._folder / f"{name}.png", full_page=full)

    async def is_accessible(self) -> None:
        """axe-core finds nothing, and nothing is wider than the screen."""
        found = await Axe().run(self.page)
        assert found.violations_count == 0, found.generate_report()
        width = await self.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert width[0] <= width[1], "wider than the screen"

    def is_content(self) -> None:
        """The browser has refused nothing and lacked nothing."""
        assert self.complaints == []


@pytest.fixture(autouse=True)
def programs_end_with_each_test(programs: None) -> None:
    pass


@pytest.fixture
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


@pytest.fixture
async def tab(browser: Browser, pictures: Path) -> Tab:
    """A window of a desktop."""
    context = await browser.new_context(viewport={"width": 1200, "height": 800}, color_scheme="light")
    return Tab(await context.new_page(), pictures)
