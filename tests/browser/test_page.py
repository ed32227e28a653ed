"""The page of real runs in a real browser: it shows events without a reload, and carries out actions."""

import asyncio
import re
import signal
import time
from pathlib import Path

from rdzv_protocol import actions
from rdzv_protocol.words.run import read_console, restarts_took

from rdzv_server.core.policies import words
from rdzv_server.words import completion, failures
from rdzv_server.words import health as health_words
from tests.browser.conftest import PHONE, NewTab, Tab
from tests.browser.crowd import Crowd
from tests.browser.runs import FLAGS
from tests.integration.test_actions import act
from tests.support.cluster import ALL_COME, PATIENT, Cluster, straggling
from tests.support.message_search import pattern
from tests.support.programs import STRAGGLING_WORKER

SOON_S = 1.0
"""Seconds until a failure is on the page. An overloaded machine may take ten times as long."""
SEVERAL_LEASES_S = 100.0
"""Seconds to find a straggler: its looks are one lease apart, and more under load."""

WHEN_IT_SHOWS = """(selector) => new Promise((resolve) => {
  const look = () => { if (document.querySelector(selector)) resolve(Date.now() / 1000); };
  new MutationObserver(look).observe(document, { subtree: true, childList: true, attributes: true });
  look();
})"""


async def test_the_time_of_restarts_is_shown_below_the_time_ledger(cluster: Cluster, tab: Tab) -> None:
    workers = await cluster.nodes("a", "--run-id", "r", "--max-restarts", "1")
    await tab.open(cluster, "/runs/r")
    await tab.shows("#time-legend", "running")
    assert await tab.page.is_hidden("#restarts-took")
    await tab.shows("#no-progress", health_words.no_progress_reported("r"))
    workers[0].order_exit(3)
    second = await cluster.hub.group(2)
    costs = (await cluster.server.run())["restart_costs"]
    assert (costs["restarts"], costs["followed"]) == (1, 0), "these workers report no progress"
    await tab.shows("#restarts-took", restarts_took(1, 0, costs["cost"]))
    await cluster.finish(second)


async def test_a_run_forms_and_a_failure_is_on_the_page_within_a_second(cluster: Cluster, tab: Tab) -> None:
    await tab.open(cluster)
    await tab.shows("#no-runs", "This server has no runs")
    await cluster.node("a", *FLAGS)
    await tab.shows("#runs", completion.too_few(1, 1, 2, "a"))
    await cluster.node("b", *FLAGS)
    workers = await cluster.hub.group(4)
    await tab.shows("#runs", "round 1 runs on 2 nodes")
    await tab.page.click("text=r/1")
    await tab.shows("#reason", "round 1 runs on 2 nodes")
    assert tab.page.url.endswith("/runs/r%2F1")
    await tab.stays()
    shows = tab.page.evaluate_handle(WHEN_IT_SHOWS, "#failure:not([hidden])")
    await workers[1].tell("complain what it said last")
    killed_at = time.time()
    workers[1].order_exit(3)
    took_s = await (await shows).json_value() - killed_at
    print(f"a failed worker was on the page after {took_s:.3f} s")
    assert took_s < 10 * SOON_S
    await cluster.hub.group(4)
    await tab.shows("#reason", "round 2 runs on 2 nodes")
    assert re.search(r"worker rank 1 on node \w failed: exit code 3", await tab.text("#failure-sentence"))
    assert await tab.text("#evidence") == "what it said last"
    await tab.shows("#facts", "1 of 3 used")
    await tab.shows("#rounds tr >> nth=0", "charged")
    await tab.shows("#rounds tr >> nth=1", "worker rank 1 on node")
    await tab.shows("#time-legend", "running")
    await tab.shows("#events", "round started")
    assert await tab.is_same(), "nothing was reloaded"
    await cluster.agents["b"].end()
    await tab.shows("#nodes", "missing")
    await tab.shows("#reason", completion.waiting_for(1))
    assert re.fullmatch(r"gives up in \d+ (s|min \d+ s)", await tab.text("#countdown"))
    await tab.shows("#rounds tr >> nth=0", "not yet")
    await act(cluster.server, actions.STOP, run_id="r/1")
    await tab.shows("#rounds tr >> nth=0", "never started")
    tab.is_content()


