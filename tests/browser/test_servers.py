"""A page while its server ends, another one takes over, or it closes."""

import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from rdzv_server.words import completion, page
from tests.browser.conftest import NewTab, Tab
from tests.browser.runs import FLAGS
from tests.integration.replicas import Replicas
from tests.support.cluster import Cluster
from tests.support.programs import Server
from tests.support.tcp_proxy import TcpProxy
from tests.support.worker_hub import WorkerHub

LATER = "for (const key in sessionStorage) if (sessionStorage[key] > 0) sessionStorage[key] -= 600_001"
"""Lets ten minutes pass since the page was loaded again."""


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
        await tab.shows("#peers", "This server does not answer. The page shows what it knew at ")
        assert await tab.page.title() == "no answer · running · r/1 · rdzv-server", "no tab looks well"
        facts = await tab.page.inner_text("#facts")
        await tab.page.wait_for_timeout(2_500)
        assert await tab.page.inner_text("#facts") == facts, "no age grows of which nothing is known"
        assert "grayscale" in await tab.page.evaluate("getComputedStyle(document.getElementById('of-run')).filter")
        await cluster.regain_server()
        await tab.is_live()
        assert await tab.page.is_hidden("#peers") and "no answer" not in await tab.page.title()
        await cluster.agents["b"].end()
        await tab.shows("#reason", completion.waiting_for(1))
        assert await tab.is_same()


async def test_a_page_of_another_version_than_its_server_loads_again_once_in_ten_minutes(
    hub: WorkerHub, tab: Tab, tmp_path: object
) -> None:
    """After an upgrade the script of an open page may not understand what the server sends. The upgrade may be taken
    back, and done again.
    """
    async with Cluster(hub, "--store", f"sqlite:{tmp_path}/state.db") as cluster:
        await cluster.serve()
        await cluster.nodes("ab", *FLAGS)
        await tab.open(cluster, "/runs/r%2F1")
        for opens_dialog in (True, False):
            await tab.stays()
            await tab.page.evaluate("document.body.dataset.version = '0.9'")
            if opens_dialog:
                await tab.page.get_by_role("button", name="Stop run", exact=True).click()
            await cluster.lose_server()
            await tab.shows("#live", "connection lost, trying again")
            await cluster.regain_server()
            await tab.is_live()
            assert await tab.is_same(), "an open dialog keeps the page, and it loads once for each version"
            if opens_dialog:
                async with tab.page.expect_navigation():
                    await tab.page.keyboard.press("Escape")
                await tab.shows("#reason", "round 1 runs on 2 nodes")
                assert not await tab.is_same()
        await tab.page.evaluate(LATER)
        await cluster.lose_server()
        await tab.shows("#live", "connection lost, trying again")
        async with tab.page.expect_navigation():
            await cluster.regain_server()
        await tab.is_live()
        assert not await tab.is_same()


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
    await tab.shows("#leaders", page.FOLLOWS)
    leads = (await follower.status())["server"]["leader"]
    assert await tab.page.get_attribute("#leaders a", "href") == f"http://{leads}/runs/r%2F1"
    assert await of_service.page.is_hidden("#leaders"), "the leader itself names no server"
    plain = await follower.get("/runs/r%2F1?plain=0")
    assert f'href="http://{leads}/runs/r%2F1?plain=0"' in plain
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


async def test_the_server_closes_soon_with_pages_open(cluster: Cluster, tab: Tab) -> None:
    await tab.open(cluster)
    server: Server = cluster.server
    server.signal(signal.SIGTERM)
    assert await server.exit_code() == 0
    assert not any("Traceback" in line for line in server.err)
