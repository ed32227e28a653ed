"""Many runs at one server and at four, which share them through etcd in sixteen shards: CPU of the busiest server.

All servers share one core, and the nodes and etcd share another: rounds a second cannot grow here, and show only what
sharing costs. Only the busiest server's part of the work scales.
"""

import asyncio
import json
import os
import shutil
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks import machine
from benchmarks.launchers import Plan
from benchmarks.results import Row
from benchmarks.stage import Broken, Program, Stage, free_port
from benchmarks.swarm import NODES_CPU, SERVER_CPU, Swarm
from rdzv_server.cluster.placement import shard_of

SERVERS = (1, 4)
SHARDS = 16
RUNS, NODES = 16, 125
RESTARTS = 3
"""Restarts of each run: as many as the nodes' budget allows."""
REPEAT = 3
SETTLE_S, CAP_S = 90.0, 120.0
LEASE_S = 10
"""Leader's lease: long, since the servers share one core, and nodes here never retry."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Figures of all restarts of all runs. `cpu_us`: µs of each server's CPU per restarted node of the cluster."""

    nodes_a_s: float
    cpu_us: tuple[float, ...]


def measure(plan: Plan) -> list[Row]:
    """Measure with one server and with four, in turns."""
    if not shutil.which("etcd"):
        trouble = "etcd is not on PATH"
        return [Row(measurement="shards", subject="", unit="", samples=(), trouble=trouble, is_absent=True)]
    samples: dict[int, list[Sample]] = {servers: [] for servers in SERVERS}
    for _ in range(min(plan.repeat, REPEAT)):
        for servers, taken in samples.items():
            taken.append(_run(servers))
    return [row for servers, taken in samples.items() for row in _rows(servers, taken)]


def _rows(servers: int, taken: list[Sample]) -> Iterator[Row]:
    subject = f"{servers} server{'s' * (servers > 1)}"
    figures = {
        ("shards: restarted nodes", "1/s"): [sample.nodes_a_s for sample in taken],
        ("shards: servers' CPU in sum, a node", "µs"): [sum(sample.cpu_us) for sample in taken],
        ("shards: busiest server's CPU, a node", "µs"): [max(sample.cpu_us) for sample in taken],
    }
    for (measurement, unit), values in figures.items():
        yield Row(measurement=measurement, subject=subject, unit=unit, samples=values)


def _run(servers: int) -> Sample:
    with Stage() as stage:
        with machine.on_cpu(NODES_CPU):
            store = _start_etcd(stage)
        with machine.on_cpu(SERVER_CPU):
            programs = dict(_start_server(stage, store) for _ in range(servers))
        ports = _share(programs)
        with machine.on_cpu(NODES_CPU):
            return asyncio.run(
                _measure([Swarm(NODES, port, run_id) for run_id, port in ports.items()], list(programs.values()))
            )


def _start_etcd(stage: Stage) -> str:
    """Start etcd with one member, and return the value of `--store` for it."""
    port, peer = free_port(), f"http://127.0.0.1:{free_port()}"
    here = f"http://127.0.0.1:{port}"
    stage.start(
        [
            *("etcd", "--data-dir", os.path.join(stage.folder, "etcd"), "--listen-client-urls", here),
            *("--advertise-client-urls", here, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}"),
        ]
    )
    stage.wait_for_port(port)
    return f"etcd://127.0.0.1:{port}/benchmark"


def _start_server(stage: Stage, store: str) -> tuple[int, Program]:
    port = free_port()
    flags = (
        "--host", "127.0.0.1", "--port", str(port), "--store", store, "--shards", str(SHARDS), "--rebalance-after", "1",
    )  # fmt: skip
    program = stage.start([sys.executable, "-m", "rdzv_server", *flags, "--leader-lease", str(LEASE_S)])
    stage.wait_for_port(port)
    return port, program


def _share(programs: dict[int, Program]) -> dict[str, int]:
    """Return runs with their servers' ports, once the servers share the shards evenly. Raises `Broken`.

    Each server has the same number of these runs.
    """
    deadline_s = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline_s:
        leaders = _leaders(min(programs))
        loads = Counter(leaders.values())
        if "" not in loads and sorted(loads.values()) == [SHARDS // len(programs)] * len(programs):
            return {_run_of(shard): int(leader.rpartition(":")[2]) for shard, leader in leaders.items()}
        time.sleep(0.1)
    raise Broken(f"{len(programs)} servers do not share {SHARDS} shards evenly after {SETTLE_S:g} s")


def _leaders(port: int) -> dict[int, str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/status", timeout=10) as answer:
        shards = json.load(answer)["server"]["shards"]
    return {shard["shard"]: shard["leader"] or "" for shard in shards}


def _run_of(shard: int) -> str:
    """Return the id of a run that belongs to this shard."""
    return next(name for name in map("run-{}".format, range(10_000)) if shard_of(name, SHARDS) == shard)


async def _measure(runs: list[Swarm], servers: list[Program]) -> Sample:
    restarted = RESTARTS * sum(map(len, runs))
    async with asyncio.timeout(CAP_S):
        await asyncio.gather(*(run.join() for run in runs))
        before_s, began_s = [machine.cpu_s(server.pid) for server in servers], time.monotonic()
        await asyncio.gather(*map(_restart, runs))
        took_s = time.monotonic() - began_s
    cpu_s = [machine.cpu_s(server.pid) - at_s for server, at_s in zip(servers, before_s, strict=True)]
    for run in runs:
        run.close()
    return Sample(restarted / took_s, tuple(1e6 * each / restarted for each in cpu_s))


async def _restart(run: Swarm) -> None:
    """Restart the run several times."""
    for _ in range(RESTARTS):
        await run.restart()
