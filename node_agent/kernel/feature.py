"""Features: what each may do in an agent's life, and what it sees of the agent."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

from msgspec import Struct
from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.messages import Assignment, Failure, Reply
from rdzv_protocol.queries import Query, QueryAnswer

from node_agent.kernel.config import AgentConfig
from node_agent.kernel.core.effects import OwnEffect
from node_agent.kernel.core.events import Suspected
from node_agent.kernel.core.machine import AgentMachine
from node_agent.kernel.core.progress import Reading
from node_agent.kernel.output.console import Console
from node_agent.kernel.output.logs import ReadableLogs
from node_agent.kernel.output.sinks import Sink
from node_agent.kernel.workers.group import WorkerGroup
from node_agent.kernel.workers.orphans import Orphans
from node_agent.kernel.workers.ports import ReservedPort
from node_agent.kernel.workers.progress_files import ProgressFiles
from node_agent.kernel.workers.spec import StartWorker
from node_agent.kernel.workers.temp_dir import TempDir


class StartedWorkers(Struct, frozen=True):
    """Workers of the last round that has been started here, with what the agent holds for them."""

    group: WorkerGroup
    logs: ReadableLogs
    progress: ProgressFiles

    def close(self) -> None:
        self.group.close()
        self.progress.close()


class Kernel(Protocol):
    """The agent, as its features see it."""

    config: AgentConfig
    console: Console
    temp_dir: TempDir
    orphans: Orphans | None
    """Keeper of what workers leave behind; None: this process has children of its own."""
    port: ReservedPort | None
    """MASTER_PORT of the round that is joined, if this node leads it."""
    assignment: Assignment | None
    """The round of the workers that were started last."""
    started: StartedWorkers | None
    """Workers of that round, as soon as they have been started."""

    @property
    def machine(self) -> AgentMachine:
        """The agent's machine, once the agent has begun. It is read here, and never told anything."""

    def workers(self) -> Mapping[int, int]:
        """Pids of the workers that run, by local rank."""

    def progress_readings(self) -> Mapping[int, Reading]:
        """Progress that each worker has told of, by local rank."""

    def first_variables(self, assignment: Assignment) -> Mapping[str, str]:
        """Environment of the node's first worker, as far as the assignment and the node make it."""

    def kept_folder(self, error_file: str) -> str:
        """Folder of a worker's error file, if it stays when the agent goes; empty: it does not."""

    def leave(self, signal_name: str, reason: str = "") -> None:
        """Leave the run because of this signal; each further one is more pressing."""

    def suspect(self, event: Suspected) -> None:
        """Report that workers may hang, unless none of that round runs any more."""

    def fail(self, reason: str) -> None:
        """Report that the workers cannot go on, or not begin, without something that the agent does for them."""


class Feature:
    """Feature of one agent. A hook does nothing unless it is overridden. Hooks are called in the table's order.

    Of a round they are called in this order: `joining`, `answered`, `starting`, `preparing`, `variables`, `cpus`,
    `sinks`, `started`, `failed`, `judged`, `stopping`, `stopped`.
    """

    start_worker: StartWorker | None = None
    """Starts the workers in place of the agent."""
    hosts_store = False
    """Whether the feature can host the workers' store."""
    leave_notice_s: float | None = None
    """Most seconds that a leaving agent waits until the workers of all nodes have saved; None: it does not wait."""

    def __init__(self, kernel: Kernel, options: Any = None) -> None:
        """`options`: the feature's own, if it has flags. Nothing may be held yet that `close` does not give back."""
        self.kernel = kernel

    async def open(self) -> None:
        """Take what must be there before the agent asks for a server. Raises `UsageError`."""

    def began(self) -> None:
        """Take note that the agent is about to join."""

    def performing(self, effect: OwnEffect) -> bool:
        """Take note of what the machine wants done. True: that is done with it."""
        return False

    async def unfit(self, after_failure: bool) -> str:
        """Return why this node must not take part, with the evidence; empty: it may. Called where it may have changed.

        A feature that overrides it has the node checked before each join.
        """
        return ""

    def member(self, is_member: bool) -> None:
        """Take note that the agent is part of its run now, or is not. Called at the start, too."""

    def joining(self) -> None:
        """Take note that the join for the next round is sent."""

    def answered(self, answer: Reply | ProtocolError) -> None:
        """Take note that the server has answered a join or a poll, or refused it. The machine hears of it next."""

    def starting(self, assignment: Assignment) -> None:
        """Take note that a round has begun: its workers are to be started."""

    async def preparing(self, assignment: Assignment) -> None:
        """Make ready what the round's workers need. Their logs are open, and the temporary folder has been made."""

    def variables(self, assignment: Assignment, local_rank: int) -> Mapping[str, str]:
        """Return variables of a worker, which launchers that it starts do not inherit."""
        return {}

    def cpus(self, local_rank: int) -> Collection[int]:
        """Return the CPUs that a worker may use; empty: the feature binds it to none."""
        return ()

    def sinks(self, local_rank: int, *, is_shown: bool) -> Sequence[Sink]:
        """Return sinks for a stream of a worker. `is_shown`: whether the console shows it."""
        return ()

    def started(self, assignment: Assignment, pids: Sequence[int]) -> None:
        """Take note that the workers have been started, with these pids by local rank."""

    def interruption(self) -> Awaitable[bool] | None:
        """Return whether the workers, which have all exited 0, were asked to end; None: certainly not."""
        return None

    def failed(self, failure: Failure) -> Failure:
        """Return the round's first failure on this node with what the feature knows of it."""
        return failure

    async def judged(self, failure: Failure) -> Failure:
        """Return the failure with the feature's verdict. The report of a failure waits for those that override it."""
        return failure

    def stopping(self) -> None:
        """Take note that the workers are to be stopped."""

    def stopped(self) -> None:
        """Take note that no worker of the round is left."""

    async def answer(self, query: Query) -> QueryAnswer:
        """Answer a query of the server, of a kind that the feature's options name."""
        raise NotImplementedError

    def ended(self, exit_code: ExitCode) -> None:
        """Take note that the agent exits."""

    async def close(self) -> None:
        """End, and give everything back: the workers are gone, and their output has been shown."""


def load(name: str) -> Callable[..., Feature]:
    """The class of a feature by its `module:Class`."""
    module, _, attribute = name.partition(":")
    found: Callable[..., Feature] = getattr(import_module(module), attribute)
    return found
