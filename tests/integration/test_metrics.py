"""Metrics of real servers: what they show of requests, and of the runs that each leads."""

import aiohttp
from rdzv_protocol import paths

from tests.integration.replicas import Replicas
from tests.support.cluster import Cluster
from tests.support.programs import Server
from tests.support.prometheus import Scrape


async def scrape(server: Server) -> Scrape:
    return Scrape(await server.get(paths.METRICS))


async def test_requests_are_measured_by_path_and_status(cluster: Cluster) -> None:
    workers = await cluster.nodes("a", "--run-id", "measured")
    async with aiohttp.ClientSession(f"http://{cluster.endpoint}") as session:
        for path in ("/healthz", "/nothing", "/nothing/else", "/v1/runs/stop"):
            async with session.get(path):
                pass
    said = await scrape(cluster.server)
    answered = "rdzv_http_request_duration_seconds_count"
    assert said(answered, path="/healthz", status="200") == 1
    assert said(answered, path="other", status="404") == 2
    assert said(answered, path="/v1/runs/stop", status="405") == 1
    assert said(answered, path=paths.JOIN, status="200") == 1
    assert said("rdzv_run_nodes", run_id="measured", state="running") == 1
    assert said("rdzv_store_write_records_sum") >= 3  # created, joined, completed
    assert said("rdzv_store_write_duration_seconds_count") >= 1
    assert said("rdzv_http_connections", state="authenticated") >= 1
    await cluster.finish(workers)


async def test_each_of_several_servers_has_metrics_of_the_runs_that_it_leads(replicas: Replicas) -> None:
    workers = await replicas.nodes("a", "--run-id", "led")
    first, second = replicas.servers
    for server, leads in ((first, 1), (second, 0)):
        said = await scrape(server)
        assert said("rdzv_server_leader") == said("rdzv_shards_led") == said("rdzv_elections_won_total") == leads
        assert said("rdzv_runs", phase="running") == len(said.all("rdzv_run_info")) == leads
        assert said("rdzv_shards") == said("rdzv_server_ready") == 1
    await first.kill()
    await second.leads()
    said = await scrape(second)
    assert (said("rdzv_server_leader"), said("rdzv_elections_won_total")) == (1, 1)
    assert said("rdzv_run_nodes", run_id="led", state="running") == 1
    assert said("rdzv_runs_begun_total") == 0  # the other server has counted it
    await replicas.finish(workers)
