"""The site of the documentation builds without a warning. Links, search and copy buttons work.

It is read from files in a folder, without a server.
"""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.browser.conftest import NewTab

BUILD_S = 300.0
"""Limit in seconds of the build, in which Sphinx computes all the time: half a minute on an idle machine."""
pytestmark = pytest.mark.timeout(BUILD_S + 60)  # the first test builds the site

ROOT = Path(__file__).parents[2]
BUILD = next(
    line.split()[1:]
    for line in (ROOT / "Makefile").read_text().splitlines()
    if line.startswith("\t$(BIN)/python -m sphinx")
)
"""Arguments with which the Makefile builds the site."""


class Links(HTMLParser):
    """Addresses and anchors of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.to: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = {""}
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.anchors |= {given.get("id", ""), given.get("name", "")}
        if tag == "a" and "href" in given:
            self.to.append(given["href"])
        elif tag in ("script", "img", "link", "iframe"):
            self.loads += [given[name] for name in ("src", "href") if name in given]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    arguments = [str(folder) if word == "build/site" else word for word in BUILD]
    built = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=BUILD_S)
    assert (built.returncode, built.stderr) == (0, "")
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    return {path: Links(path) for path in site.rglob("*.html")}


async def test_every_link_leads_to_a_page_and_a_section_of_it(pages: dict[Path, Links]) -> None:
    assert len(pages) > 100
    broken = []
    for page, links in pages.items():
        for link in links.to:
            if re.match(r"\w+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / unquote(path)).resolve() if path else page
            known = pages.get(target)
            if not target.is_file() or (known and unquote(anchor) not in known.anchors):
                broken.append(f"{page.name}: {link}")
    assert broken == []


async def test_the_site_loads_only_its_own_files(pages: dict[Path, Links]) -> None:
    assert [load for links in pages.values() for load in links.loads if "//" in load] == []


async def test_llms_txt_names_every_page_of_the_docs_but_decisions(site: Path) -> None:
    named = set(re.findall(r"\(_sources/(.+?)\.txt\)", (site / "llms.txt").read_text()))
    assert [name for name in named if not (site / "_sources" / f"{name}.txt").is_file()] == []
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*/**/*.md")}
    missing = {name for name in pages - named if "/adr/0" not in name and not name.endswith("README.md")}
    assert missing == set()


async def test_a_search_finds_a_flag_and_a_command_is_copied_without_its_prompt(site: Path, new_tab: NewTab) -> None:
    tab = await new_tab()
    await tab.go((site / "index.html").as_uri())
    await tab.page.get_by_placeholder("Search").first.fill("preload")
    await tab.page.keyboard.press("Enter")
    await tab.page.get_by_role("link", name="Restart workers without importing torch again", exact=True).last.click()
    await tab.shows("h1", "Restart workers without importing torch again")
    await tab.page.locator(".highlight-console").first.hover()
    await tab.page.locator(".highlight-console button.copybtn").first.click()
    field = tab.page.get_by_placeholder("Search").first
    await field.fill("")
    await field.press("Control+V")
    assert (await field.input_value()).startswith("node-agent ")
