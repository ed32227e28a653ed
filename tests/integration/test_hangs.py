"""Workers that hang, with real processes: how that is noticed, who is blamed, and what follows.

Agents have a server that is never silent and limits of a few seconds, which the healthy workers of the same test keep.
"""

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.programs import Program
from tests.support.worker_hub import Worker, restart_count

LIMITS = ("--progress-timeout", "start=60,step=3")
STOPS_SOON = ("--shutdown-timeout", "2")


async def steps(workers: list[Worker], step: int) -> None:
    for worker in workers:
        await worker.tell(f"progress {step}")


async def events(cluster: Cluster, kind: str) -> list[dict[str, object]]:
    run = await cluster.server.run()
    page = json.loads(await cluster.server.get(f"/v1/runs/{run['run_id']}/events"))
    return [event for event in page["events"] if event["kind"] == kind]


async def test_a_stopped_worker_is_found_and_the_run_restarts(cluster: Cluster) -> None:
    first = await cluster.nodes("ab", "--nnodes", "2", "--max-restarts", "1", *LIMITS, *STOPS_SOON)
    await steps(first, 7)
    os.kill(first[3].pid, signal.SIGSTOP)
    for worker in first[:3]:  # in lockstep they would wait; here they are a step ahead
        await worker.tell("progress 8")
    second = await cluster.hub.group(4)
    assert restart_count(second) == 1
    await cluster.finish(second)
    run = await cluster.server.run()
    assert run["history"][0]["cause"] == "hang" and run["history"][0]["charged"]
    assert "worker rank 3 on node " in run["history"][0]["reason"]
    assert re.search(r"hang: no progress for \d s at step 7 \(limit 3 s\)", run["history"][0]["reason"])
    assert re.search(r"; ranks 0, 1 and 2 .*; rank 3 .*stopped", run["history"][0]["reason"]), "what all of them did"


async def test_the_status_shows_steps_while_the_run_goes_on(cluster: Cluster) -> None:
    workers = await cluster.nodes("a", "--nnodes", "1", "--lease", "1")
    await steps(workers, 41)
    await steps(workers, 42)
    await workers[0].tell("progress 42 checkpoint")
    while (run := await cluster.server.run())["progress"] is None or run["progress"]["checkpoint_step"] is None:
        pass
    assert (run["progress"]["highest_step"], run["progress"]["checkpoint_step"]) == (42, 42)
    assert run["nodes"][0]["progress"]["lowest_step"] == 42
    await cluster.finish(workers)


@pytest.mark.parametrize("policy", ["fail", "report"])
async def test_a_fault_in_the_log_ends_the_run_or_is_told(cluster: Cluster, policy: str) -> None:
    rule = ("--log-rule", r"most=10,points=2: loss=(\S+)", "--log-rule", "stop: all done")
    workers = await cluster.nodes("a", "--nnodes", "1", "--max-restarts", "3", *rule, "--on-hang", policy)
    for line in ("loss=nan", "loss=2.0", "loss=NaN", "loss=NaN"):
        await workers[0].tell(f"say {line}")
    if policy == "fail":
        agent = cluster.agents.pop("a")
        assert await agent.exit_code() == 1
        await agent.line("rank 0 on node a failed: hang: it wrote NaN, 2 times in a row, not from -inf to 10")
    else:
        await cluster.agents["a"].line("may hang: it wrote NaN")
        while not (found := await events(cluster, "hang_found")):
            pass
        assert "--log-rule" in str(found[0]["reason"])
        await cluster.finish(workers)
        assert (await cluster.server.run())["phase"] == "succeeded"


async def test_silence_of_every_node_is_a_hang_and_that_of_one_is_none(cluster: Cluster) -> None:
    workers = await cluster.nodes("ab", "--nnodes", "2", "--max-restarts", "1", "--silence-timeout", "3")
    await workers[0].tell("say step 1")
    second = await cluster.hub.group(4)
    assert (await cluster.restarts()) == {"hang": 1} and restart_count(second) == 1
    await cluster.finish(second)


LOADER = """
import os, time
from node_agent import progress
def batches():
    for number in range(9):
        if number == 5 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            time.sleep(600)
        yield number
for number in batches():
    time.sleep(0.05)
    progress(step=number)
"""
COLLECTIVE = """
import os
import torch, torch.distributed as dist
from node_agent import progress
dist.init_process_group("gloo")
for step in range(8):
    if not (step == 5 and dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"):
        dist.all_reduce(torch.ones(1))
    else:
        import time
        time.sleep(600)
    progress(step=step)
print("rank", dist.get_rank(), "is done")
"""


@pytest.mark.parametrize(
    ("script", "flags"),
    [
        pytest.param(LOADER, ("--standalone", "--max-hang-restarts", "1"), id="a data loader that waits"),
        pytest.param(
            COLLECTIVE, ("--standalone", "--nproc", "2", "--max-restarts", "1"), id="a collective that one skips",
            marks=pytest.mark.torch,
        ),
    ],
)  # fmt: skip
async def test_a_script_that_hangs_once_is_done_in_the_end(tmp_path: Path, script: str, flags: tuple[str, ...]) -> None:
    path = tmp_path / "train.py"
    path.write_text(script)
    limits = ("--progress-timeout", "start=100,step=3", "--shutdown-timeout", "1")
    agent = await Program.start(sys.executable, "-m", "node_agent", *flags, *limits, str(path))
    try:
        await agent.line(r"hang: no progress for \d+ s at step 4 \(limit 3 s\)")
        assert await agent.exit_code() == 0
    finally:
        await agent.end()
