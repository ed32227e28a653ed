"""The page of real runs in a real browser: it shows events without a reload, and carries out actions."""

import asyncio
import re
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from rdzv_protocol import actions
from rdzv_protocol.words.run import restarts_took

from rdzv_server.core.policies import words
from rdzv_server.words import cluster as cluster_words
from rdzv_server.words import completion, costs, failures, operations
from rdzv_server.words import health as health_words
from rdzv_server.words import service as service_words
from tests.browser.conftest import PHONE, NewTab, Tab
from tests.browser.crowd import Crowd
from tests.integration.replicas import Replicas
from tests.integration.test_actions import act
from tests.support.cluster import ALL_COME, PATIENT, Cluster, straggling
from tests.support.etcd import Etcd
from tests.support.message_search import beginning, pattern
from tests.support.poison import poison
from tests.support.programs import STRAGGLING_WORKER, Server
from tests.support.tcp_proxy import TcpProxy
from tests.support.worker_hub import WorkerHub

SOON_S = 1.0
"""Seconds until a failure is on the page. An overloaded machine may take ten times as long."""
SEVERAL_LEASES_S = 100.0
"""Seconds to find a straggler: its looks are one lease apart, and more under load."""
FLAGS = ("--nnodes", "2:3", "--max-restarts", "3", "--run-id", "r/1", *PATIENT, "--last-call-timeout", "0.1")

WHEN_IT_SHOWS = """(selector) => new Promise((resolve) => {
  const look = () => { if (document.querySelector(selector)) resolve(Date.now() / 1000); };
  new MutationObserver(look).observe(document, { subtree: true, childList: true, attributes: true });
  look();
})"""


async def test_what_restarts_took_is_below_where_the_time_went(cluster: Cluster, tab: Tab) -> None:
    workers = await cluster.nodes("a", "--run-id", "r", "--max-restarts", "1")
    await tab.open(cluster, "/runs/r")
    await tab.shows("#time-legend", "running")
    assert await tab.page.is_hidden("#restarts-took")
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


async def test_an_operator_stops_a_run_by_button_and_says_why(cluster: Cluster, tab: Tab) -> None:
    await cluster.nodes("ab", *FLAGS)
    await tab.open(cluster, "/runs/r%2F1")
    await tab.page.click("text=Stop run")
    await tab.page.keyboard.press("Escape")
    assert (await cluster.server.run())["phase"] == "running", "an accident can be taken back"
    await tab.page.click("text=Stop run")
    await tab.page.fill("#ask-reason", "wrong <b>data</b>")
    await tab.page.click("#dialog-do")
    await tab.shows("#reason", operations.stopped("wrong <b>data</b>"))
    await tab.tone("#phase", "bad")
    assert await tab.page.is_hidden("text=Stop run")
    for agent in cluster.agents.values():
        assert await agent.exit_code() == 1
    tab.is_content()


async def test_a_node_is_drained_by_button_and_the_others_continue(cluster: Cluster, tab: Tab) -> None:
    await cluster.nodes("ab", *FLAGS)
    await cluster.node("c", *FLAGS)
    await cluster.hub.group(6)
    await tab.open(cluster, "/runs/r%2F1")
    await tab.shows("#reason", "round 2 runs on 3 nodes")
    await tab.choose("b")
    await tab.act("Drain", deadline="20", reason="a fan has failed")
    await tab.shows("#reason", "round 3 runs on 2 nodes")
    await tab.shows("#events", "a fan has failed")
    await cluster.agents["b"].exit_code()
    assert await tab.page.locator(".node", has_text="· b").count() == 0
    tab.is_content()


async def test_runs_that_are_set_apart_or_cannot_be_shown_say_so_and_one_that_is_set_apart_can_be_forgotten(
    hub: WorkerHub, tab: Tab
) -> None:
    async with Cluster(hub) as cluster:
        await cluster.serve(env=poison("r/1", unreadable="odd"))
        cannot_be_shown = beginning(service_words.run_cannot_be_shown)
        await cluster.nodes("c", "--run-id", "odd", *PATIENT, nproc=1)
        workers = await cluster.nodes("ab", *FLAGS, nproc=1)
        await tab.open(cluster)
        await tab.shows("#runs tr", f"{cannot_be_shown}an error inside rdzv-server")
        workers[0].kill()
        await tab.shows("#runs tr >> nth=0", "run r/1 is set apart after an error inside rdzv-server")
        await tab.page.click("text=r/1")
        await tab.shows("#reason", "is set apart after an error inside rdzv-server")
        assert await tab.text("#health-sentence") == "", "the same sentence stands above"
        await tab.shows("#health-age", re.compile(r"for \d+ s, since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d \w+"))
        await tab.tone("#phase", "bad")
        await tab.is_accessible()
        await tab.act("Forget")
        workers = await cluster.hub.group(2)
        await tab.shows("#reason", "round 1 runs on 2 nodes")
        await tab.open(cluster, "/runs/odd")
        await tab.shows("#reason", cannot_be_shown)
        await tab.is_accessible()
        tab.is_content()


