"""The helper process that runs a `torchrun.logs_specs` class: see node_agent/kernel/output/logs_specs.py.

It is a program of its own that imports torch, and from this package only a sentence for an error. Its stdin is a socket
to the agent, with one line of JSON a message. The first message names the class and its arguments. Each further message
has a round's environments by local rank, which the class may change.

The answer says where that round's output goes. The process prints its own output to stderr.
"""

import json
import os
import socket
import sys
import traceback
from typing import Any

GROUP = "torchrun.logs_specs"

Message = dict[str, Any]


def main() -> int:
    """Answer messages until the agent is gone."""
    with socket.socket(fileno=os.dup(0)) as line, line.makefile("rb") as asked, line.makefile("wb") as answers:
        specs: Any = None
        for text in asked:
            message = json.loads(text)
            answer: Message = {"serial": message["serial"]}
            try:
                if specs is None:
                    specs = _make(**message["asked"])
                else:
                    answer |= _reified(specs, message["asked"]["environments"])
            except Exception as error:  # the class may raise anything
                traceback.print_exc()
                answer["error"] = f"{type(error).__name__}: {error}"
            answers.write(json.dumps(answer).encode() + b"\n")
            answers.flush()
    return 0


def _make(
    name: str, path: list[str], log_dir: str | None, redirects: Any, tee: Any, local_ranks_filter: list[int] | None
) -> Any:
    sys.path[:] = path  # finds the same modules as the agent
    from importlib.metadata import entry_points

    specs = entry_points(group=GROUP)[name].load()
    ranks = None if local_ranks_filter is None else set(local_ranks_filter)
    return specs(log_dir=log_dir, redirects=_std(redirects), tee=_std(tee), local_ranks_filter=ranks)


def _std(streams: int | dict[str, int]) -> Any:
    from torch.distributed.elastic.multiprocessing import Std

    if isinstance(streams, int):
        return Std(streams)
    return {int(rank): Std(number) for rank, number in streams.items()}


def _reified(specs: Any, before: list[dict[str, str]]) -> Message:
    """Return files by local rank as in torch's `LogsDest`: a list for all ranks, or the ranks that are teed."""
    environments = {rank: dict(environment) for rank, environment in enumerate(before)}
    logs = specs.reify(environments)
    files = {}
    for name in ("stdouts", "stderrs"):
        paths = getattr(logs, name)
        if set(paths) != set(range(len(before))):
            from node_agent import words

            raise ValueError(words.output.wrong_local_ranks(name, sorted(paths), list(range(len(before)))))
        files[name] = [os.fspath(paths[rank]) for rank in range(len(before))]
    return {
        **files,
        "tee_stdouts": list(logs.tee_stdouts),
        "tee_stderrs": list(logs.tee_stderrs),
        "filtered_stdout": os.fspath(logs.filtered_stdout),
        "filtered_stderr": os.fspath(logs.filtered_stderr),
        "environments": [_changes(old, environments[rank]) for rank, old in enumerate(before)],
    }


def _changes(before: dict[str, str], after: dict[str, str]) -> dict[str, str]:
    return {name: str(value) for name, value in after.items() if before.get(name) != value}


if __name__ == "__main__":
    sys.exit(main())
