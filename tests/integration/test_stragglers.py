"""A node that is slower than the others, with real processes in lockstep: how it is named, and replaced."""

import re
from pathlib import Path

from tests.support.cluster import ALL_COME, Cluster, straggling
from tests.support.programs import STRAGGLING_WORKER
from tests.support.rdzvctl import rdzvctl

PATIENCE_S = 100.0
"""Looks are as far apart as a lease is long."""
NAMED = r"node b is slow: a step's own work takes 0\.\d+ s, \d+\.\d times as long as usual"
FLAGS = ("--nnodes", "3", "--lease", "2", "--disconnect-grace", "30", "--replace-stragglers", "--shutdown-timeout", "2")


async def test_a_slow_node_in_lockstep_is_named_and_one_that_stands_by_takes_its_place(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.script, cluster.nproc = STRAGGLING_WORKER, 1
    for name in "abc":
        await cluster.node(name, *FLAGS, *ALL_COME, env=straggling(tmp_path, is_slow=name == "b"))
    server = cluster.server
    await server.line(NAMED, PATIENCE_S)
    shown = (await rdzvctl("why", endpoint=cluster.endpoint)).lines
    assert re.search(NAMED.replace("node b", "Node b"), " ".join(shown))
    await cluster.node("d", *FLAGS, *ALL_COME, env=straggling(tmp_path))
    await server.line(f"opened: {NAMED}.*; a node that stands by takes its place", PATIENCE_S)
    await cluster.agents["d"].line("round 2: ")
    await cluster.agents["b"].line("standing by: node b is excluded: node b is slow.*; uncordoned in 3")
    assert await cluster.restarts() == {"node_drained": 1}
    status = await server.status()
    assert [cordon["node_id"] for cordon in status["server"]["cordons"]] == ["b"]
    assert status["runs"][0]["restart_count"] == 0, "it is free"
    (tmp_path / "enough").touch()
    assert [await agent.exit_code() for agent in cluster.agents.values()] == [0] * 4