async def test_every_other_action_has_its_button(cluster: Cluster, tab: Tab) -> None:
    async with Crowd(cluster.server.port) as crowd:
        await crowd.run("run", "abc")
        await tab.open(cluster, "/runs/run")
        await tab.shows("#reason", "round 1 runs on 3 nodes")
        await tab.act("Restart", reason="a new version of the data")
        await tab.shows("#reason", "round 2 runs on 3 nodes")
        await tab.shows("#rounds", operations.restarted("a new version of the data"))
        await tab.act("Resize", min="1", max="2")
        await tab.shows("#reason", "round 3 runs on 2 nodes")
        await tab.shows("#facts", "2 of 1 to 2")
        (run,) = (await cluster.server.status())["runs"]
        (name,) = (node["node_id"] for node in run["nodes"] if node["group_rank"] == 0)
        await tab.choose(name)
        await tab.act("Cordon", **{"for": "3600"}, reason="its fan")
        await tab.shows("#nodes", "cordoned")
        await tab.shows(
            "#node-facts", re.compile(r"Cordoned\s*by 127\.0\.0\.1: its fan\s*Uncordoned\s*in 59 min \d+ s")
        )
        await tab.act("Cordon", reason="its second fan")
        await tab.shows("#node-facts", re.compile(r"its second fan\s*Uncordoned\s*only by an operator"))
        await tab.act("Uncordon")
        await tab.shows("#events", operations.uncordoned(name, "", by_operator=True))
        assert "cordoned" not in await tab.text("#nodes")
        assert "ordoned" not in await tab.text("#node-facts")
        await tab.act("Stop run")
        await tab.act("Forget")
        assert await tab.page.is_hidden("text=Stop run")
        (run,) = (await cluster.server.status())["runs"]
        assert run["phase"] == "failed"
    tab.is_content()


async def test_a_node_that_the_server_keeps_out_is_excluded(hub: WorkerHub, tab: Tab) -> None:
    async with Cluster(hub, "--exclude-after", "1/1h") as cluster:
        await cluster.serve()
        workers = await cluster.nodes("ab", *FLAGS, nproc=1)
        await tab.open(cluster, "/runs/r%2F1")
        workers[0].order_exit(3)
        excluded = tab.page.locator(".node .word", has_text=re.compile("^excluded$"))
        await excluded.click()
        await tab.shows("#node-facts", re.compile(r"Excluded\s*blamed 1 time within 1 h.*Uncordoned\s*in 2[34] h"))
        await tab.shows("#states-legend", "1 excluded")
        await tab.is_accessible()
        await tab.page.get_by_role("link", name="What this node has cost runs").click()
        await tab.shows("h1", re.compile("^Node [ab]$"))
        await tab.shows(".notice", re.compile("gets no seat in new rounds: excluded until .* UTC: blamed 1 time"))
        await tab.shows("tbody tr", re.compile(r"r/1\s*1\s*0\s*1\s*\d.*yes"))
        await tab.shows("tbody tr", re.compile(r"failed\s*r/1\s*worker rank 0 on node \w failed: exit code 3"))
        await tab.shows("tbody tr", "excluded")
        await tab.is_accessible()
        await tab.page.set_viewport_size(PHONE)
        await tab.is_accessible()
        await tab.go(f"http://{cluster.endpoint}/runs/r%2F1?plain=0")
        await tab.shows("tbody tr", re.compile(r"excluded.*excluded until .* UTC: blamed 1 time within 1 h"))
        await tab.is_accessible()
        tab.is_content()


