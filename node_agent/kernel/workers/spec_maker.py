"""Specifications of an assignment's workers, ready to be started."""

import os
from collections.abc import Callable, Collection, Mapping
from functools import partial

from rdzv_protocol.messages import Assignment

from node_agent.kernel.config import AgentConfig
from node_agent.kernel.environment import (
    ERROR_FILE,
    FR_BUFFER_SIZE,
    FR_DUMP,
    FR_ENTRIES,
    LONGEST_SOCKET_PATH,
    NCCL_PIPE,
    WORKER_SERVER,
    defaults,
    own_device,
)
from node_agent.kernel.output.logs import RoundLogs
from node_agent.kernel.processes.process import CommandProcess, Process
from node_agent.kernel.processes.temp_dir import TempDir
from node_agent.kernel.worker_spec import WorkerSpec
from node_agent.kernel.workers import nesting
from node_agent.kernel.workers.progress_files import ProgressFiles

StartWorker = Callable[[int, Mapping[str, str], Collection[int], int, int], Process]
"""Start the worker with this local rank, environment, CPUs (none for all), stdout and stderr. Raises `OSError` with one
line that gives the reason."""


class SpecMaker:
    """Makes the specifications of one agent's workers in each round. If `start` is None, they execute the command."""

    def __init__(self, config: AgentConfig, temp_dir: TempDir, start: StartWorker | None = None) -> None:
        self._config = config
        self._start = start or self._execute
        self._temp_dir = temp_dir
        self._environment = dict(config.environment)

    def environments(self, assignment: Assignment) -> list[dict[str, str]]:
        """Return the environment of each local rank, without the part of its logs: the agent's own, and the worker's
        ranks.

        It equals torchrun's, variable by variable (torch 2.13), so that a script cannot see a difference.
        """
        return [self._place(assignment, local_rank) for local_rank in range(assignment.local_world_size)]

    def specs(
        self,
        assignment: Assignment,
        logs: RoundLogs,
        progress: ProgressFiles,
        further: Callable[[int], Mapping[str, str]] = lambda local_rank: {},
        cpus: Callable[[int], Collection[int]] = lambda local_rank: (),
    ) -> list[WorkerSpec]:
        """Return the specifications of the workers, one for each local rank.

        `further`: returns additional variables of a worker. `cpus`: returns the CPUs that it may use, none for all.
        """
        specs = []
        for local_rank, environment in enumerate(self.environments(assignment)):
            environment |= logs.environment(local_rank)
            given = {**progress.environment(local_rank), **further(local_rank)}
            given |= self._debug_variables(assignment, local_rank, environment[ERROR_FILE])
            run_id, servers = self._config.join.run_id, self._config.servers
            environment |= {**given, **nesting.variables(self._environment, run_id, servers, given)}
            spec = WorkerSpec(
                node_id=self._config.join.node_id,
                rank=assignment.first_rank + local_rank,
                local_rank=local_rank,
                title=self._config.command.title,
                start=partial(self._start, local_rank, environment, cpus(local_rank)),
                open_streams=partial(logs.open_streams, local_rank),
                error_file=environment[ERROR_FILE],
                environment=environment,
            )
            specs.append(spec)
        return specs

    def names(self, assignment: Assignment) -> dict[str, str]:
        """Return the variables that the assignment and this node give to the node's first worker."""
        return self._place(assignment, 0)

    def kept_folder(self, error_file: str) -> str:
        """Return the folder of a worker's error file, empty if it is removed when the agent exits."""
        folder = os.path.dirname(error_file)
        return "" if folder.startswith(self._temp_dir.folder) else folder

    def _place(self, assignment: Assignment, local_rank: int) -> dict[str, str]:
        parent, own = self._environment, {"LOCAL_RANK": str(local_rank)}
        environment = {
            **parent,
            **defaults(parent, assignment.local_world_size, limits_threads=self._config.limits_threads),
            "RANK": str(assignment.first_rank + local_rank),
            **(own_device(parent, local_rank) if self._config.virtual_local_rank else own),
            "WORLD_SIZE": str(assignment.world_size),
            "LOCAL_WORLD_SIZE": str(assignment.local_world_size),
            "GROUP_RANK": str(assignment.group_rank),
            "GROUP_WORLD_SIZE": str(assignment.group_world_size),
            "ROLE_RANK": str(assignment.first_role_rank + local_rank),
            "ROLE_WORLD_SIZE": str(assignment.role_world_size),
            "ROLE_NAME": self._config.join.role,
            "MASTER_ADDR": assignment.master_addr,
            "MASTER_PORT": str(assignment.master_port),
            "TORCHELASTIC_RESTART_COUNT": str(assignment.restart_count),
            "TORCHELASTIC_MAX_RESTARTS": str(assignment.max_restarts),
            "TORCHELASTIC_RUN_ID": self._config.join.run_id,
            # Whether group rank 0's agent hosts the store at MASTER_ADDR:MASTER_PORT, so that every rank is a client.
            "TORCHELASTIC_USE_AGENT_STORE": str(assignment.agent_store),
            ERROR_FILE: "",
        }
        environment.update((name, environment[source]) for name, source in self._config.worker_variables.items())
        return environment

    def _debug_variables(self, assignment: Assignment, local_rank: int, error_file: str) -> dict[str, str]:
        """Return the variables of torch and NCCL that let a worker be asked what it is doing. Variables set by the user
        keep their values.

        A variable has no effect by itself. The socket belongs to torch's worker server, which exists if the script uses
        `worker_main`. The pipe and the dump are NCCL's.
        """
        if not self._temp_dir.is_made:
            return {}  # a worker that cannot be asked runs all the same
        beginning = self._temp_dir.path(f"round_{assignment.round}_")
        rank, values = assignment.first_rank + local_rank, {}
        if len(os.fsencode(server := f"{beginning}{rank}.server")) <= LONGEST_SOCKET_PATH:
            values[WORKER_SERVER] = server
        if folder := self.kept_folder(error_file):
            values[FR_DUMP] = f"{folder}/flight_recorder_rank_"
            values[NCCL_PIPE], values[FR_BUFFER_SIZE] = f"{beginning}nccl_", str(FR_ENTRIES)
        return {name: value for name, value in values.items() if name not in self._environment}

    def _execute(
        self, local_rank: int, environment: Mapping[str, str], cpus: Collection[int], stdout: int, stderr: int
    ) -> Process:
        command = self._config.command.for_worker(local_rank)
        if self._config.stdin < 0:
            return CommandProcess(command, environment, stdout, stderr, cpus, waits=False)
        with open(f"/proc/self/fd/{self._config.stdin}", "rb") as stdin:  # a position of its own for each worker
            return CommandProcess(command, environment, stdout, stderr, cpus, stdin.fileno(), waits=False)
