"""Workers of an earlier agent of the same job that still run on this node, for example beside a requeued job's agent.

Workers end with their agent. But an agent that hangs, or is slow to stop its workers, may have lost its place to a new
agent. Its workers then hold the GPUs and ports that the new agent's workers want.
"""

import os
from collections.abc import Iterator, Mapping

from node_agent.workers.orphans import MARK

MOST_NAMED = 8
"""Most pids that a warning names."""
_JOB, _TIMES = "SLURM_JOB_ID", "SLURM_RESTART_COUNT"
_RUN, _MASTER = "TORCHELASTIC_RUN_ID", ("MASTER_ADDR", "MASTER_PORT")
_COUNTED = tuple(f"{name}=".encode() for name in (MARK, _RUN, *_MASTER, _JOB, _TIMES))


def still_running(own: Mapping[str, str], *, has_named_run: bool) -> list[int]:
    """Return the pids of such processes. `own`: environment of one of this agent's workers.

    `has_named_run`: whether the user has named the run. All runs without a name have the same id.
    """
    return [pid for pid, environment in _environments() if _is_earlier(environment, own, has_named_run)]


def warning(pids: list[int]) -> str:
    """Warn of these processes."""
    named = ", ".join(map(str, pids[:MOST_NAMED])) + (", ..." if len(pids) > MOST_NAMED else "")
    return (
        f"warning: workers of an earlier agent of this job still run on this node (pids {named}). They may hold its "
        f"GPUs, memory and ports: stop that agent, or end them: kill -9 {' '.join(map(str, pids[:MOST_NAMED]))}"
    )


def _is_earlier(environment: Mapping[str, str], own: Mapping[str, str], has_named_run: bool) -> bool:
    """Whether a process is, or descends from, a worker that another agent has started before this one's round.

    All workers of a round have the same master, and those of an earlier round had ended when this one began.
    """
    if environment.get(MARK, own[MARK]) == own[MARK] or not all(name in environment for name in _MASTER):
        return False
    if has_named_run and environment.get(_RUN) == own[_RUN]:
        return any(environment[name] != own[name] for name in _MASTER)
    is_same_job = _JOB in own and environment.get(_JOB) == own[_JOB]
    return is_same_job and environment.get(_TIMES) != own.get(_TIMES)


def _environments() -> Iterator[tuple[int, Mapping[str, str]]]:
    """Variables that count of each process of this user."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    entries = file.read().split(b"\0")
            except OSError:  # it has ended, or is another user's
                continue
            pairs = [os.fsdecode(entry).partition("=") for entry in entries if entry.startswith(_COUNTED)]
            yield int(name), {key: value for key, _, value in pairs}
