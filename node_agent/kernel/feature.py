"""Features: the hooks through which a feature acts, and its view of the agent."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

from msgspec import Struct
from rdzv_protocol.constraints import MAX_ITEMS, sendable
from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.messages import Assignment, Failure, FinishedWorkers, PollRequest, Reply, ReportedError
from rdzv_protocol.queries import Query, QueryAnswer

from node_agent.kernel.config import AgentConfig
from node_agent.kernel.core.effects import OwnEffect
from node_agent.kernel.core.events import Suspected
from node_agent.kernel.core.machine import AgentMachine
from node_agent.kernel.output.console import Console
from node_agent.kernel.output.logs import RoundLogs
from node_agent.kernel.output.sinks import Sink
from node_agent.kernel.processes.orphans import Orphans
from node_agent.kernel.processes.ports import ReservedPort
from node_agent.kernel.processes.temp_dir import TempDir
from node_agent.kernel.workers.group import WorkerGroup
from node_agent.kernel.workers.progress_files import ProgressFiles
from node_agent.kernel.workers.spec_maker import StartWorker


class StartedWorkers(Struct, frozen=True):
    """Workers of the round that was started last, with the resources that the agent holds for them."""

    assignment: Assignment
    group: WorkerGroup
    logs: RoundLogs
    log_folder: str
    """Folder of the run's log files when the round began, so that a link that a worker creates later has no effect.
    Empty if others may read nothing, because a plug-in chooses the files."""
    progress: ProgressFiles

    def finished(self, now: float) -> FinishedWorkers | None:
        """Return the workers that have exited 0 while others of this node still run, None if there are none."""
        finished_at = self.group.finished_at
        if not 0 < len(finished_at) <= min(MAX_ITEMS, self.assignment.local_world_size - 1):
            return None
        ranks = tuple(sorted(self.assignment.first_rank + local_rank for local_rank in finished_at))
        return FinishedWorkers(
            round=self.assignment.round, ranks=ranks, ago_s=sendable(now - max(finished_at.values()))
        )

    def succeeded_ago_s(self, now: float) -> float | None:
        """Return the seconds since all workers of this node have exited 0, None if they have not."""
        finished_at = self.group.finished_at
        has_succeeded = len(finished_at) == self.assignment.local_world_size
        return now - max(finished_at.values()) if has_succeeded else None

    def failed_ago_s(self, now: float) -> float:
        """Return the seconds since a worker failed, 0 if none has."""
        return sendable(now - self.group.failed_at) if self.group.failed_at else 0.0

    def close(self) -> None:
        self.group.close()
        self.progress.close()


class Kernel(Protocol):
    """The agent, as its features see it."""

    config: AgentConfig
    console: Console
    temp_dir: TempDir
    orphans: Orphans | None
    """Keeper of processes that workers leave behind. None if this process has other children."""
    port: ReservedPort | None
    """MASTER_PORT of the round to join, if this node leads it."""
    preparation: str
    """Phrase about what the agent waits for before it starts the workers; empty if it waits for nothing."""
    assignment: Assignment | None
    """Assignment of the workers that were started last."""
    started: StartedWorkers | None
    """Workers of that round, None until they have been started."""

    @property
    def machine(self) -> AgentMachine:
        """The agent's machine, available once the agent has begun. Features only read it."""

    def workers(self) -> Mapping[int, int]:
        """Pids of the running workers, by local rank."""

    def first_variables(self, assignment: Assignment) -> Mapping[str, str]:
        """Return the variables that the assignment and this node give to the node's first worker."""

    def kept_folder(self, error_file: str) -> str:
        """Return the folder of a worker's error file, empty if it is removed when the agent exits."""

    def leave(self, signal_name: str, reason: str = "") -> None:
        """Leave the run because of this signal. Each further signal makes the agent leave faster."""

    def forwarded(self, signal_name: str) -> None:
        """Leave because of a signal that another process has forwarded. It counts once if it also comes directly."""

    def suspect(self, event: Suspected) -> None:
        """Report that workers may hang, unless all workers of that round have ended."""

    def noticed(self) -> None:
        """Tell the features that the workers have a notice of their round's end."""

    def fail(self, reason: str) -> None:
        """Report that the agent failed to provide something that the workers need to start or continue."""