async def test_excluded_nodes_are_listed_even_without_a_run(cluster: Cluster, tab: Tab) -> None:
    await tab.open(cluster)
    assert await tab.page.is_hidden("#kept-out")
    cordon = {"node_id": "n<b>7", "reason": "its fan", "for_s": 86_400}
    assert (await act(cluster.server, actions.CORDON, **cordon))[0] == 200
    assert (await act(cluster.server, actions.CORDON, node_id="n8"))[0] == 200
    await tab.page.get_by_role("link", name="n<b>7").click()
    await tab.shows("h1", "Node n<b>7")
    await tab.shows(".notice", "its fan")
    await tab.shows("main", "No run that this server remembers has or had this node")
    await tab.open(cluster)
    await tab.shows("#cordons tr", re.compile(r"n<b>7Cordoned by 127\.0\.0\.1: its fan; until .*\d\d:\d\d:\d\d"))
    await tab.shows("#cordons tr", "n8Cordoned by 127.0.0.1; until an operator uncordons it")
    await tab.is_accessible()
    await tab.go(f"http://{cluster.endpoint}/?plain=0")
    await tab.shows(
        "main", re.compile(r"Node n<b>7 gets no seat in new rounds: cordoned by 127\.0\.0\.1 until .* UTC: its fan")
    )
    await tab.is_accessible()
    await tab.open(cluster)
    for node_id in ("n<b>7", "n8"):
        assert (await act(cluster.server, actions.UNCORDON, node_id=node_id))[0] == 200
    await tab.page.wait_for_selector("#kept-out", state="hidden")
    tab.is_content()


async def test_a_node_that_no_run_has_is_uncordoned_by_button_and_by_keyboard(cluster: Cluster, tab: Tab) -> None:
    for node_id in ("n7", "n<b>8", "n9"):
        assert (await act(cluster.server, actions.CORDON, node_id=node_id, reason="its fan"))[0] == 200
    await tab.open(cluster)
    await tab.stays()
    await tab.shows("#cordons tr", "n9")
    press = tab.page.keyboard.press
    await tab.page.get_by_role("button", name="Uncordon node n<b>8", exact=True).focus()
    await press("Enter")
    await tab.shows("#dialog-title", "Uncordon: node n<b>8")
    assert await tab.page.evaluate("document.activeElement.id") == "ask-reason"
    await press("Escape")
    await tab.focuses("Uncordon node n<b>8")
    await press("Enter")
    await tab.page.keyboard.type("a <b>new</b> fan")
    await press("Enter")
    await tab.shows("#done", operations.uncordoned("n<b>8", "a <b>new</b> fan", by_operator=True))
    uncordoned = operations.uncordoned("n<b>8", "a <b>new</b> fan", by_operator=True)
    await cluster.server.line(pattern(uncordoned) + r" \(by 127\.0\.0\.1\)")
    await tab.page.locator("#cordons tr", has_text="n<b>8").wait_for(state="detached")
    await tab.focuses("Uncordon node n9")
    await tab.act("Uncordon", of="node n9")
    await tab.act("Uncordon", of="node n7")
    await tab.page.wait_for_selector("#kept-out", state="hidden")
    assert await tab.page.evaluate("document.activeElement.id") == "main"
    assert (await cluster.server.status())["server"]["cordons"] == []
    assert await tab.is_same(), "nothing was reloaded"
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


