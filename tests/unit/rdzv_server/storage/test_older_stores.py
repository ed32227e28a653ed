"""Stores of an older server, a file and etcd: the same format is read, and another one is left as it is.

`state_before_events.db` and `etcd_before_events.json` were written by commit 8302c0d, the last one without events, and
`state_format_3.db` and `etcd_format_3.json` by commit 945b70e, the last one of format 3. Of their two runs, `train` was
in its second round, on nodes a and b, after a failure that was charged, and `failed` had ended with its second failure.
Their servers had been told to end. In the files of etcd's keys the values are in base64.
"""

import asyncio
import json
import os
import shutil
from base64 import b64decode
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from rdzv_protocol import paths

from tests.support.etcd import Etcd
from tests.support.programs import Program, Server, ended_programs

HERE = Path(__file__).parent
FOR_EVER = ("--retention", "1000000000")
"""The ended run ended when this file was made."""
READY = r"state in .*\.db|leading: 2 runs"
"""Pattern of a server's line once it knows the runs of a file, or of etcd."""
BEFORE = [
    "run_created", "node_joined", "node_joined", "round_started", "workers_failed", "round_opened", "round_started",
]  # fmt: skip


async def events(server: Server, run_id: str) -> list[dict]:
    return json.loads(await server.get(paths.events_of(run_id)))["events"]


@pytest.fixture
async def program_ends() -> AsyncIterator[None]:
    async with ended_programs():
        yield


async def put(etcd: Etcd, name: str, cluster: str) -> dict[str, str]:
    """The keys of an older server's cluster, now in this etcd."""
    from rdzv_server.storage.etcd_client import EtcdClient, put

    kept = json.loads((HERE / name).read_text())
    client = EtcdClient(etcd.addresses)
    keys = {f"/rdzv-server/{cluster}/{key}": value for key, value in kept.items()}
    await client.transact([], [put(key.encode(), b64decode(value)) for key, value in keys.items()])
    await client.close()
    return keys


def held(etcd: Etcd, cluster: str) -> dict[str, str]:
    found = json.loads(etcd.ctl("get", "--prefix", f"/rdzv-server/{cluster}/", "-w", "json"))["kvs"]
    return {b64decode(each["key"]).decode(): each["value"] for each in found}


async def is_read_and_goes_on(*store: str) -> None:
    """Nothing is lost of what it holds, and what happens from now on is told with numbers that follow."""
    server = await Server.listen(*store, *FOR_EVER)
    await server.line(READY)
    runs = {run["run_id"]: run for run in (await server.status())["runs"]}
    train, failed = runs["train"], runs["failed"]
    assert (train["phase"], train["round"], train["restart_count"]) == ("running", 2, 1)
    assert sorted(node["node_id"] for node in train["nodes"]) == ["a", "b"]
    assert train["history"][-1]["cause"] == "worker_failure"
    assert (failed["phase"], failed["end_failure"]["exit_code"]) == ("failed", 4)
    before = await events(server, "train")
    assert [event["kind"] for event in before] == BEFORE, "they follow from the records"
    body = json.dumps({"run_id": "train", "reason": "an old run"}).encode()
    await asyncio.to_thread(lambda: urlopen(Request(f"http://{server.endpoint}{paths.STOP}", body)).close())
    told = await events(server, "train")
    assert [event["number"] for event in told] == list(range(1, len(told) + 1))
    assert told[: len(before)] == before
    assert [event["kind"] for event in told[len(before) :]] == ["run_stopped", "run_failed"]
    await server.kill()
    again = await Server.listen(*store, *FOR_EVER)
    await again.line(READY)
    assert await events(again, "train") == told


async def is_refused(store: str, code: int) -> None:
    """Check that a server refuses the store with this exit code, and says what happened, why, and what to do."""
    server = await Program.start(*Server.command("--store", store))
    assert await server.exit_code() == code
    line = server.err[-1]
    assert "was written by an older version of rdzv-server (format 3, this one: format 4), and is left as it is" in line
    assert "start that version, or " in line and "their workers restart" in line


async def test_a_file_from_before_there_were_events_goes_on_with_them(tmp_path: Path, program_ends: None) -> None:
    path = tmp_path / "state.db"
    shutil.copy(HERE / "state_before_events.db", path)
    await is_read_and_goes_on("--store", f"sqlite:{path}")


async def test_a_cluster_from_before_there_were_events_goes_on_with_them(etcd: Etcd, program_ends: None) -> None:
    await put(etcd, "etcd_before_events.json", "old")
    await is_read_and_goes_on("--store", f"{etcd.store}/old", "--leader-lease", "2")


async def test_a_file_of_an_older_format_is_refused_and_left_as_it_is(tmp_path: Path, program_ends: None) -> None:
    path, kept = tmp_path / "state.db", HERE / "state_format_3.db"
    shutil.copy(kept, path)
    await is_refused(f"sqlite:{path}", 2)
    assert path.read_bytes() == kept.read_bytes() and os.listdir(tmp_path) == [path.name]


async def test_a_cluster_of_an_older_format_is_refused_and_left_as_it_is(etcd: Etcd, program_ends: None) -> None:
    keys = await put(etcd, "etcd_format_3.json", "older")
    await is_refused(f"{etcd.store}/older", 1)
    assert held(etcd, "older") == keys
