"""One program for torch's launcher and ours: runs a table of cases under one of them and prints the outcomes."""

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.integration.api import functions

METHOD = "fork"
"""With another method, each of torch's workers would import torch."""


class Side:
    """torch's API or ours, which have the same names."""

    def __init__(self, name: str) -> None:
        self.is_torchs = name == "torch"
        if self.is_torchs:
            from torch.distributed import launcher
            from torch.distributed.elastic import multiprocessing

            self.api: Any = SimpleNamespace(**{**vars(multiprocessing), **vars(launcher)})
        else:
            import node_agent

            self.api = node_agent

    def start(self, entrypoint: Any, args: Any, envs: Any = None, **logs: Any) -> Any:
        """Return the outcome of processes: values, failures, files."""
        with tempfile.TemporaryDirectory() as folder:
            streams = {name: self._streams(value) for name, value in logs.items()}
            specs = self.api.DefaultLogsSpecs(log_dir=folder, **streams)
            envs = envs or {rank: {} for rank in args}
            context = self.api.start_processes("t", entrypoint, args, envs, specs, start_method=METHOD)
            result = context.wait()
            context.close()
            return {
                "values": result.return_values,
                "failures": {rank: failed(failure) for rank, failure in result.failures.items()},
                "is_failed": result.is_failed(),
                "stdouts": {rank: content(path) for rank, path in result.stdouts.items()},
                "stderrs": {rank: content(path) for rank, path in result.stderrs.items()},
                "pids": sorted(context.pids()),
            }

    def launch(self, entrypoint: Any, *args: Any, **fields: Any) -> Any:
        """Return the outcome of a run of only this node."""
        rendezvous = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"} if self.is_torchs else {}
        config = self.api.LaunchConfig(
            **{"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 2, "run_id": "r", "start_method": METHOD,
               "max_restarts": 0, **rendezvous, **fields}
        )  # fmt: skip
        try:
            return {"values": self.api.elastic_launch(config, entrypoint)(*args)}
        except Exception as error:
            if type(error).__name__ != "ChildFailedError":
                raise
            rank, failure = error.get_first_failure()
            return {"name": error.name, "first": [rank, *failed(failure)]}

    def _streams(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {rank: self.api.Std(number) for rank, number in value.items()}
        return self.api.Std(value)


def failed(failure: Any) -> Any:
    message = failure.message["message"] if isinstance(failure.message, dict) else None
    return [failure.local_rank, failure.exitcode, failure.signal_name(), message, failure.error_file != "<N/A>"]


def content(path: str) -> str:
    return Path(path).read_text() if path else "none"


def refused(call: Callable[[], Any]) -> str:
    """Return the error's class."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "nothing"


def fail_on(rank: int, text: str) -> None:
    if os.environ["RANK"] == str(rank):
        raise ValueError(text)
    signal.pause()


NAMES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME",
    "ROLE_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "MINE",
    "OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)  # fmt: skip

SAYING = {0: ("o0", "e0"), 1: ("o1", "e1")}
CASES: dict[str, Callable[[Side], Any]] = {
    "functions": lambda side: side.start(functions.add, {0: (1, 2), 1: ("a", "b")}),
    "no processes": lambda side: side.start(functions.add, {}),
    "commands": lambda side: side.start("true", {0: (), 1: ("x",)}),
    "environment": lambda side: side.start(
        functions.variables, {0: ("MINE",), 1: ("MINE",)}, {0: {"MINE": "0"}, 1: {}}
    ),
    "redirects": lambda side: side.start(functions.say, SAYING, redirects={0: 3, 1: 2}),
    "tee": lambda side: side.start(functions.say, SAYING, tee=1),
    "teed command": lambda side: side.start("echo", {0: ("a", 1), 1: ("b", None)}, tee=1),
    "exception": lambda side: side.start(functions.boom, {0: ("dear me",)}),
    "exit code": lambda side: side.start(functions.leave, {0: (3,)}),
    "exit with a text": lambda side: side.start(functions.leave, {0: ("text",)}),
    "exit with zero": lambda side: side.start(functions.leave, {0: (0,)}),
    "exit at once": lambda side: side.start(functions.leave_at_once, {0: (7,)}),
    "signal": lambda side: side.start(functions.die, {0: (9,)}),
    "segmentation fault": lambda side: side.start(functions.die, {0: (11,)}),
    "command that fails": lambda side: side.start("sh", {0: ("-c", "exit 5")}),
    "command that stops another": lambda side: side.start("sh", {0: ("-c", "exit 5"), 1: ("-c", "exec sleep 100")}),
    "command with a signal": lambda side: side.start("sh", {0: ("-c", "kill -SEGV $$")}),
    "no program": lambda side: refused(lambda: side.start("/no/such", {0: ()})),
    "launch": lambda side: side.launch(functions.rank),
    "launch with arguments": lambda side: side.launch(functions.add, "rank ${local_rank}", "!"),
    "launch a command": lambda side: side.launch("true"),
    "launched environment": lambda side: side.launch(functions.variables, *NAMES, role="trainer", max_restarts=2),
    "launch and restart": lambda side: side.launch(functions.crash_in_round, 2, max_restarts=3),
    "launch and fail": lambda side: side.launch(fail_on, 1, "dear me"),
    "launch and fail for good": lambda side: side.launch(functions.crash_in_round, 9, max_restarts=1),
    "launch a command that fails": lambda side: side.launch("sh", "-c", "exit 9", nproc_per_node=1),
    "launch a script that fails": lambda side: side.launch(
        sys.executable, "-c", "raise SystemExit(4)", nproc_per_node=1
    ),
    "launch nothing": lambda side: refused(lambda: side.launch(functions.rank, nproc_per_node=0)) != "nothing",
    "launch more than there may be": lambda side: refused(
        lambda: side.launch(functions.rank, min_nodes=3, max_nodes=2, rdzv_endpoint="localhost:0")
    ) != "nothing",
}  # fmt: skip


if __name__ == "__main__":
    os.environ["MINE"] = "inherited"
    os.environ.pop("OMP_NUM_THREADS", None)
    side = Side(sys.argv[1])
    print("\n" + json.dumps({name: case(side) for name, case in CASES.items()}))