async def test_a_silent_node_shows_its_silence_and_its_limit(cluster: Cluster, tab: Tab) -> None:
    await cluster.nodes("ab", "--nnodes", "2", *ALL_COME, "--lease", "18", "--disconnect-grace", "60", "--run-id", "r")
    await tab.open(cluster, "/runs/r")
    await tab.choose("b")
    await tab.shows("#node-facts", "under 10 s of 18 s")
    cell = tab.page.locator(".node", has_text="· b")

    async def ages(shown: str) -> None:
        """Wait until the cell shows this, and then another number."""
        aged = cell.filter(has_text=re.compile(shown))
        age = await aged.locator(".word").text_content()
        await aged.filter(has_not_text=age or "").wait_for()

    cluster.agents["b"].signal(signal.SIGSTOP)
    await ages(r"silent 1\d s of 18 s")
    await tab.shows("#node-facts", re.compile(r"Age of its lease\s*1\d s of 18 s"))
    cluster.agents["b"].signal(signal.SIGCONT)
    await cell.filter(has_text="running").wait_for()
    await cluster.agents["b"].kill()
    await ages(r"disconnected \d+ s of [\d.]+ s")
    await tab.shows("#node-facts", re.compile(r"Disconnected for\s*\d+ s of [\d.]+ s"))
    await tab.shows("#node-facts", re.compile(r"Age of its lease\s*\d+ s of 18 s"))
    await tab.is_accessible()
    tab.is_content()


async def test_a_node_that_is_slower_than_the_others_is_called_slow(cluster: Cluster, tab: Tab, tmp_path: Path) -> None:
    cluster.script, cluster.nproc = STRAGGLING_WORKER, 1
    slow = pattern(words.slow, node_id="b", is_own_work=True)
    for name in "abc":
        flags = ("--nnodes", "3", "--run-id", "r", *ALL_COME, "--lease", "2", "--disconnect-grace", "30")
        await cluster.node(name, *flags, env=straggling(tmp_path, is_slow=name == "b"))
    await cluster.server.line(slow, SEVERAL_LEASES_S)
    await tab.open(cluster, "/runs/r")
    await tab.choose("b")
    await tab.shows(".node .word", "slow")
    await tab.shows("#node-facts", re.compile(rf"Slow\s*{slow}"))
    await tab.shows("#states-legend", "1 slow")
    await tab.is_accessible()
    await tab.go(f"http://{cluster.endpoint}/runs/r?plain=0")
    await tab.shows("tbody tr", re.compile(rf"running\s+slow.*{slow}"))
    (tmp_path / "enough").touch()
    tab.is_content()


async def test_a_hung_run_is_marked_and_shows_the_next_step(cluster: Cluster, tab: Tab) -> None:
    """It comes before healthy runs, is counted and named in the title, and recovers by itself."""
    await cluster.nodes("b", "--run-id", "well", nproc=1)
    flags = ("--nnodes", "1:2", "--last-call-timeout", "0", "--on-hang", "report", "--progress-timeout", "1")
    (worker,) = await cluster.nodes("a", "--run-id", "train", *flags, nproc=1)
    await tab.open(cluster)
    await tab.shows("#runs tr:nth-child(2)", "well")
    await tab.shows("#runs tr:first-child [data-field=health]", "hung")
    await tab.shows(
        "#runs tr:first-child", re.compile(r"train.*worker rank 0 on node a: hang: .*rdzvctl stacks train", re.DOTALL)
    )
    await tab.shows("#needy", "1 run needs a look: 1 hung")
    assert await tab.page.title() == "(1) Runs · rdzv-server"
    assert "icon-trouble" in (await tab.page.get_attribute("#icon", "href") or "")
    await tab.is_accessible()
    await tab.picture("health-runs")
    await tab.open(cluster, "/runs/train")
    await tab.tone("#health-state", "bad")
    await tab.shows("#health-others", "Also: below size")
    await tab.shows(".node .word", "hung")
    await tab.choose("a")
    await tab.shows("#node-facts", re.compile(r"Hung\s*worker rank 0 on node a: hang: "))
    await tab.page.get_by_role("button", name="Copy rdzvctl stacks train", exact=True).click()
    await tab.shows("#done", "copied")
    assert await tab.page.title() == "hung · train · rdzv-server"
    await tab.is_accessible()
    await tab.picture("health-run", full=True)
    await tab.go(f"http://{cluster.endpoint}/runs/train?plain=0")
    await tab.shows("main", re.compile(rf"hung .*{health_words.stacks('train')}", re.DOTALL))
    await tab.open(cluster, "/runs/train")
    await worker.tell("progress 8 end")
    await tab.shows("#health-state", "below size")
    assert await tab.page.title() == "running · train · rdzv-server"
    assert "icon-trouble" not in (await tab.page.get_attribute("#icon", "href") or "")
    tab.is_content()


