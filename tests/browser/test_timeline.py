"""A run over time on its page: picture, table, keyboard, and times in the viewer's zone or UTC."""

import json
import re
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from rdzv_protocol import actions, paths

from tests.browser.conftest import DESKTOP, PHONE, NewTab, Tab
from tests.browser.crowd import Crowd
from tests.integration.test_actions import act
from tests.support.cluster import Cluster

MOST_LINES = 30
DAY_S = 86_400.0
EPOCH = 1_795_350_600.0
"""2026-11-22 07:30:00 in New York, 12:30:00 UTC."""


def a_day() -> dict[str, Any]:
    """Return the timeline of a day: a start, a failure that lost an hour, a hang, and a burst of joins."""

    def round_(number: int, opened: float, started: float, ended: float | None, **parts: float) -> dict[str, Any]:
        given = {"first": number, "last": number, "opened_at": EPOCH + opened, "started_at": EPOCH + started}
        spent = {"waiting_s": 0.0, "forming_s": started - opened, "running_s": (ended or DAY_S) - started}
        rest = {"starting_s": 600.0, "checkpointing_s": 900.0, "detecting_s": 0.0, "lost_s": 0.0}
        return given | {"ended_at": None if ended is None else EPOCH + ended} | spent | rest | parts

    def sample(number: int, at: float, step: int, saved: int | None, rate: float | None) -> dict[str, Any]:
        known = {"at": EPOCH + at, "round": number, "step": step, "checkpoint_step": saved}
        return known | {"checkpointing_s": 200.0 if rate else 0.0, "steps_per_s": rate}

    def mark(lane: str, kind: str, at: float, count: int = 1, node: str | None = "gpu-7") -> dict[str, Any]:
        when = {"at": EPOCH + at, "until": EPOCH + at + (count > 1) * 60}
        return when | {"lane": lane, "kind": kind, "count": count, "number": 1, "node_id": node}

    samples, step = [], 0
    for at in range(1_800, int(DAY_S), 600):
        number = 1 if at < 28_800 else 2 if at < 60_000 else 3
        is_hung = 50_000 < at < 60_000
        rate = None if not samples or samples[-1]["round"] != number else 0.0 if is_hung else 2.0 + at % 7 / 10
        step += int(600 * (rate or 0))
        samples.append(sample(number, at, step, step - step % 4_000 or None, rate))
    return {
        "run_id": "day", "attempt": 1, "now": EPOCH + DAY_S, "created_at": EPOCH, "ended_at": None,
        "sample_interval_s": 640.0, "samples": samples,
        "rounds": [
            round_(1, 0, 900, 28_800, lost_s=3_600.0), round_(2, 28_800, 30_000, 60_000, detecting_s=10_000.0),
            round_(3, 60_000, 60_600, None),
        ],
        "marks": [
            mark("node", "node_joined", 300, 200), mark("fault", "workers_failed", 28_800),
            mark("notice", "notice_given", 40_000, node=None), mark("warning", "straggler_found", 45_000),
            mark("fault", "hang_found", 60_000), mark("action", "node_cordoned", 61_000),
            mark("server", "server_restarted", 70_000, node=None), mark("node", "node_joined", 60_400),
        ],
    }  # fmt: skip


async def opened(tab: Tab, cluster: Cluster, crowd: Crowd) -> None:
    """Open the page of a run that has the timeline of a day."""
    await crowd.run("day", ["gpu-1", "gpu-2"], max_restarts=3)
    await tab.page.route(f"**{paths.timeline_of('day')}", lambda route: route.fulfill(json=a_day()))
    await tab.open(cluster, "/runs/day")
    await tab.page.wait_for_selector("#timeline svg")


