"""A node that is slower than the others, with real processes in lockstep: how it is named, and replaced."""

import re
from pathlib import Path

import pytest

from rdzv_server.core.policies import words
from rdzv_server.words import completion, notices
from tests.support.cluster import ALL_COME, Cluster, straggling
from tests.support.message_search import pattern
from tests.support.programs import STRAGGLING_WORKER
from tests.support.rdzvctl import rdzvctl

pytestmark = pytest.mark.timeout(300)

PATIENCE_S = 100.0
"""Seconds to wait: looks are one lease apart."""
NAMED = pattern(words.slow, node_id="b", is_own_work=True)
FLAGS = ("--nnodes", "3", "--lease", "2", "--disconnect-grace", "30", "--replace-stragglers", "--shutdown-timeout", "2")


async def all_start(cluster: Cluster, folder: Path, *flags: str) -> None:
    """Start three nodes, of which b is slow."""
    cluster.script, cluster.nproc = STRAGGLING_WORKER, 1
    for name in "abc":
        await cluster.node(name, *FLAGS, *flags, *ALL_COME, env=straggling(folder, is_slow=name == "b"))
    await cluster.server.line("round 1: runs on 3 nodes")


async def all_end(cluster: Cluster, folder: Path) -> None:
    (folder / "enough").touch()
    assert [await agent.exit_code() for agent in cluster.agents.values()] == [0] * 4


async def test_a_slow_node_in_lockstep_is_named_and_one_that_stands_by_takes_its_place(
    cluster: Cluster, tmp_path: Path
) -> None:
    await all_start(cluster, tmp_path)
    server = cluster.server
    await server.line(NAMED, PATIENCE_S)
    shown = (await rdzvctl("why", endpoint=cluster.endpoint)).lines
    assert re.search(NAMED, " ".join(shown), re.IGNORECASE)
    await cluster.node("d", *FLAGS, *ALL_COME, env=straggling(tmp_path))
    await server.line(f"opened: {NAMED}.*{re.escape(notices.replaced(''))}", PATIENCE_S)
    await cluster.agents["d"].line("round 2: ")
    kept_out = completion.standby_kept_out("b", "", excluded=True)
    await cluster.agents["b"].line(f"{kept_out}: {NAMED}.*; uncordoned in (1h|59m[0-9]+s)")
    assert await cluster.restarts() == {"node_drained": 1}
    status = await server.status()
    assert [cordon["node_id"] for cordon in status["server"]["cordons"]] == ["b"]
    assert status["runs"][0]["restart_count"] == 0, "it is free"
    await all_end(cluster, tmp_path)


async def test_the_workers_of_all_nodes_save_before_a_slow_one_is_replaced(cluster: Cluster, tmp_path: Path) -> None:
    notice = ("--notice-timeout", "80")
    await all_start(cluster, tmp_path, *notice)
    await cluster.node("d", *FLAGS, *notice, *ALL_COME, env=straggling(tmp_path))
    await cluster.agents["d"].line("round 2: ", PATIENCE_S)
    for rank in range(3):
        assert re.match(f"node_drained b: {NAMED}", (tmp_path / f"saved_{rank}").read_text())
    await cluster.server.line(f"{NAMED}.*{re.escape(notices.given(notices.replaced(''), 80))}")
    await cluster.server.line(pattern(notices.acknowledged, workers=3))
    assert await cluster.restarts() == {"node_drained": 1}
    await all_end(cluster, tmp_path)
