"""`--endpoint auto` with real processes: agents meet by only their scheduler's variables."""

import pytest

from node_agent import words
from tests.support.cluster import Cluster
from tests.support.message_search import pattern
from tests.support.worker_hub import of_node


def slurm(node: int) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "7", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_NODEID": str(node), "SLURMD_NODENAME": f"gpu{node}",
        "SLURM_PROCID": str(node), "SLURM_LOCALID": "0", "SLURM_NTASKS": "2", "PMI_RANK": str(node),
    }  # fmt: skip


def mpi(node: int) -> dict[str, str]:
    return {"PMI_RANK": str(node), "PMI_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "PMI_JOBID": "4712"}


@pytest.mark.parametrize("scheduler", [slurm, mpi])
async def test_nodes_meet_by_their_schedulers_variables(cluster: Cluster, scheduler) -> None:
    for node in (1, 0):  # the host of the server comes last
        await cluster.agent(str(node), "--endpoint", "auto", "--nproc", "2", env=scheduler(node))
    workers = await cluster.hub.group(4)
    for node in (0, 1):
        place = pattern(words.schedulers.node, rank=f"{node}", least=2, most=2)
        found = pattern(words.schedulers.found, flag="--endpoint auto", parts=[""])
        await cluster.agents[str(node)].line(found + place)
        for worker in of_node(workers, node):
            env = worker.env
            assert (env["RANK"], env["WORLD_SIZE"]) == (str(2 * node + int(env["LOCAL_RANK"])), "4")
            assert "PMI_RANK" not in env
            assert env.get("SLURM_PROCID", env["RANK"]) == env["RANK"]
            assert env.get("SLURM_NTASKS", "4") == "4"
    await cluster.finish(workers)