@pytest.mark.parametrize(("name", "size"), [("desktop", DESKTOP), ("phone", PHONE)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_timeline_shows_its_numbers_by_pointer_keyboard_and_table(
    cluster: Cluster, new_tab: NewTab, name: str, size: Any, scheme: str
) -> None:
    tab = await new_tab(viewport=size, color_scheme=scheme, timezone_id="America/New_York")
    async with Crowd(cluster.server.port) as crowd:
        await opened(tab, cluster, crowd)
        slider = tab.page.locator("#timeline")
        lanes = await slider.locator("text.lane").all_text_contents()
        assert lanes[:5] == ["forming", "running", "checkpointing", "standing still", "lost work"]
        assert {"faults", "warnings", "notices", "nodes", "actions", "server", "steps a second", "step"} <= set(lanes)
        await slider.focus()
        await tab.page.keyboard.press("Home")
        await tab.shows("#timeline-says", "2026-11-22 07:30:00 EST · round 1: forming")
        await tab.page.keyboard.press("ArrowRight")
        await tab.shows("#timeline-says", "200 × node joined (gpu-7 first)")
        assert await slider.get_attribute("aria-valuetext") == await tab.text("#timeline-says")
        await tab.page.keyboard.press("End")
        await tab.shows("#timeline-says", "round 3: running")
        await tab.page.check("#utc")
        await tab.shows("#timeline-says", "2026-11-23 12:30:00 UTC")
        box = await slider.bounding_box()
        assert box
        await slider.hover(position={"x": 98 + (box["width"] - 106) * 55_000 / DAY_S, "y": 40})
        await tab.shows("#timeline-says", "round 2: standing still · no steps")
        await tab.picture(f"page-timeline-{name}-{scheme}")
        await tab.page.click("#timeline-card summary")
        await tab.shows("#timeline-rows tr >> nth=0", "server restarted")
        await tab.shows("#timeline-rows tr >> nth=1", "straggler found (gpu-7)")
        await tab.shows("#timeline-rows tr >> nth=2", "200 × node joined (gpu-7 first)")
        await tab.is_accessible()
    tab.is_content()


async def test_a_later_attempt_says_that_earlier_ones_are_not_in_the_picture(cluster: Cluster, tab: Tab) -> None:
    async with Crowd(cluster.server.port) as crowd:
        await opened(tab, cluster, crowd)
        assert await tab.page.is_hidden("#timeline-attempt")
        later = a_day() | {"attempt": 2}
        await tab.page.route(f"**{paths.timeline_of('day')}", lambda route: route.fulfill(json=later))
        await tab.open(cluster, "/runs/day")
        await tab.shows("#timeline-attempt", "This is attempt 2. Earlier attempts are not in the picture.")
    tab.is_content()


async def test_an_ended_run_is_shown_without_a_speed(cluster: Cluster, tab: Tab) -> None:
    async with Crowd(cluster.server.port) as crowd:
        await opened(tab, cluster, crowd)
        await tab.shows("#timeline-says", re.compile("round 3: running .*steps a second"))
        ended = a_day() | {"ended_at": EPOCH + DAY_S, "now": EPOCH + DAY_S + 600.0}
        ended["rounds"][-1]["ended_at"] = EPOCH + DAY_S
        await tab.page.route(f"**{paths.timeline_of('day')}", lambda route: route.fulfill(json=ended))
        await tab.open(cluster, "/runs/day")
        await tab.shows("#timeline-says", "round 3: over · step")
    tab.is_content()


async def test_a_real_run_has_its_picture_and_follows_it(cluster: Cluster, tab: Tab) -> None:
    async with Crowd(cluster.server.port) as crowd:
        await crowd.run("r", ["a", "b"], max_restarts=3)
        await tab.open(cluster, "/runs/r")
        await tab.page.click("#timeline-card summary")
        await tab.shows("#timeline-rows", "2 × node joined")
        await crowd.fail("r", at=1)
        await tab.shows("#timeline-rows", "workers failed (b)")
        await tab.counts("#timeline-rows tr", 2)
    tab.is_content()


async def test_times_have_date_and_zone_of_the_viewer_or_utc_which_the_browser_remembers(
    cluster: Cluster, new_tab: NewTab
) -> None:
    tab = await new_tab(timezone_id="America/New_York")
    async with Crowd(cluster.server.port) as crowd:
        await crowd.run("r", ["a", "b"], max_restarts=3)
        await crowd.fail("r", at=1)
        await tab.open(cluster, "/runs/r")
        own, utc = (re.compile(rf"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d {zone}") for zone in ("E[SD]T", "UTC"))
        for place in ("#events time", "#failure-facts"):
            await tab.shows(place, own)
        last = json.loads(await cluster.server.get("/v1/runs/r/events"))["events"][-1]
        in_new_york = datetime.fromtimestamp(last["at"], ZoneInfo("America/New_York"))
        await tab.shows("#events li:first-child", f"{in_new_york:%Y-%m-%d %H:%M:%S %Z}")
        await tab.shows("#timeline", f"{in_new_york:%Z}")
        await tab.page.check("#utc")
        for place in ("#events time", "#failure-facts"):
            await tab.shows(place, utc)
        await tab.open(cluster, "/runs/r")
        await tab.shows("#events time", utc)
    tab.is_content()


async def test_a_burst_is_one_line_and_older_events_come_by_page(cluster: Cluster, tab: Tab) -> None:
    names = [f"n{number:03}" for number in range(20)]
    async with Crowd(cluster.server.port) as crowd:
        await crowd.run("r", names, max_restarts=3)
        await tab.open(cluster, "/runs/r")
        joined = tab.page.locator("#events details", has_text=f"{len(names)} nodes joined")
        await joined.first.wait_for()
        assert await tab.page.locator("#events li").count() < MOST_LINES
        await joined.first.locator("summary").click()
        await joined.first.get_by_text("n019").wait_for()
        for number in range(2, 15):
            assert (await act(cluster.server, actions.RESTART, run_id="r", reason="to see it"))[0] == 200
            await tab.shows("#reason", f"round {number} runs on 20 nodes")
        await tab.page.click("#events-older")
        await tab.shows("#events-title", "Older events")
        await tab.page.keyboard.press("Enter")
        await tab.is_accessible()
        while await tab.page.locator("#events-older").is_enabled():
            before = await tab.text("#events-range")
            await tab.page.click("#events-older")
            await tab.page.locator("#events-range").filter(has_not_text=before).wait_for()
        await tab.shows("#events", "run created")
        while await tab.page.locator("#events-newer").is_enabled():
            await tab.page.click("#events-newer")
        await tab.shows("#events-title", "Latest events")
    tab.is_content()


async def test_the_page_shows_the_last_failure_below_the_first_with_the_number_of_failed_rounds(
    cluster: Cluster, tab: Tab
) -> None:
    async with Crowd(cluster.server.port) as crowd:
        await crowd.run("r", ["a", "b"], max_restarts=3)
        await crowd.fail("r", at=0, error="the first")
        await tab.open(cluster, "/runs/r")
        await tab.shows("#failure-sentence", "node a")
        assert await tab.page.is_hidden("#last-failure")
        await crowd.fail("r", at=1, error="the second")
        await tab.shows("#last-failure-title", "Last failure, the 2nd")
        await tab.shows("#last-failure-sentence", "node b")
        await tab.shows("#failure-sentence", "node a")
        await tab.shows("#failure-facts", "Failed rounds")
        await tab.is_accessible()
    tab.is_content()
