"""Actions on real runs and nodes by button, in a real browser."""

import re
from pathlib import Path

from rdzv_protocol import actions

from node_agent import words
from rdzv_server.words import cluster as cluster_words
from rdzv_server.words import costs, nodes, operations
from rdzv_server.words import service as service_words
from tests.browser.conftest import PHONE, Tab
from tests.browser.crowd import Crowd
from tests.browser.runs import FLAGS
from tests.integration.replicas import Replicas
from tests.integration.test_actions import act
from tests.support.cluster import PATIENT, Cluster
from tests.support.etcd import Etcd
from tests.support.message_search import beginning, pattern
from tests.support.poison import poison
from tests.support.worker_hub import WorkerHub

HOUR_S = 3600.0


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
    await tab.counts(drained := '.node:has-text("· b")', 1)
    await tab.choose("b")
    await tab.act("Drain", deadline_s="20", reason="a fan has failed")
    await tab.shows("#reason", "round 3 runs on 2 nodes")
    await tab.shows("#events", "a fan has failed")
    await cluster.agents["b"].exit_code()
    await tab.counts(drained, 0)
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
        await tab.act("Resize", min_nodes="1", max_nodes="2")
        await tab.shows("#reason", "round 3 runs on 2 nodes")
        await tab.shows("#facts", "2 of 1 to 2")
        (run,) = (await cluster.server.status())["runs"]
        (name,) = (node["node_id"] for node in run["nodes"] if node["group_rank"] == 0)
        await tab.choose(name)
        await tab.act("Cordon", for_s="3600", reason="its fan")
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
        blamed = nodes.blamed(1, HOUR_S, 1)
        excluded = tab.page.locator(".node .word", has_text=re.compile("^excluded$"))
        await excluded.click()
        await tab.shows("#node-facts", re.compile(rf"Excluded\s*{blamed}.*Uncordoned\s*in 2[34] h"))
        await tab.shows("#states-legend", "1 excluded")
        await tab.is_accessible()
        await tab.page.get_by_role("link", name="What this node has cost runs").click()
        await tab.shows("h1", re.compile("^Node [ab]$"))
        await tab.shows(".notice", re.compile(f"is kept out of new rounds: excluded until .* UTC: {blamed}"))
        await tab.shows("tbody tr", re.compile(r"r/1\s*1\s*0\s*1\s*\d.*yes"))
        await tab.shows("tbody tr", re.compile(r"failed\s*r/1\s*worker rank 0 on node \w failed: exit code 3"))
        await tab.shows("tbody tr", "excluded")
        await tab.is_accessible()
        await tab.page.set_viewport_size(PHONE)
        await tab.is_accessible()
        await tab.open(cluster)
        await tab.shows("#cordons tr", f"Excluded: {blamed}")
        place = await tab.page.get_by_role("button", name="Uncordon node").bounding_box()
        assert place and place["x"] + place["width"] <= PHONE["width"], "it is beyond the edge of the phone"
        await tab.go(f"http://{cluster.endpoint}/runs/r%2F1?plain=0")
        await tab.shows("tbody tr", re.compile(f"excluded.*excluded until .* UTC: {blamed}"))
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
    await tab.shows("main", "No run of this server has or had this node")
    await tab.open(cluster)
    await tab.shows("#cordons tr", re.compile(r"n<b>7Cordoned by 127\.0\.0\.1: its fan; until .*\d\d:\d\d:\d\d"))
    await tab.shows("#cordons tr", "n8Cordoned by 127.0.0.1; until an operator uncordons it")
    await tab.is_accessible()
    await tab.go(f"http://{cluster.endpoint}/?plain=0")
    await tab.shows(
        "main",
        re.compile(r"Node n<b>7 is kept out of new rounds: cordoned by 127\.0\.0\.1 until .* UTC: its fan"),
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


async def test_the_page_of_a_standalone_run_has_no_buttons(cluster: Cluster, tab: Tab) -> None:
    agent = await cluster.agent("a", "--standalone")
    url = (await agent.line(pattern(words.progress.status_page)))["url"]
    (worker,) = await cluster.hub.group(1)
    await tab.go(url)
    await tab.shows("#runs", "round 1 runs on 1 node")
    await tab.page.click("#runs a")
    await tab.shows("#events", "round started")
    await tab.page.click(".node")
    await tab.shows("#node-facts", "under ")
    assert await tab.page.locator("button[data-path]").count() == 0
    await tab.is_accessible()
    await cluster.finish([worker])
    await tab.shows("#live", "connection lost, trying again")


async def test_an_action_shows_its_cost_its_effect_and_what_is_unknown(cluster: Cluster, tab: Tab) -> None:
    async with Crowd(cluster.server.port) as crowd:
        await crowd.run("run", "ab")
        await tab.open(cluster, "/runs/run")
        await tab.page.click("text=Resize")
        await tab.shows("#dialog-cost", costs.NOTHING_STOPS)
        await tab.page.fill("#ask-min_nodes", "4")
        await tab.page.fill("#ask-max_nodes", "4")
        await tab.shows("#dialog-cost", costs.waits(2))
        await tab.is_accessible()
        await tab.picture("action-cost")
        await tab.page.keyboard.press("Escape")
        await tab.page.get_by_role("button", name="Restart", exact=True).click()
        await tab.shows("#dialog-cost", costs.restart(4, costs.WORK_UNKNOWN))
        await tab.page.keyboard.press("Escape")
        await tab.choose("a")
        await tab.page.get_by_role("button", name="Cordon", exact=True).click()
        await tab.page.fill("#ask-for_s", "soon")
        await tab.page.click("#dialog-do")
        await tab.shows("#dialog-error", "soon is not a time: write 90s, 10m, 2h or 3d.")
        await tab.page.fill("#ask-for_s", "2h")
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
