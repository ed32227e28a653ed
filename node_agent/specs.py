"""The workers of an assignment, ready to be started."""

from collections.abc import Callable
from functools import partial

from node_agent.config import AgentConfig
from node_agent.console import ERR, OUT, Console
from node_agent.core.environment import ENABLE_FILE_TIMER, TIMER_FILE, worker_environment
from node_agent.output import Relay, Stream
from node_agent.processes import CommandProcess, Start
from node_agent.scratch import ScratchDir
from node_agent.workers import WorkerSpec
from protocol.messages import Assignment


class SpecMaker:
    """Makes the specs of one agent's workers, round after round."""

    def __init__(self, config: AgentConfig, console: Console, scratch: ScratchDir) -> None:
        self._config = config
        self._console = console
        self._scratch = scratch
        self._environment = dict(config.environment)
        if config.environment.get(ENABLE_FILE_TIMER) == "1":
            self._environment.setdefault(TIMER_FILE, scratch.path("timer"))

    @property
    def timer_file(self) -> str:
        """Where the workers find the file timer, if the user has enabled it."""
        return self._environment[TIMER_FILE]

    def specs(self, assignment: Assignment) -> list[WorkerSpec]:
        """One for each local rank."""
        return [self._spec(assignment, local_rank) for local_rank in range(assignment.local_world_size)]

    def _spec(self, assignment: Assignment, local_rank: int) -> WorkerSpec:
        return WorkerSpec(
            node_id=self._config.node_id,
            rank=assignment.first_rank + local_rank,
            local_rank=local_rank,
            title=self._config.command.title,
            start=self._start(assignment, local_rank),
            open_streams=self._streams(local_rank),
        )

    def _start(self, assignment: Assignment, local_rank: int) -> Start:
        config = self._config
        environment = worker_environment(
            self._environment,
            assignment,
            local_rank,
            run_id=config.run_id,
            role=config.role,
            error_file=self._scratch.error_file(assignment.round, local_rank),
            virtual_local_rank=config.virtual_local_rank,
        )
        return partial(CommandProcess, config.command.for_worker(local_rank), environment)

    def _streams(self, local_rank: int) -> Callable[[], tuple[Stream, Stream]]:
        prefix = f"[{self._config.role}{local_rank}]:"
        return lambda: (Relay(prefix, self._console, OUT), Relay(prefix, self._console, ERR))
