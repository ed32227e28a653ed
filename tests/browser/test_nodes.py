"""The nodes of large runs on a run's page: small cells, in a block for each state."""

import re

import pytest

from tests.browser.conftest import DESKTOP, PHONE, NewTab
from tests.browser.crowd import Crowd
from tests.support.cluster import Cluster

GROW = """(size) => {
  const some = Object.values(shown.nodes);
  for (let rank = Object.keys(shown.nodes).length + 1; Object.keys(shown.nodes).length < size; rank++) {
    shown.nodes[`more-${rank}`] = {
      ...some[0], node_id: `gpu-${rank}.hall-2`, group_rank: rank, first_rank: 8 * rank, local_world_size: 8,
      state: "running", failures: undefined,
    };
  }
  changedNodes = null;
  const before = performance.now();
  drawNodes(shown.run);
  document.body.offsetHeight;
  return performance.now() - before;
}"""
"""Has the page show as many nodes, though three have joined; the milliseconds that this takes."""


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
async def test_hundreds_of_nodes_and_ten_thousand_can_be_read(
    cluster: Cluster, new_tab: NewTab, size: dict[str, int]
) -> None:
    screen = "phone" if size is PHONE else "desktop"
    async with Crowd(cluster.server.port) as crowd:
        nodes = await crowd.run("r", ["bad", "gone", "good"], max_restarts=1)
        await crowd.fail("r")
        await nodes[1].gone()
        tab = await new_tab(viewport=size)
        await tab.open(cluster, "/runs/r")
        await tab.shows("#nodes", "missing")
        await tab.page.evaluate(GROW, 299)  # and the missing one
        await tab.counts(".node", 300)
        await tab.shows("#states-legend button:first-child", "1 missing")
        assert await tab.page.locator("#nodes .node > *").count() == 0, "a small cell is one element"
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
            await tab.counts(".node", count)
            await tab.page.locator("#nodes").scroll_into_view_if_needed()
            if count == 1000:  # axe-core would take a minute for ten thousand of the same
                await tab.is_accessible()
            assert await tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            await tab.picture(f"nodes-{count}-{screen}")
    tab.is_content()
