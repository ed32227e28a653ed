"""One program for torch's launcher and ours: runs a table of cases under one of them and prints what came of each."""

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from tests.integration.api import functions

METHOD = "fork"
"""torch's workers import torch otherwise, each of them for itself."""


class Ours:
    def __init__(self) -> None:
        import node_agent

        self.api: Any = node_agent

    def start(self, entrypoint: Any, args: Any, envs: Any, **options: Any) -> Any:
        specs = self.api.DefaultLogsSpecs(**options.pop("logs", {"log_dir": options.pop("folder")}))
        return self.api.start_processes("t", entrypoint, args, envs, specs, start_method=METHOD, **options)

    def launch(self, entrypoint: Any, *args: Any, **fields: Any) -> Any:
        return self.api.elastic_launch(
            self.api.LaunchConfig(1, 1, **{"nproc_per_node": 2, "run_id": "r", **fields}), entrypoint
        )(*args)

    @property
    def streams(self) -> Any:
        return self.api.Std


class Torchs(Ours):
    def __init__(self) -> None:
        from torch.distributed import launcher
        from torch.distributed.elastic import multiprocessing

        class Both:
            DefaultLogsSpecs, start_processes = multiprocessing.DefaultLogsSpecs, multiprocessing.start_processes
            Std, elastic_launch, LaunchConfig = multiprocessing.Std, launcher.elastic_launch, launcher.LaunchConfig

        self.api = Both

    def launch(self, entrypoint: Any, *args: Any, **fields: Any) -> Any:
        fields = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", **fields}
        return super().launch(entrypoint, *args, **fields)


def started(side: Ours, entrypoint: Any, args: Any, envs: Any | None = None, **options: Any) -> Any:
    """What becomes of processes: values, failures, files."""
    with tempfile.TemporaryDirectory() as folder:
        if "redirects" in options or "tee" in options:
            options["logs"] = {
                "log_dir": folder,
                **{name: options.pop(name) for name in ("redirects", "tee") if name in options},
            }
        context = side.start(entrypoint, args, envs or {rank: {} for rank in args}, folder=folder, **options)
        result = context.wait()
        context.close()
        return {
            "values": result.return_values,
            "failures": {rank: failed(failure) for rank, failure in result.failures.items()},
            "is_failed": result.is_failed(),
            "stdouts": {rank: content(path) for rank, path in result.stdouts.items()},
            "stderrs": {rank: content(path) for rank, path in result.stderrs.items()},
            "folders": {
                path.replace(folder, "").split("/", 2)[-1] for path in result.stdouts.values() if path
            }.__len__(),
            "pids": sorted(context.pids()),
        }


def failed(failure: Any) -> Any:
    message = failure.message["message"] if isinstance(failure.message, dict) else None
    return [failure.local_rank, failure.exitcode, failure.signal_name(), message, failure.error_file != "<N/A>"]


def content(path: str) -> str:
    if not path:
        return "none"
    with open(path) as file:
        return file.read()


def launched(side: Ours, entrypoint: Any, *args: Any, **fields: Any) -> Any:
    try:
        return {"values": side.launch(entrypoint, *args, **{"start_method": METHOD, "max_restarts": 0, **fields})}
    except Exception as error:
        if type(error).__name__ != "ChildFailedError":
            raise
        rank, failure = error.get_first_failure()  # type: ignore[attr-defined]
        return {"name": error.name, "first": [rank, *failed(failure)]}  # type: ignore[attr-defined]


def refused(call: Callable[[], Any]) -> str:
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
)  # fmt: skip

CASES: dict[str, Callable[[Ours], Any]] = {
    "functions": lambda side: started(side, functions.add, {0: (1, 2), 1: ("a", "b")}),
    "no processes": lambda side: started(side, functions.add, {}),
    "commands": lambda side: started(side, "true", {0: (), 1: ("x",)}),
    "environment": lambda side: started(
        side, functions.variables, {0: ("MINE",), 1: ("MINE",)}, {0: {"MINE": "0"}, 1: {}}
    ),
    "redirects": lambda side: started(
        side, functions.say, {0: ("o0", "e0"), 1: ("o1", "e1")}, redirects={0: side.streams.ALL, 1: side.streams.ERR}
    ),
    "tee": lambda side: started(side, functions.say, {0: ("o0", "e0"), 1: ("o1", "e1")}, tee=side.streams.OUT),
    "teed command": lambda side: started(side, "echo", {0: ("a", 1), 1: ("b", None)}, tee=side.streams.OUT),
    "exception": lambda side: started(side, functions.boom, {0: ("dear me",)}),
    "exit code": lambda side: started(side, functions.leave, {0: (3,)}),
    "exit with a text": lambda side: started(side, functions.leave, {0: ("text",)}),
    "exit with zero": lambda side: started(side, functions.leave, {0: (0,)}),
    "exit at once": lambda side: started(side, functions.leave_at_once, {0: (7,)}),
    "signal": lambda side: started(side, functions.die, {0: (9,)}),
    "segmentation fault": lambda side: started(side, functions.die, {0: (11,)}),
    "command that fails": lambda side: started(side, "sh", {0: ("-c", "exit 5")}),
    "command that stops another": lambda side: started(side, "sh", {0: ("-c", "exit 5"), 1: ("-c", "exec sleep 100")}),
    "command with a signal": lambda side: started(side, "sh", {0: ("-c", "kill -SEGV $$")}),
    "envs without a rank": lambda side: refused(lambda: started(side, "true", {0: (), 1: ()}, {0: {}})),
    "args without a rank": lambda side: refused(lambda: started(side, "true", {1: ()}, {1: {}})),
    "strange keys": lambda side: refused(lambda: started(side, "true", {"0": ()}, {"0": {}})),
    "no program": lambda side: refused(lambda: started(side, "/no/such", {0: ()})),
    "launch": lambda side: launched(side, functions.rank),
    "launch with arguments": lambda side: launched(side, functions.add, "rank ${local_rank}", "!"),
    "launch a command": lambda side: launched(side, "true"),
    "launched environment": lambda side: launched(side, functions.variables, *NAMES, role="trainer", max_restarts=2),
    "launch and restart": lambda side: launched(side, functions.crash_in_round, 2, max_restarts=3),
    "launch and fail": lambda side: launched(side, fail_on, 1, "dear me"),
    "launch and fail for good": lambda side: launched(side, functions.crash_in_round, 9, max_restarts=1),
    "launch a command that fails": lambda side: launched(side, "sh", "-c", "exit 9", nproc_per_node=1),
    "launch a script that fails": lambda side: launched(
        side, sys.executable, "-c", "raise SystemExit(4)", nproc_per_node=1
    ),
    "launch nothing": lambda side: refused(lambda: side.launch(functions.rank, nproc_per_node=0)) != "nothing",
    "launch more than there may be": lambda side: refused(
        lambda: side.api.elastic_launch(side.api.LaunchConfig(3, 2, 1, rdzv_endpoint="localhost:0"), functions.rank)()
    ) != "nothing",
}  # fmt: skip


def main(side: Ours) -> None:
    results = {name: case(side) for name, case in CASES.items()}
    print("\n" + json.dumps(results))


if __name__ == "__main__":
    os.environ["MINE"] = "inherited"
    main(Torchs() if sys.argv[1] == "torch" else Ours())