async def test_a_run_that_hangs_looks_so_and_says_what_to_do(cluster: Cluster, tab: Tab) -> None:
    """It comes before healthy runs, is counted and named in the title, and recovers by itself."""
    await cluster.nodes("b", "--run-id", "well", nproc=1)
    flags = ("--nnodes", "1:2", "--last-call-timeout", "0", "--on-hang", "report", "--progress-timeout", "1")
    (worker,) = await cluster.nodes("a", "--run-id", "train", *flags, nproc=1)
    await tab.open(cluster)
    await tab.shows("#runs tr:nth-child(2)", "well")
    await tab.shows("#runs tr:first-child [data-field=health]", "hung")
    await tab.shows(
        "#runs tr:first-child", re.compile(r"train.*rank 0 on node a may hang: .*rdzvctl stacks train", re.DOTALL)
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
    await tab.shows("#node-facts", re.compile(r"Hung\s*rank 0 on node a may hang: "))
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


async def test_the_page_of_a_standalone_run_has_no_buttons(cluster: Cluster, tab: Tab) -> None:
    agent = await cluster.agent("a", "--standalone")
    address = (await agent.line(r"status: http://(127\.0\.0\.1:\d+)/v1/status"))[1]
    (worker,) = await cluster.hub.group(1)
    await tab.go(f"http://{address}/")
    await tab.shows("#runs", "round 1 runs on 1 node")
    await tab.page.click("#runs a")
    await tab.shows("#events", "round started")
    await tab.page.click(".node")
    await tab.shows("#node-facts", "under ")
    assert await tab.page.locator("button[data-path]").count() == 0
    await tab.is_accessible()
    await cluster.finish([worker])
    await tab.shows("#live", "connection lost, trying again")


async def test_an_action_says_what_it_costs_what_it_did_and_what_is_unknown(cluster: Cluster, tab: Tab) -> None:
    async with Crowd(cluster.server.port) as crowd:
        await crowd.run("run", "ab")
        await tab.open(cluster, "/runs/run")
        await tab.page.click("text=Resize")
        await tab.shows("#dialog-cost", costs.NOTHING_STOPS)
        await tab.page.fill("#ask-min", "4")
        await tab.page.fill("#ask-max", "4")
        await tab.shows("#dialog-cost", costs.waits(2))
        await tab.is_accessible()
        await tab.picture("action-cost")
        await tab.page.keyboard.press("Escape")
        await tab.page.get_by_role("button", name="Restart", exact=True).click()
        await tab.shows("#dialog-cost", costs.restart(4, costs.WORK_UNKNOWN))
        await tab.page.keyboard.press("Escape")
        await tab.choose("a")
        await tab.page.get_by_role("button", name="Cordon", exact=True).click()
        await tab.page.fill("#ask-for", "soon")
        await tab.page.click("#dialog-do")
        await tab.shows("#dialog-error", "soon is not a time: write 90s, 10m, 2h or 3d.")
        await tab.page.fill("#ask-for", "2h")
        await tab.page.click("#dialog-do")
        await tab.shows("#done", operations.cordoned("a", 7200.0, ""))
        await tab.act("Uncordon")
        await tab.page.get_by_role("button", name="Uncordon", exact=True).click()
        await tab.page.click("#dialog-do")
        await tab.shows("#done", f"Nothing to do: {operations.not_cordoned('a')}")
        await tab.page.click("text=Stop run")
        await tab.shows("#dialog-cost", costs.stop(4, costs.WORK_UNKNOWN))
        await cluster.server.kill()
        await tab.page.click("#dialog-do")
        await tab.shows("#dialog-error", "The outcome is unknown")


async def test_the_end_of_a_worker_s_log_and_its_stacks_are_read_by_button(
    cluster: Cluster, tab: Tab, tmp_path: Path
) -> None:
    files = ("-r", "3", "--log-dir", str(tmp_path / "logs"))
    await cluster.node("a", *FLAGS, *files, "--allow-log-reads", nproc=1)
    await cluster.node("b", *FLAGS, *files, nproc=1)
    for worker in await cluster.hub.group(2):
        await worker.tell("say a step of it")
        await worker.tell("complain what it <b>said</b>")
    await tab.open(cluster, "/runs/r%2F1")
    await tab.choose("a")
    await tab.page.get_by_role("button", name="End of its log").click()
    await tab.shows("#look-text", re.compile(r"^stdout:\s*a step of it\s*stderr:\s*what it <b>said</b>"))
    await tab.shows("#look-says", re.compile(r"Rank \d on node a: the end of its stdout, /.*; and of its stderr, /"))
    await tab.is_accessible()
    await tab.picture("node-log")
    await tab.page.get_by_role("button", name="Stacks", exact=True).click()
    await tab.shows("#look-says", re.compile(r"rank \d"))
    await tab.choose("b")
    await tab.page.get_by_role("button", name="End of its log").click()
    await tab.shows("#look-says", "--allow-log-reads")
    assert await tab.page.is_hidden("#look-text")


async def test_the_dialog_shows_why_an_action_is_refused(cluster: Cluster, tab: Tab) -> None:
    await cluster.nodes("ab", *FLAGS)
    await tab.open(cluster, "/runs/r%2F1")
    await tab.page.click("text=Admit")
    await tab.page.click("#dialog-do")
    await tab.shows("#dialog-error", "The action was not done: ")
    assert [each for each in tab.complaints if "409" not in each] == []


async def test_a_page_outlives_its_server(hub: WorkerHub, tab: Tab, tmp_path: object) -> None:
    """An agent that dies before it polls the restarted server is lost when its lease ends."""
    async with Cluster(hub, "--store", f"sqlite:{tmp_path}/state.db") as cluster:
        await cluster.serve()
        await cluster.nodes("ab", *FLAGS, "--lease", "10")
        await tab.open(cluster, "/runs/r%2F1")
        await tab.shows("#reason", "round 1 runs on 2 nodes")
        await tab.stays()
        await cluster.lose_server()
        await tab.shows("#live", "connection lost, trying again")
        await cluster.regain_server()
        await tab.is_live()
        await cluster.agents["b"].end()
        await tab.shows("#reason", completion.waiting_for(1))
        assert await tab.is_same()


@pytest_asyncio.fixture(loop_scope="session")
async def service(replicas: Replicas) -> AsyncIterator[TcpProxy]:
    """An address that leads to the leading server, like a Service's."""
    async with TcpProxy(replicas.servers[0].endpoint) as service:
        yield service


async def test_a_page_continues_at_the_server_that_takes_over(
    replicas: Replicas, service: TcpProxy, tab: Tab, new_tab: NewTab
) -> None:
    """One page is open at the follower, another at the Service's address."""
    leader, follower = replicas.servers[:2]
    await replicas.nodes("ab", *FLAGS, nproc=1)
    of_service = await new_tab()
    await of_service.go(f"http://{service.address}/runs/r%2F1")
    await of_service.shows("#reason", "round 1 runs on 2 nodes")
    await of_service.stays()
    await tab.open(follower, "/runs/r%2F1")
    await tab.shows("#leaders", "This server follows; another server leads.")
    leads = (await follower.status())["server"]["leader"]
    assert await tab.page.get_attribute("#leaders a", "href") == f"http://{leads}/runs/r%2F1"
    assert await of_service.page.is_hidden("#leaders"), "the leader itself names nobody"
    await tab.stays()
    await leader.kill()
    await follower.leads()
    service.target = follower.endpoint
    for each in (tab, of_service):
        await each.shows("#reason", "round 1 runs on 2 nodes")
        await each.is_live()
    assert await tab.page.is_hidden("#leaders")
    await replicas.agents["b"].end()
    for each in (tab, of_service):
        await each.shows("#reason", completion.waiting_for(1))
        await each.shows("#events", "node b lost")
        assert await each.is_same()


async def test_a_server_that_does_not_decide_about_nodes_names_the_server_that_does(
    hub: WorkerHub, etcd: Etcd, tab: Tab
) -> None:
    async with Replicas(hub, etcd, "page-shards", shards=2) as sharded:
        first, second = [await sharded.replicate("--shards", "2", "--rebalance-after", "0.2") for _ in range(2)]
        await first.leads()
        await second.leads()
        (shard_0, _) = (await second.status())["server"]["shards"]
        decides, other = (second, first) if shard_0["leader"] == second.proxy.address else (first, second)
        assert (await act(decides, actions.CORDON, node_id="n7"))[0] == 200
        await tab.open(other)
        await tab.page.get_by_role("button", name="Uncordon node n7").click()
        await tab.page.click("#dialog-do")
        await tab.shows("#dialog-error", f"The action was not done: {cluster_words.other_leads(decides.proxy.address)}")
        assert [each for each in tab.complaints if "421" not in each] == []


@pytest.mark.parametrize("path", ["/", "/runs/r%2F1"])
async def test_the_page_of_a_server_that_is_gone_names_the_others_with_links(
    replicas: Replicas, tab: Tab, path: str
) -> None:
    leader, follower = replicas.servers[:2]
    await replicas.nodes("ab", *FLAGS, nproc=1)
    await tab.open(leader, path)
    await tab.shows("#main", "round 1 runs on 2 nodes")
    assert await tab.page.is_hidden("#peers")
    await leader.kill()
    await tab.shows("#peers", f"Other servers of the cluster: {follower.proxy.address}")
    await follower.leads()
    await tab.page.click("#peers a")
    await tab.is_live()
    await tab.shows("#main", "round 1 runs on 2 nodes")
    assert tab.page.url == f"http://{follower.proxy.address}{path}"
    assert await tab.page.is_hidden("#peers")


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


async def test_the_server_closes_soon_with_pages_open(cluster: Cluster, tab: Tab) -> None:
    await tab.open(cluster)
    server: Server = cluster.server
    server.signal(signal.SIGTERM)
    assert await server.exit_code() == 0
    assert not any("Traceback" in line for line in server.err)
