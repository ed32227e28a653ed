"""A fault of the server: its core raises an exception in one run. That run is set apart, and the others continue.

The fault comes from outside, through `PYTHONPATH`: the server's own files are unchanged.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from rdzv_server.words import service as service_words
from rdzv_server.words import set_apart as words
from tests.integration.replicas import Replicas
from tests.support import outages
from tests.support.cluster import Cluster
from tests.support.message_search import beginning
from tests.support.poison import poison
from tests.support.programs import Server
from tests.support.rdzvctl import rdzvctl
from tests.support.worker_hub import Worker, WorkerHub, all_run, of_node, restart_count

POISON, OTHER = "poison", "other"
POISONED = poison(POISON)
PATIENT = (*outages.PATIENT, "--max-restarts", "9")
ERROR, _ = words.own_error("", "sitecustomize.py").split(", line")
UNREADABLE = f"{beginning(service_words.run_cannot_be_shown)}{ERROR}"
APART = re.escape(words.set_apart(POISON, ERROR).partition(".py")[0])


@pytest.fixture(params=["durable", "unserved"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """A cluster with one server on a file, or with none yet on etcd."""
    cluster = request.getfixturevalue(request.param)
    assert isinstance(cluster, Cluster)
    return cluster


async def serve(cluster: Cluster, *environments: Mapping[str, str]) -> list[Mapping[str, str]]:
    """Start a server with the first environment, and on etcd one standby with each of the others.

    Return the environments of the servers that have yet to lead.
    """
    if isinstance(cluster, Replicas):
        await (await cluster.replicate(env=environments[0])).leads()
        for env in environments[1:]:
            await (await cluster.replicate(env=env)).line("following")
    else:
        await follow(cluster, [*environments])
    return [*environments[1:]]


async def follow(cluster: Cluster, environments: list[Mapping[str, str]]) -> Server:
    """Kill the server that leads, and return the next one."""
    await cluster.lose_server()
    env = environments.pop(0)
    if not isinstance(cluster, Replicas):
        return await cluster.serve(port=cluster.server.port, env=env)
    await cluster.regain_server()
    return await cluster.leader()


async def begin(cluster: Cluster, run_id: str, names: str) -> list[Worker]:
    return await cluster.nodes(names, "--run-id", run_id, "--nnodes", str(len(names)), *PATIENT, nproc=1)


async def run_of(server: Server, run_id: str) -> dict[str, Any]:
    (run,) = [run for run in (await server.status())["runs"] if run["run_id"] == run_id]
    return dict(run)


async def fail_and_restart(cluster: Cluster, workers: Sequence[Worker]) -> list[Worker]:
    """Kill a worker of the run, and return the workers of the next round."""
    before = restart_count(workers)
    workers[-1].kill()
    again = await cluster.hub.group(len(workers))
    assert restart_count(again) == before + 1
    return again


async def test_a_run_whose_records_raise_an_exception_is_set_apart_and_can_be_forgotten(
    cluster: Cluster,
) -> None:
    later = await serve(cluster, {}, POISONED, *([] if isinstance(cluster, Replicas) else [POISONED]))
    bad = await fail_and_restart(cluster, await begin(cluster, POISON, "ab"))
    other = await begin(cluster, OTHER, "c")
    while later:  # the record does not end any of them
        server = await follow(cluster, later)
        await server.line(APART)
        other = await fail_and_restart(cluster, other)
        assert all_run(bad)
    apart = await run_of(server, POISON)
    assert apart["phase"] == "unhealthy" and re.search(APART, apart["reason"])
    assert (await run_of(server, OTHER))["phase"] == "running"
    assert "poison" in await server.get("/healthz")
    assert re.search(APART, await server.get("/runs/poison?plain=0"))
    assert 'rdzv_runs{phase="unhealthy"} 1.0' in await server.get("/metrics")
    why = await rdzvctl("why", POISON, endpoint=server.endpoint)
    assert re.search(APART, why.lines[0]) and any("rdzvctl forget poison" in line for line in why.lines)
    if isinstance(cluster, Replicas):
        cluster.has_forgotten = True
    assert (await rdzvctl("forget", POISON, "--yes", endpoint=server.endpoint)).lines
    for worker in bad:
        await worker.gone()
    bad = await cluster.hub.group(2)
    again = await run_of(server, POISON)
    assert again["phase"] == "running" and again["attempt"] == 2
    assert await server.get("/healthz") == "ok\n"
    await cluster.finish([*bad, *other])


async def test_a_failure_that_crashes_one_server_is_handled_by_a_fixed_one(durable: Cluster) -> None:
    later = await serve(durable, POISONED, {})
    bad, other = await begin(durable, POISON, "ab"), await begin(durable, OTHER, "c")
    bad[1].kill()
    await durable.server.line(APART)
    other = await fail_and_restart(durable, other)
    assert all_run(of_node(bad, 0)), "nothing is decided"
    assert durable.server.is_running
    await follow(durable, later)
    bad = await durable.hub.group(2)
    assert restart_count(bad) == 1
    await durable.finish([*bad, *other])


async def test_an_unreadable_run_is_shown_as_unreadable_and_continues(hub: WorkerHub) -> None:
    async with Cluster(hub) as cluster:
        server = await cluster.serve(env=poison(unreadable="odd"))
        odd, other = await begin(cluster, "odd", "ab"), await begin(cluster, OTHER, "c")
        shown = await run_of(server, "odd")
        assert shown["phase"] == "running" and shown["reason"].startswith(UNREADABLE)
        assert (await run_of(server, OTHER))["reason"] == "round 1 runs on 1 node"
        metrics = await server.get("/metrics")
        assert f'rdzv_run_world_size{{run_id="{OTHER}"}} 1.0' in metrics and 'run_id="odd"' not in metrics
        assert UNREADABLE in await server.get("/runs/odd?plain=0")
        why = await rdzvctl("why", "odd", endpoint=server.endpoint)
        assert UNREADABLE in why.lines[0]
        await cluster.finish([*await fail_and_restart(cluster, odd), *other])
        assert sum("no phase" in line and "ERROR" in line for line in server.err) == 1, "it is logged once"