async def test_the_list_of_runs_has_the_worst_first_each_with_the_first_thing_to_do(cluster: Cluster, tab: Tab) -> None:
    """The first thing to do need not be a command: to end a run is never the first advice."""
    async with Crowd(cluster.server.port) as crowd:
        await crowd.run("spent", ["a"], max_restarts=1)
        await crowd.fail("spent")
        await cluster.nodes("bc", "--run-id", "gone", "--nnodes", "2", *PATIENT, "--disconnect-grace", "300", nproc=1)
        for agent in cluster.agents.values():
            await agent.kill()
        await tab.open(cluster)
        await tab.shows("#runs tr:nth-child(1)", re.compile("gone.*silent", re.DOTALL))
        await tab.shows("#runs tr:nth-child(1) .steps", health_words.LOOK_AT_NODES)
        await tab.shows("#runs tr:nth-child(2)", re.compile("spent.*last restart spent", re.DOTALL))
        await tab.shows("#needy", "2 runs need a look: 1 silent, 1 last restart spent")
        assert await tab.page.locator("#runs .steps", has_text="rdzvctl stop").count() == 0
        await tab.is_accessible()
    tab.is_content()


async def test_a_node_whose_name_looks_like_a_command_is_never_copied_as_one(cluster: Cluster, tab: Tab) -> None:
    name = "rdzvctl x; touch y #"
    async with Crowd(cluster.server.port) as crowd:
        await crowd.run("r", [name], max_restarts=9)
        for _ in range(3):
            await crowd.fail("r")
        await tab.open(cluster, "/runs/r")
        await tab.shows("#health-state", "looping")
        await tab.shows("#health-next", read_console(name))
        commands = await tab.page.locator("#health-next code").all_inner_texts()
        assert commands == [health_words.events("r").command, health_words.stop_and_mend("r").command]
        assert await tab.page.get_by_role("button", name="Copy rdzvctl").count() == 2
        await tab.open(cluster)
        await tab.shows("#runs .steps", read_console(name))
        assert await tab.page.locator("#runs code").count() == 0
    tab.is_content()


async def test_the_list_of_runs_is_filtered_sorted_and_paged_and_stays_so_over_back(
    cluster: Cluster, tab: Tab, new_tab: NewTab
) -> None:
    async with Crowd(cluster.server.port) as crowd:
        await asyncio.gather(*(crowd.run(f"eval-{number:03}", [f"cpu-{number:03}"]) for number in range(108)))
        await crowd.run("train", [f"gpu-{number}" for number in range(9)], max_restarts=3)
        await crowd.run("broken", ["gpu-x"], max_restarts=0)
        await crowd.fail("broken")
        await tab.open(cluster)
        await tab.counts("#runs tr", 100)
        await tab.shows("#extent", "Runs 1 to 100 of 110")
        await tab.shows("#runs tr:first-child", "broken")
        await tab.is_accessible()
        await tab.picture("runs-paged", full=True)
        await tab.page.click("#next")
        await tab.counts("#runs tr", 10)
        assert await tab.page.is_disabled("#next")
        await tab.page.get_by_role("button", name="Run", exact=True).click()
        await tab.shows("#runs tr:first-child", "broken")
        await tab.page.get_by_role("button", name="Run", exact=True).click()
        await tab.shows("#runs tr:first-child", "train")
        await tab.page.wait_for_selector("th[aria-sort=descending]")
        await tab.is_accessible()
        await tab.page.fill("#filter-words", "GPU-")
        await tab.counts("#runs tr", 2)
        await tab.shows("#runs tr:first-child", "has node gpu-0, gpu-1, gpu-2, gpu-3 and 5 more")
        await tab.shows("#extent", "2 of 110 runs match")
        await tab.page.select_option("#filter-phase", "running")
        await tab.counts("#runs tr", 1)
        await tab.page.click("#runs a")
        await tab.shows("#reason", "round 1 runs on 9 nodes")
        await tab.page.go_back()
        await tab.counts("#runs tr", 1)
        assert tab.page.url.endswith("/?words=GPU-&phase=running&sort=-run")
        assert await tab.page.input_value("#filter-words") == "GPU-"
        await tab.page.select_option("#filter-health", "trouble")
        await tab.shows("#no-match", "No run matches.")
        await tab.is_accessible()
        await tab.page.click("#show-all")
        await tab.counts("#runs tr", 100)
        phone = await new_tab(viewport=PHONE, is_mobile=True)
        await phone.open(cluster, "/?words=gpu")
        await phone.counts("#runs tr", 2)
        await phone.is_accessible()
        await phone.picture("runs-phone", full=True)
    tab.is_content()


