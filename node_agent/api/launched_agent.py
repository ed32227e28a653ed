"""The agent within a program: `node_agent.agent`, whose workers are the program's to choose, and which tells how it
ended."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rdzv_protocol.messages import Assignment

from node_agent.agent import Agent
from node_agent.api.entrypoint import Entry
from node_agent.api.outputs import of_logs_dest
from node_agent.config import AgentConfig
from node_agent.core.effects import LeaveEvidence
from node_agent.core.events import Signalled
from node_agent.failures import error_file
from node_agent.output.console import Console
from node_agent.output.destinations import Destinations, PluginFailed
from node_agent.transport.base import Link
from node_agent.workers.spec import SpecMaker


class ApiDriver(Agent):
    """Runs an entry. `custom_logs`: the program's own `LogsSpecs`, or None."""

    def __init__(
        self,
        config: AgentConfig,
        make_link: Callable[[], Link],
        where: str,
        console: Console,
        entry: Entry,
        custom_logs: Any,
    ) -> None:
        super().__init__(config, make_link, where, console)
        self._entry = entry
        self._specs = SpecMaker(config, self._scratch, entry.starter)
        if custom_logs is not None:
            self._logs.plugin = _CustomLogs(custom_logs)
        self.evidence: LeaveEvidence | None = None
        """Why the run, or this agent, has failed."""
        self.recorded: dict[str, Any] | None = None
        """What the worker that ended the run has left in its error file, if it was one of this node's."""
        self.first_rank = 0
        """The global rank of local rank 0 in the last round."""

    @property
    def is_done(self) -> bool:
        """The agent has come to its end; it has no workers."""
        return self._exit_code.done()

    def leave(self, signal_name: str) -> None:
        """Stop the workers with this signal and go; the second time, kill them."""
        self._runner.feed(Signalled(signal_name))

    def leave_evidence(self, effect: LeaveEvidence) -> None:
        """Keep it for the program, which is told by an exception. What it leaves behind is its own affair."""
        self.evidence = effect
        failure = effect.finish.failure if effect.finish else None
        if self._group and failure and failure.node_id == self._config.node_id:
            self.recorded = error_file.copy(self._group.error_file(failure.pid), failure.exit_code)

    def open_port(self) -> int:
        self._entry.forget()  # another round: what the workers of the last one have returned counts for nothing
        return super().open_port()

    def start_workers(self, assignment: Assignment) -> None:
        self.first_rank = assignment.first_rank
        super().start_workers(assignment)


class _CustomLogs:
    """Asks the program's `LogsSpecs` once a round, where node-agent asks a plug-in's in a process of its own."""

    def __init__(self, specs: Any) -> None:
        self._specs = specs

    async def reify(self, environments: Sequence[Mapping[str, str]]) -> Destinations:
        given = {local_rank: dict(environment) for local_rank, environment in enumerate(environments)}
        try:
            return of_logs_dest(self._specs.reify(given), given)
        except Exception as error:
            raise PluginFailed(f"logs_specs: {type(error).__name__}: {error}") from error

    async def close(self) -> None:
        pass
