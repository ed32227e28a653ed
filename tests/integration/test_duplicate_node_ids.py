"""Machines and agents that must not run at the same time, and the messages about them."""

import re
import signal

from node_agent.features import words
from rdzv_server.words import duplicate_node_ids
from tests.support.cluster import PATIENT, Cluster
from tests.support.message_search import pattern
from tests.support.rdzvctl import rdzvctl

TWO = pattern(duplicate_node_ids.shared, node_id="gpu", machines=2)


async def test_people_of_two_machines_with_one_node_id_read_the_reason(cluster: Cluster) -> None:
    for name, address in (("a", "127.0.0.1"), ("b", "127.0.0.2")):
        flags = (
            "--endpoint",
            cluster.endpoint,
            "--node-id",
            "gpu",
            "--nnodes",
            "2",
            "--nproc",
            "1",
            "--run-id",
            "twins",
        )
        await cluster.agent(name, *flags, "--local-addr", address, *PATIENT)
    workers = await cluster.hub.group(2)
    for agent in cluster.agents.values():
        await agent.line(TWO)
    await cluster.server.line(f"WARNING.*{TWO}")
    told = await rdzvctl("events", "twins", endpoint=cluster.endpoint)
    assert sum(bool(re.search(TWO, line)) for line in told.lines) == 1
    await cluster.finish(workers)


async def test_a_new_agent_warns_of_workers_that_its_predecessor_left_running(cluster: Cluster) -> None:
    flags = ("--run-id", "left-running", "--nnodes", "1", "--lease", "1", "--last-call-timeout", "0")
    (old,) = await cluster.nodes("a", *flags, nproc=1)
    before = cluster.agents.pop("a")
    before.signal(signal.SIGSTOP)
    (new,) = await cluster.nodes("a", *flags, nproc=1)
    await cluster.agents["a"].line(pattern(words.earlier_workers_run, pids=[old.pid]))
    await before.kill()
    await old.gone()
    await cluster.finish([new])
