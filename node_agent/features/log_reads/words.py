"""Reasons why an agent shows no log."""

from typing import Literal


def not_allowed(node_id: str) -> str:
    return f"node {node_id} does not show logs: read them on that node, or start its agent with --allow-log-reads"


def no_worker_yet(node_id: str) -> str:
    return f"node {node_id} has not started a worker yet"


def no_such_worker(node_id: str, rank: int, round_: int) -> str:
    return f"node {node_id} has no worker of rank {rank} in round {round_}"


def no_file(node_id: str, rank: int, stream: Literal["stdout", "stderr"], other_has_file: bool) -> str:
    other = "stderr" if stream == "stdout" else "stdout"
    advice = f"use --stream {other}" if other_has_file else "start node-agent with -t 3 to write files, too"
    return f"rank {rank} on node {node_id} writes its {stream} to the agent's console: {advice}"


def place_unknown(node_id: str) -> str:
    return f"node {node_id} cannot show logs: its --logs-specs plug-in decides where they are"


def still_reading(node_id: str) -> str:
    return f"node {node_id} is still reading log files for other requests: its disk may hang"


def no_thread(node_id: str) -> str:
    return f"node {node_id} cannot read log files now: it may start no more threads; its limit on processes is reached"


def not_in_folder(node_id: str, path: str) -> str:
    return f"node {node_id}: {path} is no longer a file in the run's folder"


def unreadable(node_id: str, path: str, why: str) -> str:
    return f"node {node_id}: {path}: {why}"
