"""A file of an older server: state_before_events.db was written by commit 8302c0d, the last one without events.

Of its two runs, `train` was in its second round, on nodes a and b, after a failure that was charged, and `failed` had
ended with its second failure. Its server had been told to end.
"""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from rdzv_protocol import paths

from tests.support.programs import Server, ended_programs

OLD = Path(__file__).with_name("state_before_events.db")
FOR_EVER = ("--retention", "1000000000")
"""The ended run ended when this file was made."""
BEFORE = [
    "run_created", "node_joined", "node_joined", "round_started", "workers_failed", "round_opened", "round_started",
]  # fmt: skip


async def events(server: Server, run_id: str) -> list[dict]:
    return json.loads(await server.get(paths.events_of(run_id)))["events"]


@pytest.fixture
async def program_ends() -> AsyncIterator[None]:
    async with ended_programs():
        yield


async def test_a_file_from_before_there_were_events_goes_on_with_them(tmp_path: Path, program_ends: None) -> None:
    path = tmp_path / "state.db"
    shutil.copy(OLD, path)
    server = await Server.listen("--store", f"sqlite:{path}", *FOR_EVER)
    runs = {run["run_id"]: run for run in (await server.status())["runs"]}
    train, failed = runs["train"], runs["failed"]
    assert (train["phase"], train["round"], train["restart_count"]) == ("running", 2, 1)
    assert sorted(node["node_id"] for node in train["nodes"]) == ["a", "b"]
    assert train["history"][-1]["cause"] == "worker_failure"
    assert (failed["phase"], failed["end_failure"]["exit_code"]) == ("failed", 4)
    before = await events(server, "train")
    assert [event["kind"] for event in before] == BEFORE, "they follow from the records"
    body = json.dumps({"run_id": "train", "reason": "an old run"}).encode()
    await asyncio.to_thread(urlopen, Request(f"http://{server.endpoint}{paths.STOP}", body))
    told = await events(server, "train")
    assert [event["number"] for event in told] == list(range(1, len(told) + 1))
    assert told[: len(before)] == before
    assert [event["kind"] for event in told[len(before) :]] == ["run_stopped", "run_failed"]
    await server.kill()
    again = await Server.listen("--store", f"sqlite:{path}", *FOR_EVER)
    assert await events(again, "train") == told