async def test_links_that_fail_the_network_test_are_named_with_the_problem(cluster: Cluster, tab: Tab) -> None:
    """No link is as fast as this check demands. With two nodes it is unknown which one is at fault."""
    await cluster.nodes("ab", *FLAGS, "--check", "network=1000000", nproc=1)
    broken = re.compile(r"(a and b|b and a): .*node [ab]")
    await tab.open(cluster, "/runs/r%2F1")
    await tab.shows("#links li", broken)
    await tab.is_accessible()
    await tab.go(f"http://{cluster.endpoint}/runs/r%2F1?plain=0")
    await tab.shows("main", broken)
    await tab.go(f"http://{cluster.endpoint}/runs/r%2F1")
    await cluster.agents["b"].end()
    await tab.page.wait_for_selector("#links-card", state="hidden")
    tab.is_content()


async def test_without_a_script_there_are_plain_tables(cluster: Cluster, new_tab: NewTab) -> None:
    """There are an ended attempt and a running one, with more nodes than a table has rows, and one that is gone."""
    tab = await new_tab(java_script_enabled=False)
    async with Crowd(cluster.server.port) as crowd:
        names = [f"node-{number:03}" for number in range(258)]
        await crowd.run("a/b", ["node-x"], max_restarts=0)
        await crowd.fail("a/b", error="<b>boom</b>")
        nodes = await crowd.run("a/b", names, disconnect_grace_s=0.0)
        await tab.go(f"http://{cluster.endpoint}/")
        await tab.page.click("noscript a")
        await tab.shows("table", "round 1 runs on 258 nodes")
        await tab.page.click("text=a/b")
        await tab.shows("main", "Nodes 1 to 256 of 258.")
        rows = await tab.page.locator("table >> nth=0").locator("tbody tr").all_inner_texts()
        assert [int(row.split("\t")[0]) for row in rows] == list(range(256)), "by group rank"
        assert all(0.0 <= float(row.split("\t")[5].removesuffix(" s")) < 600.0 for row in rows), "leases' ages"
        await tab.shows("table >> nth=1", failures.no_restarts_left(0, None))
        await tab.page.click("text=The next")
        await tab.shows("main", "Nodes 257 to 258 of 258.")
        await nodes[7].gone()
        await cluster.server.line("node-007 lost")
        await tab.page.click("text=The first")
        await tab.shows("main", "missing: node node-007")
        live = await new_tab()
        await live.open(cluster, "/runs/a%2Fb")
        await live.shows("#attempts", failures.no_restarts_left(0, None))
        assert await live.page.locator("#attempts tr").count() == 1
    for wrong in ("x", "-1", "9" * 30):
        url, headers = f"http://{cluster.endpoint}/?plain={wrong}", {"Accept": "text/html"}
        assert (await tab.page.context.request.get(url, headers=headers)).status == 400
    tab.is_content()


HOSTILE = (
    "<img src=x onerror=alert(1)>", "../../etc/passwd", "..", ".", "a/b?c=d&e#f%2Fg %2e%2e", "'\"`;--", "{{ 7 * 7 }}",
    "\u05e9\u05dc\u05d5\u05dd", "x" * 256,
)  # fmt: skip


async def test_names_and_output_of_a_run_or_a_node_are_shown_as_text(cluster: Cluster, tab: Tab) -> None:
    async with Crowd(cluster.server.port) as crowd:
        for run_id in HOSTILE:
            await crowd.run(run_id, [run_id], max_restarts=1)
            await crowd.fail(run_id, error=run_id, stderr_tail=(run_id, "<b>bold</b>"))
        await tab.open(cluster)
        await tab.counts("#runs a", len(HOSTILE))
        assert sorted(await tab.page.locator("#runs a").all_text_contents()) == sorted(HOSTILE)
        for run_id in HOSTILE:
            await tab.open(cluster)
            await tab.page.locator("#runs a").get_by_text(run_id, exact=True).click()
            await tab.shows("#reason", "round 2 runs on 1 node")
            assert await tab.page.locator("h1").text_content() == run_id
            assert await tab.page.locator(".node .name").text_content() == f"0 · {run_id}"
            assert await tab.page.locator("#evidence").text_content() == f"{run_id}\n<b>bold</b>"
    tab.is_content()


