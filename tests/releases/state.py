"""The state file of a server that is killed in the middle of a run, after a restart."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.releases.wire import ENVIRONMENT, FLAGS, NODES
from tests.support.cluster import Cluster
from tests.support.worker_hub import WorkerHub

KEPT = ("run_id", "attempt", "phase", "round", "restart_count", "max_restarts", "restarts")


async def record(folder: Path, file: Path) -> dict[str, Any]:
    """Write the state file, and return what the server knew of its run."""
    async with WorkerHub(folder / "hub") as hub, Cluster(hub, "--store", f"sqlite:{folder}/state.db") as cluster:
        await cluster.serve()
        cluster.nproc = 1
        for node in NODES:
            await cluster.node(node, *FLAGS, env=ENVIRONMENT)
        (await hub.group(2))[0].order_exit(3)
        await hub.group(2)
        known = summary(await cluster.server.run())
        await cluster.lose_server()
    copy(folder / "state.db", file)
    return known


def copy(state: Path, file: Path) -> None:
    """Copy a state file, with what is still in its write-ahead log."""
    file.unlink(missing_ok=True)
    with closing(sqlite3.connect(state)) as database:
        database.execute("VACUUM INTO ?", [str(file)])


def summary(run: dict[str, Any]) -> dict[str, Any]:
    """Return what a server must still know of a run after its restart, from the run's status."""
    nodes = sorted([node["node_id"], node["group_rank"]] for node in run["nodes"])
    return json.loads(json.dumps({**{name: run[name] for name in KEPT}, "nodes": nodes}))
