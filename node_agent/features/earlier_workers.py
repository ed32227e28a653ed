"""Warns if workers of an earlier agent of the same job still run on this node, for example after a requeue.

Workers end with their agent. But an agent that hangs or is slow to stop its workers may have been replaced by a new
agent. Its workers then hold the GPUs and ports that the new agent's workers need.

It also warns of processes that any dead agent has left behind, for example because its guardian was killed with it.
They belong to no run any more, so this needs no comparison of runs: two runs on one machine may have the same id.
"""

import asyncio
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial

from msgspec import Struct
from rdzv_protocol.flag_values import address
from rdzv_protocol.messages import Assignment

from node_agent.kernel.core.effects import Level
from node_agent.kernel.feature import Feature, Kernel
from node_agent.kernel.processes.orphans import has_ended_agent
from node_agent.kernel.processes.orphans_helper import MARK, began, environment
from node_agent.kernel.tasks import spawn
from node_agent.kernel.threads import in_thread
from node_agent.kernel.workers.nesting import RUN_ID, RUNS, Outer

SEARCH_DELAY_S = 2.0
"""Seconds from the first start of workers until the agent looks for earlier ones, so that it does not delay the start.
"""
_JOB, _TIMES = "SLURM_JOB_ID", "SLURM_RESTART_COUNT"
_MASTER = ("MASTER_ADDR", "MASTER_PORT")
_COUNTED = tuple(f"{name}=".encode() for name in (MARK, RUNS, *_MASTER, _JOB, _TIMES))


class EarlierWorkers(Feature):
    """Warns about such workers, shortly after the agent has started its own for the first time."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self._has_begun = False
        self._look: asyncio.TimerHandle | None = None

    def starting(self, assignment: Assignment) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._look = asyncio.get_running_loop().call_later(SEARCH_DELAY_S, self._look_for_them, assignment)

    async def close(self) -> None:
        if self._look:
            self._look.cancel()

    def _look_for_them(self, assignment: Assignment) -> None:
        if self.kernel.assignment is assignment:
            spawn(self._warn(self.kernel.first_variables(assignment)))

    async def _warn(self, own: Mapping[str, str]) -> None:
        """Warn about such processes. A thread reads all processes."""
        config = self.kernel.config
        servers = [address(*server) for server in config.servers if config.join.explicit_run_id]
        found = await in_thread(partial(find, own, servers))
        if found.earlier or found.left:
            from node_agent.features import words

            for pids, warning in ((found.earlier, words.earlier_workers_run), (found.left, words.left_behind)):
                if pids:
                    self.kernel.console.log(warning(pids), Level.WARNING)


class Found(Struct, frozen=True):
    """Pids of other agents' workers and of their descendants."""

    earlier: list[int]
    """Of an agent of the same job, which may still live."""
    left: list[int]
    """Of agents that have ended."""


def find(own: Mapping[str, str], servers: Collection[str]) -> Found:
    """Return the processes of other agents. `own`: environment of one of this agent's workers.

    `servers`: addresses of the run's servers, empty if the user has not named the run. All runs without a name have the
    same id.
    """
    found, shows_all = Found([], []), began(1) >= 0  # else /proc hides other users' processes, perhaps a live agent
    for pid, variables in _variables():
        if variables.get(MARK, own[MARK]) == own[MARK] or not all(name in variables for name in _MASTER):
            continue
        if shows_all and has_ended_agent(variables[MARK]) and _is_of_this_container(pid):
            found.left.append(pid)
        elif _is_earlier(variables, own, servers):
            found.earlier.append(pid)
    return found


def _is_of_this_container(pid: int) -> bool:
    """Return whether the process has the same pids as this one. False if another user's process hides that."""
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink("/proc/self/ns/pid")
    return False


def _is_earlier(variables: Mapping[str, str], own: Mapping[str, str], servers: Collection[str]) -> bool:
    """Return whether a process is, or descends from, a worker that an earlier agent of this job has started.

    All workers of a round have the same master. Those of an earlier round had ended when this one began.
    """
    if any(run_id == own[RUN_ID] and not set(at).isdisjoint(servers) for run_id, at in Outer.of(variables).runs[-1:]):
        return any(variables[name] != own[name] for name in _MASTER)
    is_same_job = _JOB in own and variables.get(_JOB) == own[_JOB]
    return is_same_job and variables.get(_TIMES) != own.get(_TIMES)


def _variables() -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield the pid and the relevant variables of each process of this user."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                entries = environment(int(name))
            except OSError:  # it has ended, or is another user's
                continue
            pairs = [os.fsdecode(entry).partition("=") for entry in entries if entry.startswith(_COUNTED)]
            yield int(name), {key: value for key, _, value in pairs}
