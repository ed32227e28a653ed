"""The nodes of large runs on a run's page: small cells, in a block for each state."""

import asyncio
import re

import pytest
from playwright.async_api import expect
from rdzv_protocol import paths

from tests.browser.conftest import DESKTOP, PHONE, NewTab
from tests.browser.crowd import Crowd
from tests.support.cluster import Cluster
from tests.support.programs import PATIENCE_S, Server

GROW = """(size) => {
  const some = Object.values(shown.nodes);
  for (let rank = some.length + 1; rank <= size; rank++) {
    shown.nodes[`more-${rank}`] = {
      ...some[0], node_id: `gpu-${rank}.hall-2`, group_rank: rank, first_rank: 8 * rank, local_world_size: 8,
      place: `hall2.rack${Math.floor(rank / 32)}`,
      state: "running", failures: undefined,
    };
  }
  changedNodes = null;
  const before = performance.now();
  drawNodes(shown.run);
  document.body.offsetHeight;
  return performance.now() - before;
}"""
"""Makes the page show this number of nodes, although three have joined. Returns the milliseconds."""


async def all_parked(server: Server, polls: int) -> None:
    """Return once this number of polls is parked. The server notices at once only agents that go after that."""
    async with asyncio.timeout(PATIENCE_S):
        while not re.search(rf"^rdzv_long_polls {polls}(\.0)?$", await server.get(paths.METRICS), re.M):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
async def test_hundreds_of_nodes_and_ten_thousand_can_be_read(
    cluster: Cluster, new_tab: NewTab, size: dict[str, int]
) -> None:
    screen = "phone" if size is PHONE else "desktop"
    async with Crowd(cluster.server.port) as crowd:
        nodes = await crowd.run("r", ["bad", "gone", "good"], max_restarts=1)
        await crowd.fail("r")
        await all_parked(cluster.server, len(nodes))
        await nodes[1].gone()
        tab = await new_tab(viewport=size)
        await tab.open(cluster, "/runs/r")
        await tab.shows("#nodes", "missing")
        await tab.page.evaluate(GROW, 299)  # and the missing one
        await tab.counts(".node", 300)
        await tab.shows("#states-legend button:first-child", "1 missing")
        assert await tab.page.locator("#nodes .node > *").count() == 0, "a small cell is one element"
        await tab.is_accessible()  # as a thousand of these cells are, which axe-core examines for many seconds
        await tab.page.locator(".node >> nth=250").hover()
        await tab.shows("#nodes-says", re.compile(r"^\d+ · gpu-\d+\.hall-2: running, ranks \d+"))

        await tab.page.get_by_role("button", name="Show the node of the first failure").click()
        await tab.shows("#nodes-says", re.compile(r"bad: .*first failure: rank \d+"))
        await tab.shows("#node-title", "bad")
        fold = tab.page.locator("#states-legend button", has_text="running")
        await fold.focus()
        await tab.page.keyboard.press("Enter")
        assert await fold.get_attribute("aria-expanded") == "false"
        assert await tab.page.locator("#nodes .node:visible").count() < 10
        await tab.page.focus("#nodes")
        await tab.page.keyboard.press("Home")
        await tab.shows("#nodes-says", re.compile("gone: missing"))
        await fold.click()
        await tab.page.focus("#nodes")
        await tab.page.keyboard.press("End")
        await tab.shows("#nodes-says", re.compile(r"gpu-\d+\.hall-2: running"))
        await tab.page.keyboard.press("Home")
        await tab.page.keyboard.press("ArrowDown")
        await tab.page.keyboard.press("ArrowUp")
        await tab.shows("#nodes-says", re.compile("gone: missing"))

        for count in (1000, 10_000):
            took_ms = await tab.page.evaluate(GROW, count - 1)
            print(f"{count} nodes are drawn in {took_ms:.0f} ms")
            await tab.counts(".node", count if count == 1000 else 1)
            await tab.page.locator("#nodes").scroll_into_view_if_needed()
            assert await tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            await tab.picture(f"nodes-{count}-{screen}")
        await tab.is_accessible()
        fold = tab.page.locator("#states-legend button", has_text="running")
        assert await fold.get_attribute("aria-expanded") == "false", "so many are folded unless somebody opens them"
        await fold.press("Enter")
        await expect(tab.page.locator(".node")).not_to_have_count(1)
        assert await tab.page.locator(".node").count() > 9_990
        await tab.page.get_by_label("Group the nodes").select_option("place")
        await tab.counts("#nodes-folds button", 314)
        await tab.counts(".node", 3)
        await tab.shows("#nodes-folds button:nth-child(2)", "hall2.rack1: 32 running")
        await tab.shows("#nodes-folds button:last-child", re.compile("no place given: 1 missing, 2 "))
        await tab.page.get_by_role("button", name="hall2.rack300:").press("Enter")
        await tab.page.focus("#nodes")
        await tab.page.keyboard.press("End")
        await tab.page.keyboard.press("ArrowUp")
        await tab.shows("#node-facts", "hall2.rack300")
        await tab.is_accessible()
        await tab.picture(f"nodes-places-{screen}")
    tab.is_content()