async def test_all_of_it_works_by_keyboard(cluster: Cluster, tab: Tab) -> None:
    await cluster.nodes("abc", *FLAGS, *ALL_COME)
    await tab.open(cluster, "/runs/r%2F1")
    await tab.page.wait_for_selector(".node")
    press = tab.page.keyboard.press

    async def reach(name: str) -> None:
        for _ in range(30):
            if name in await tab.page.evaluate("document.activeElement.outerHTML.slice(0, 200)"):
                return
            await press("Tab")
        raise AssertionError(f"{name} is not reached by Tab")

    await press("Tab")
    assert await tab.page.evaluate("document.activeElement.textContent") == "Skip to the content"
    await press("Enter")
    assert await tab.page.evaluate("document.activeElement.id") == "main"
    await reach('id="nodes"')
    await press("ArrowRight")
    await press("ArrowRight")
    assert await tab.page.get_attribute("#nodes", "aria-activedescendant")
    assert (await tab.page.locator(".node[aria-selected=true] .name").text_content() or "").startswith("1 · ")
    await tab.shows("#node-facts", "under ")
    await press("Shift+Tab")
    await tab.page.focus("text=Stop run")
    await press("Enter")
    assert await tab.page.evaluate("document.activeElement.id") == "ask-reason"
    await press("Escape")
    assert await tab.page.evaluate("document.activeElement.textContent") == "Stop run", "where one was before"


async def test_a_node_s_whole_name_and_the_rank_of_the_first_failure_can_be_read(
    cluster: Cluster, new_tab: NewTab
) -> None:
    names = [f"gpu-node-{number:03}.rack-{number % 7}.hall-2.example.com" for number in range(200)]
    async with Crowd(cluster.server.port) as crowd:
        await crowd.run("r", names, max_restarts=1)
        await crowd.fail("r", at=17)
        tab = await new_tab(viewport=PHONE, is_mobile=True)
        await tab.open(cluster, "/runs/r")
        await tab.counts(".node", 200)
        await tab.shows(".node[data-mark=first] .more", re.compile(r"first failure: rank \d+"))
        guilty = tab.page.locator(".node[data-mark=first] .more")
        assert await guilty.evaluate("(each) => each.scrollWidth <= each.clientWidth"), "the rank is cut off"
        first = tab.page.locator(".node >> nth=0")
        assert await first.get_attribute("title") in names
        await first.click()
        assert await first.locator(".name").evaluate("(each) => each.scrollHeight <= each.clientHeight + 1")
        await tab.is_accessible()
        await tab.picture("nodes-phone")
    tab.is_content()


async def test_curl_gets_text_and_programs_get_json(cluster: Cluster, tab: Tab) -> None:
    context = tab.page.context
    plain = await context.request.get(f"http://{cluster.endpoint}/", headers={"Accept": "*/*"})
    assert plain.headers["content-type"].startswith("text/plain") and "in a browser" in await plain.text()
    page = await context.request.get(f"http://{cluster.endpoint}/", headers={"Accept": "text/html"})
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["content-security-policy"].startswith(
        "default-src 'none'; script-src 'self'; style-src 'self';"
    )
    assert page.headers["x-frame-options"] == "DENY" and page.headers["referrer-policy"] == "same-origin"
    assert page.headers["x-content-type-options"] == "nosniff"
    for wrong in ("/static/../page.py", "/static/", "/static/page.html", "/run/x"):
        assert (await context.request.get(f"http://{cluster.endpoint}{wrong}")).status == 404


async def test_on_a_phone_nothing_is_cut_off(cluster: Cluster, new_tab: NewTab) -> None:
    await cluster.nodes("ab", *FLAGS)
    tab = await new_tab(viewport=PHONE, is_mobile=True, device_scale_factor=2)
    await tab.open(cluster)
    await tab.shows("#runs", "round 1 runs on 2 nodes")
    await tab.is_accessible()
    await tab.picture("page-phone-runs")
    await tab.open(cluster, "/runs/r%2F1")
    await tab.page.wait_for_selector(".node")
    await tab.is_accessible()