class Feature:
    """One feature of an agent. Hooks do nothing by default.

    The agent calls the features in the order of the feature table. In each round it calls the hooks in this order:
    `joining`, `answered`, `starting`, `preparing`, `variables`, `cpus`, `sinks`, `started`, `noticed`. `answered` also
    follows each poll. The end of the workers has these hooks:

    - `interruption` and `errors_of_success`, if all workers exit 0. No other hook marks the end of such a round.
    - `explained`, `failed`, `stopping`, `judged` and `stopped`, if a worker fails. `judged` may take longer than the
      stop.
    - `stopping` and `stopped`, if the agent stops the workers for another reason, even before they have started.
    """

    start_worker: StartWorker | None = None
    """Start a worker in place of the agent, None to let the agent do it."""
    hosts_store = False
    """Whether the feature can host the workers' store."""
    preparation = ""
    """Phrase about what `preparing` does, for people: "it imports modules". Empty if it takes no time."""
    leave_notice_s: float | None = None
    """Most seconds that a leaving agent waits until the workers of all nodes have saved. None means no wait."""

    def __init__(self, kernel: Kernel, options: Any = None) -> None:
        """`options`: the feature's own options if it has flags. Acquire only resources that `close` releases."""
        self.kernel = kernel

    async def open(self) -> None:
        """Acquire what the feature needs before the agent contacts a server. Raises `UsageError`."""

    def began(self) -> None:
        """Called once, before the agent has its node checked or joins."""

    def performing(self, effect: OwnEffect) -> bool:
        """Called with each effect of the machine that is not a request to the server.

        Return True if the feature has carried it out. Then the agent does not ask later features, and does nothing
        itself.
        """
        return False

    async def unfit(self, after_failure: bool) -> str:
        """Return why this node must not take part, with the evidence; empty if it may.

        If a feature overrides this hook, the agent calls it before the first join, and again after workers have run.
        This is before the next join, or before the agent exits if its worker has ended the run. `after_failure`:
        whether a worker of this node has failed since the last check. The first reason ends the check, so the agent
        does not ask later features. It cancels the call if it exits before.

        A feature may call `Kernel.leave` instead. Before the first join, the agent then leaves without joining.
        """
        return ""

    def member(self, is_member: bool) -> None:
        """Called at the start, and when the agent becomes or stops being a member of its run."""

    def joining(self) -> None:
        """Called before the agent sends a join, also if the join only reports that the node is unfit."""

    def answered(self, answer: Reply | ProtocolError) -> None:
        """Called when the server answers or refuses a join or a poll, before the machine handles the answer."""

    def polling(self, request: PollRequest, now: float) -> PollRequest:
        """Return the next poll with what this feature reports or asks for. Called before each poll."""
        return request

    def leaving(self) -> None:
        """Called when the agent is asked to leave the run, and again if it is asked to leave faster."""

    def starting(self, assignment: Assignment) -> None:
        """Called when a round has begun, before its workers are started."""

    async def preparing(self, assignment: Assignment) -> None:
        """Prepare what the round's workers need. Their logs are open.

        If the temporary folder could not be made, `Kernel.temp_dir.is_made` is False. The agent cancels the call if it
        stops the workers before they have started.
        """

    def variables(self, assignment: Assignment, local_rank: int) -> Mapping[str, str]:
        """Return variables for a worker. Launchers that the worker starts do not inherit them."""
        return {}

    def cpus(self, local_rank: int) -> Collection[int]:
        """Return the CPUs that a worker may use, empty for no restriction."""
        return ()

    def sinks(self, local_rank: int, *, is_shown: bool) -> Sequence[Sink]:
        """Return sinks for a stream of a worker. `is_shown`: whether the console shows the stream."""
        return ()

    def started(self, assignment: Assignment, pids: Mapping[int, int]) -> None:
        """Called when the workers have been started.

        `pids`: their pids by local rank. If a worker could not be started, its pid is missing, and perhaps later ones.
        """

    def noticed(self) -> None:
        """Called when the workers get a notice: until their round ends, they may save, wait or exit."""

    def interruption(self) -> Awaitable[bool] | None:
        """Return whether the workers, which have all exited 0, were asked to end. None means certainly not."""
        return None

    async def errors_of_success(self, found: Callable[[ReportedError], None]) -> None:
        """Log the errors of the workers, which have all exited 0 nevertheless, and call `found` with each.

        The report of their success waits for a moment, and contains those that are found by then. An agent that exits
        waits until this returns.
        """

    def explained(self, failure: Failure) -> Failure:
        """Return a failure with what the feature knows about it.

        The agent calls it with each failure that it reports or logs, before `failed`.
        """
        return failure

    def failed(self, failure: Failure) -> None:
        """Called with the failure of the round on this node, not with others that follow from it.

        It is the failure of a worker that this node reports, or one that `Kernel.fail` reports.
        """

    async def judged(self, failure: Failure) -> Failure:
        """Return the failure with the feature's verdict. The failure's report waits for features that override this.

        The agent cancels the call if it exits before, or has another failure judged.
        """
        return failure

    def stopping(self) -> None:
        """Called when the agent is about to stop the workers, and again if it has to stop them sooner.

        If all workers exit 0 by themselves, there is nothing to stop, and the agent does not call it.
        """

    def stopped(self) -> None:
        """Called when the workers have been stopped: they have ended or survived SIGKILL, or were not started.

        If all workers exit 0 by themselves, the agent does not call it. Release what belongs to such a round in the
        next round's `joining` or `starting`, or in `close`.
        """

    async def answer(self, query: Query) -> QueryAnswer:
        """Answer a query from the server, of a kind that the feature's options or the table of features list.

        The agent cancels the call at the query's deadline. If the feature is not on, the agent creates it for its first
        query, and calls no other hook.
        """
        raise NotImplementedError

    def ended(self, exit_code: ExitCode) -> None:
        """Called when the agent exits, unless it aborts after an internal error."""

    async def close(self) -> None:
        """Release everything, even if `open` has failed or was not called.

        The workers have ended or been killed, and their output has been shown.
        """


def load(name: str) -> Callable[..., Feature]:
    """Import and return a feature's class, given as `module:Class`."""
    module, _, attribute = name.partition(":")
    found: Callable[..., Feature] = getattr(import_module(module), attribute)
    return found
