"""The helper process in which a `torchrun.logs_specs` class works: see node_agent/output/logs_specs.py.

A program of its own: it imports torch, and nothing of ours. Its stdin is a socket to the agent, with one line of JSON a
message. The first one names the class and its arguments; each of the others is a round's environments by local rank,
which the class may change, and is answered with where that round's output goes. What it prints goes to stderr.
"""

import json
import os
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

GROUP = "torchrun.logs_specs"
MAPS = ("stdouts", "stderrs", "tee_stdouts", "tee_stderrs")

Message = dict[str, Any]


def main() -> int:
    """Answer until the agent is gone."""
    with socket.socket(fileno=os.dup(0)) as line, line.makefile("rb") as asked, line.makefile("wb") as answers:
        helper = Helper()
        for text in asked:
            message = json.loads(text)
            answer = _answered(helper.answer, message["asked"])
            answers.write(json.dumps({"serial": message["serial"], **answer}).encode() + b"\n")
            answers.flush()
    return 0


class Helper:
    """The class at work."""

    def __init__(self) -> None:
        self._specs: Any = None

    def answer(self, asked: Message) -> Message:
        """Raises whatever the class raises."""
        if self._specs is None:
            self._specs = _make(**asked)
            return {}
        return _reified(self._specs, {int(rank): environment for rank, environment in asked["environments"].items()})


def _answered(answer: Callable[[Message], Message], asked: Message) -> Message:
    try:
        return answer(asked)
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


def _make(
    name: str, path: list[str], log_dir: str | None, redirects: Any, tee: Any, local_ranks_filter: list[int] | None
) -> Any:
    sys.path[:] = path  # finds what the agent finds
    from importlib.metadata import entry_points

    specs = entry_points(group=GROUP)[name].load()
    ranks = None if local_ranks_filter is None else set(local_ranks_filter)
    return specs(log_dir=log_dir, redirects=_std(redirects), tee=_std(tee), local_ranks_filter=ranks)


def _std(streams: int | dict[str, int]) -> Any:
    from torch.distributed.elastic.multiprocessing import Std

    if isinstance(streams, int):
        return Std(streams)
    return {int(rank): Std(number) for rank, number in streams.items()}


def _reified(specs: Any, environments: dict[int, dict[str, str]]) -> Message:
    before = {rank: dict(environment) for rank, environment in environments.items()}
    logs = specs.reify(environments)
    for name in ("stdouts", "stderrs"):
        if set(getattr(logs, name)) != set(before):
            raise ValueError(f"{name} are for the local ranks {sorted(getattr(logs, name))}, not {sorted(before)}")
    return {
        **{name: {rank: os.fspath(path) for rank, path in getattr(logs, name).items()} for name in MAPS},
        "filtered_stdout": os.fspath(logs.filtered_stdout),
        "filtered_stderr": os.fspath(logs.filtered_stderr),
        "environments": {rank: _changes(before[rank], environments[rank]) for rank in before},
    }


def _changes(before: dict[str, str], after: dict[str, str]) -> dict[str, str]:
    return {name: str(value) for name, value in after.items() if before.get(name) != value}


if __name__ == "__main__":
    sys.exit(main())
