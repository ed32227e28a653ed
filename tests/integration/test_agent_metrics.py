"""Metrics of real agents: what they show of workers and the server, and that scrapers cannot disturb them."""

import asyncio
import socket
import subprocess
import sys
import time
from contextlib import suppress
from urllib.error import HTTPError

import pytest

from node_agent.features.metrics import words as metrics
from tests.support.cluster import PATIENT, Cluster
from tests.support.message_search import pattern
from tests.support.outages import LOST
from tests.support.programs import Program, get, refuses, start_agent
from tests.support.prometheus import Scrape, promtool
from tests.support.worker_hub import all_run


async def url_of(agent: Program) -> str:
    return (await agent.line(pattern(metrics.place)))["url"].removesuffix("/metrics")


async def scrape(agent: Program) -> Scrape:
    return Scrape(await get(f"{await url_of(agent)}/metrics"))


async def test_an_agent_reports_its_workers_and_the_lost_server(cluster: Cluster) -> None:
    agent = await cluster.node("a", "--metrics-port", "0", "--run-id", "told", "--max-restarts", "1", *PATIENT)
    workers = await cluster.hub.group(2)
    said = await scrape(agent)
    assert dict(*said.all("rdzv_agent_info")).items() >= {"run_id": "told", "node_id": "a"}.items()
    assert said("rdzv_agent_workers", state="running") == said("rdzv_agent_world_size") == 2
    assert said("rdzv_agent_member") == said("rdzv_agent_round") == said("rdzv_agent_spawn_seconds_count") == 1
    assert said("rdzv_agent_last_output_timestamp_seconds") == 0

    await workers[0].tell("say words")
    await agent.line("words")
    assert abs((await scrape(agent))("rdzv_agent_last_output_timestamp_seconds") - time.time()) < 60
    workers[1].kill()
    workers = await cluster.hub.group(2)
    said = await scrape(agent)
    assert [said(f"rdzv_agent_{name}_total") for name in ("rounds_started", "worker_failures")] == [2, 1]
    assert (said("rdzv_agent_round"), said("rdzv_agent_restarts")) == (2, 1)
    assert said("rdzv_agent_server_lost_seconds_total") == 0

    await cluster.lose_server()
    await agent.line(LOST)
    lost = (await scrape(agent))("rdzv_agent_server_lost_seconds_total")
    assert (await scrape(agent))("rdzv_agent_server_lost_seconds_total") > lost > 0
    checked = promtool("check", "metrics", text=said.text)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    assert all_run(workers)


async def cut(reader: asyncio.StreamReader) -> None:
    """Return when the connection is cut without an answer."""
    with suppress(ConnectionResetError):
        assert await reader.read() == b""


async def test_clients_of_an_agents_metrics_do_not_disturb_workers(cluster: Cluster) -> None:
    agent = await cluster.node("a", "--metrics-port", "0")
    workers = await cluster.hub.group(2)
    url = await url_of(agent)
    port = int(url.rpartition(":")[2])
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
    idle.append(await asyncio.open_connection("127.0.0.1", port))
    await cut(idle[-1][0])
    for garbage, (reader, writer) in zip((b"\0\r\n\r\n", b"GET /" + b"x" * 20_000, b"{}\r\n\r\n"), idle, strict=False):
        writer.write(garbage)
        await cut(reader)
    with pytest.raises(HTTPError) as refusal:
        await get(f"{url}/nothing")
    assert refusal.value.code == 404
    assert Scrape(await get(f"{url}/metrics"))("rdzv_agent_workers", state="running") == 2
    await cluster.finish(workers)
    for _, writer in idle:
        writer.close()


async def test_a_port_in_use_is_reported_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        agent = await start_agent("--standalone", "--metrics-port", str(port))
        await refuses(agent, metrics.no_port("127.0.0.1", port, "Address already in use"))


def test_an_agent_without_metrics_loads_nothing_for_them() -> None:
    needless = {"prometheus_client", "node_agent.features.metrics.feature", "rdzv_protocol.exposition"}
    program = f"import sys, node_agent.agent; print(sorted({needless} & {{*sys.modules}}))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "[]\n"
