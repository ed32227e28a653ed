"""`--event-log-handler console` writes torchrun's events: the same order, keys and values, except for `DIFFERENCES`."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.launchers import LONG_S, NODE_AGENT, TORCHRUN, start

pytestmark = pytest.mark.torch

SCRIPT = """
import os, sys, time

def runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

first = os.environ["TORCHELASTIC_RUN_ID"] + "." + os.environ["TORCHELASTIC_RESTART_COUNT"]
if os.environ["RANK"] == "0":
    os.symlink(str(os.getpid()), first)
    sys.exit(0)
while not os.path.islink(first) or runs(os.readlink(first)):
    time.sleep(0.01)
sys.exit(int(sys.argv[1]))
"""
"""Rank 1 ends after rank 0. torchrun reports a rank 0 that it must stop sometimes as FAILED, sometimes as TERMINATED.
"""
FLAGS = ("--standalone", "--nproc-per-node=2", "--role=trainer", "--event-log-handler=console")
AT_A_RENDEZVOUS = ("RENDEZVOUS", "ASSIGN_WORKER_RANKS")
EPOCH_MS = 1_700_000_000_000

Event = dict[str, Any]
"""Flat: `metadata/state`, and `details/worker_pid` from the JSON in `metadata/metadata`."""


@dataclass(frozen=True)
class Difference:
    """Why a value differs from torchrun's, and what it is here, given the event."""

    reason: str
    holds: Callable[[Event], bool]


DIFFERENCES: Mapping[str, Difference] = {
    "timestamp": Difference(
        "torchrun: always 0. Here milliseconds since 1970, which it is meant to be", lambda e: e["timestamp"] > EPOCH_MS
    ),
    "metadata/run_id": Difference("made up by --standalone", lambda event: len(event["metadata/run_id"]) == 16),
    "metadata/hostname": Difference("the node's name, --node-id", lambda event: event["metadata/hostname"] != ""),
    "metadata/total_run_time": Difference(
        "whole seconds; torchrun counts when its run has ended, here at any time",
        lambda event: event["metadata/total_run_time"] >= 0,
    ),
    "metadata/duration_ms": Difference("measured", lambda event: event["metadata/duration_ms"] >= 0),
    "metadata/group_rank": Difference(
        "torchrun knows it when the rendezvous is over and recorded; here the record comes after the answer",
        lambda event: event["metadata/state"] in AT_A_RENDEZVOUS and event["metadata/group_rank"] == 0,
    ),
    "details/group_world_size": Difference(
        "as group_rank",
        lambda event: event["metadata/state"] in AT_A_RENDEZVOUS and event["details/group_world_size"] == 1,
    ),
    "metadata/worker_id": Difference(
        "the process id", lambda event: event["source"] == "WORKER" and event["metadata/worker_id"].isdecimal()
    ),
    "details/worker_pid": Difference("torchrun: of failed workers alone", lambda event: event["source"] == "WORKER"),
    "details/entry_point": Difference(
        "torchrun: the last part of the program's path", lambda event: Path(event["details/entry_point"]).is_absolute()
    ),
    "metadata/raw_error": Difference(
        "torchrun: what the worker's error file says, as JSON. Here the cause in words",
        lambda event: "exit code 3" in event["metadata/raw_error"],
    ),
    "name": Difference("as metadata/state", lambda event: event["name"].endswith(".FAILED")),
    "metadata/state": Difference(
        "torchrun's agent has SUCCEEDED also when its workers failed; here it has FAILED with the run",
        lambda event: (event["source"], event["metadata/state"]) == ("AGENT", "FAILED"),
    ),
}


@pytest.mark.parametrize(("exit_code", "max_restarts"), [(0, 0), (3, 0), (3, 1)])
async def test_the_events_are_torchruns(exit_code: int, max_restarts: int, tmp_path: Path) -> None:
    theirs, ours = [await events(launcher, exit_code, max_restarts, tmp_path) for launcher in (TORCHRUN, NODE_AGENT)]
    assert [event["source"] for event in ours] == [event["source"] for event in theirs]
    assert [event.keys() for event in ours] == [event.keys() for event in theirs]
    for their, our in zip(theirs, ours, strict=True):
        for name, value in our.items():
            if value != their[name]:
                assert name in DIFFERENCES and DIFFERENCES[name].holds(our), (name, value, their[name])


async def events(launcher: str, exit_code: int, max_restarts: int, folder: Path) -> list[Event]:
    """Return the events that the launcher writes to stderr."""
    program = ("--no-python", sys.executable, "-c", SCRIPT, str(exit_code))
    agent = await start(launcher, [*FLAGS, f"--max-restarts={max_restarts}", *program], cwd=folder)
    try:
        assert await agent.exit_code(LONG_S) == (1 if exit_code else 0), agent.err
    finally:
        await agent.end()
    return [flat(json.loads(line)) for line in agent.err if line.startswith("{")]


def flat(event: Event) -> Event:
    metadata = event.pop("metadata")
    details = json.loads(metadata.pop("metadata"))
    return {
        **event,
        **{f"metadata/{name}": value for name, value in metadata.items()},
        **{f"details/{name}": value for name, value in details.items()},
    }
