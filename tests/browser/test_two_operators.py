"""Two operators at once, each in a browser of their own: each sees what the other does, and each gets a true answer."""

import asyncio
import json

from rdzv_server.words import operations
from tests.browser.conftest import NewTab, Tab
from tests.browser.crowd import Crowd
from tests.support.cluster import Cluster


async def opened(cluster: Cluster, new_tab: NewTab, path: str) -> list[Tab]:
    """The page in the browsers of two operators."""
    tabs = [await new_tab(), await new_tab()]
    for tab in tabs:
        await tab.open(cluster, path)
        await tab.stays()
    return tabs


async def confirmed(*tabs: Tab) -> list[str]:
    """Confirm the open dialogs at the same moment; return the answer that each operator gets."""
    await asyncio.gather(*(tab.page.click("#dialog-do") for tab in tabs))
    for tab in tabs:
        await tab.page.wait_for_selector("#done:not(:empty)")
    return [await tab.text("#done") for tab in tabs]


async def press(button: str, *tabs: Tab) -> None:
    """Open the dialog of a button in each browser."""
    for tab in tabs:
        await tab.page.get_by_role("button", name=button, exact=True).click()
        await tab.page.wait_for_selector("#dialog[open]")


async def kinds(cluster: Cluster, run_id: str) -> list[str]:
    """Kinds of the run's events."""
    return [each["kind"] for each in json.loads(await cluster.server.get(f"/v1/runs/{run_id}/events"))["events"]]


async def test_one_operator_sees_what_the_other_does(cluster: Cluster, new_tab: NewTab) -> None:
    async with Crowd(cluster.server.port) as crowd:
        await crowd.run("r", ["a", "b"])
        one, other = await opened(cluster, new_tab, "/runs/r")
        await one.choose("b")
        await one.act("Cordon", reason="its fan")
        await other.shows("#nodes", "cordoned")
        await other.shows("#events", f"node cordoned: {operations.cordoned('b', None, 'its fan')} (by 127.0.0.1)")
        await other.choose("b")
        await other.shows("#node-facts", "by 127.0.0.1: its fan")
        await other.act("Uncordon", reason="a new fan")
        await one.shows("#events", operations.uncordoned("b", "a new fan", by_operator=True))
        await one.act("Resize", min_nodes="1", max_nodes="4")
        await other.shows("#facts", "2 of 1 to 4")
        assert await one.is_same() and await other.is_same(), "nothing was reloaded"
    one.is_content()
    other.is_content()


async def test_if_two_operators_act_at_once_one_succeeds_and_the_other_sees_why_not(
    cluster: Cluster, new_tab: NewTab
) -> None:
    async with Crowd(cluster.server.port) as crowd:
        await crowd.run("r", ["a", "b"])
        one, other = tabs = await opened(cluster, new_tab, "/runs/r")
        await one.choose("a")
        await one.act("Cordon")
        await other.choose("a")
        await press("Uncordon", *tabs)
        told = await confirmed(*tabs)
        assert sorted(told) == [
            f"Nothing to do: {operations.not_cordoned('a')}",
            f"Uncordon: {operations.uncordoned('a', '', by_operator=True)}",
        ]
        for tab in tabs:
            await tab.page.evaluate("notice('')")
        await press("Stop run", *tabs)
        told = await confirmed(*tabs)
        assert [each.startswith("Nothing to do: ") for each in sorted(told)] == [True, False]
        assert (await kinds(cluster, "r")).count("run_stopped") == 1
        for tab in tabs:
            await tab.shows("#reason", operations.stopped(""))
    one.is_content()
    other.is_content()


async def test_an_action_that_another_operator_has_made_impossible_is_refused_in_the_dialog(
    cluster: Cluster, new_tab: NewTab
) -> None:
    async with Crowd(cluster.server.port) as crowd:
        await crowd.run("r", ["a"])
        one, other = await opened(cluster, new_tab, "/runs/r")
        await press("Restart", other)
        await one.act("Stop run", reason="wrong data")
        await other.shows("#reason", operations.stopped("wrong data"))
        await other.page.click("#dialog-do")
        await other.shows("#dialog-error", "The action was not done: run r has failed: ")
        await other.page.keyboard.press("Escape")
        assert "run_restarted" not in await kinds(cluster, "r")
    one.is_content()
