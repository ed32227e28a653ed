"""`elastic_launch`: an agent within a program, which runs a function or a command on this node as part of a run.

The agent is a thread with its own event loop. So it continues during any other work of the program, also in a notebook
and under asyncio.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any, Generic, TypeVar, overload

from node_agent import words
from node_agent.agent import ERROR_FILE_S, Agent
from node_agent.compat.api.default_logs_specs import LogsSpecs, by_logs_specs
from node_agent.compat.api.entrypoint import Command, Entry, make_entry, with_local_rank
from node_agent.compat.api.errors import (
    ChildFailedError,
    LaunchError,
    SignalException,
    in_torchs_terms,
    process_failure,
)
from node_agent.compat.api.launch_config import LaunchConfig, Plan, as_ours, make_plan
from node_agent.compat.api.loop_thread import ApiConsole, LoopThread
from node_agent.compat.api.signals import SignalWatch
from node_agent.features.event_log.feature import EventLog
from node_agent.kernel.config import AgentConfig, UsageError
from node_agent.kernel.core.effects import StopWorkers, WriteFailureReport
from node_agent.kernel.failures import error_file
from node_agent.kernel.failures.report import paint, report
from node_agent.kernel.leave_signals import Requests
from node_agent.kernel.output.console import Console
from node_agent.kernel.output.routing import PluginFailed, Routing
from node_agent.kernel.tasks import spawn
from node_agent.kernel.threads import in_thread
from node_agent.kernel.workers.spec_maker import SpecMaker
from node_agent.servers.modes import server_of

R = TypeVar("R")

_Result = dict[int, Any] | Exception
"""Return values of the workers, or the exception for the caller's thread, without the agent's own traceback."""


class elastic_launch(Generic[R]):
    """Runs `entrypoint` as this node's part of a run; torch's class of that name.

    `elastic_launch(config, entrypoint)(*args)` returns the return value of each worker of this node, by global rank.

    - If `entrypoint` is a function, each worker calls it with `args`.
    - If `entrypoint` is a program, or a list of a program and its first arguments, `args` follow as texts. Its return
      value is None.
    - In texts among `args`, `${local_rank}` is the worker's local rank.
    - `health_check_server` is torch's, and must be None.

    A call raises:

    - `ChildFailedError` if a worker of the run failed for good, on this node or another.
    - `OSError`, such as `FileNotFoundError`, if the program could not be started here.
    - `LaunchError` if the run did not start or ended for another reason.
    - `ValueError` or `TypeError` for invalid arguments, before anything starts.

    A signal in `config.signals_to_handle` stops the workers. Then the call raises `SignalException`, or
    `KeyboardInterrupt` for SIGINT. It sets handlers only in the main thread, and only for signals without a handler of
    the program. It restores the previous handlers at the end.
    """

    @overload
    def __init__(
        self: "elastic_launch[None]", config: LaunchConfig, entrypoint: Command, health_check_server: None = None
    ) -> None: ...

    @overload
    def __init__(
        self, config: LaunchConfig, entrypoint: Callable[..., R], health_check_server: None = None
    ) -> None: ...

    def __init__(
        self, config: LaunchConfig, entrypoint: Callable[..., Any] | Command, health_check_server: None = None
    ) -> None:
        if health_check_server is not None:
            raise ValueError(words.api.NO_HEALTH_CHECK_SERVER)
        self._config = as_ours(config)
        self._entrypoint = entrypoint

    def __call__(self, *args: Any) -> dict[int, R]:
        """Run the entrypoint, and return its values by global rank when the run has ended."""
        return self._launch(self._plan(args), args).run()

    async def launch_async(self, *args: Any) -> dict[int, R]:
        """Do the same as `elastic_launch(...)(*args)`, for asyncio. Cancelling it stops the workers and returns when
        they have ended.
        """
        plan = await asyncio.to_thread(self._plan, args)  # looks names and devices up, which may take time
        return await self._launch(plan, args).run_async()

    def _plan(self, args: tuple[Any, ...]) -> Plan:
        return make_plan(self._config, _title(self._entrypoint, args))

    def _launch(self, plan: Plan, args: tuple[Any, ...]) -> "_Launch":
        each = {rank: with_local_rank(args, rank) for rank in range(plan.launch.config.join.local_world_size)}
        return _Launch(plan, make_entry(self._entrypoint, each, self._config.start_method))


def launch_agent(
    config: LaunchConfig,
    entrypoint: Callable[..., Any] | Command | None,
    args: Sequence[Any],
    health_check_server: None = None,
) -> dict[int, Any]:
    """Run the entrypoint as `elastic_launch(config, entrypoint)(*args)` does; torch's function of that name."""
    return elastic_launch(config, entrypoint, health_check_server)(*args)  # type: ignore[arg-type]


class _Launch:
    """One call of `elastic_launch`."""

    def __init__(self, plan: Plan, entry: Entry) -> None:
        self._plan = plan
        self._entry = entry
        self._signal: signal.Signals | None = None
        self._requests = Requests()
        self._thread = LoopThread("elastic_launch", self._main)
        self._task: asyncio.Task[Any] | None = None
        self._agent: LaunchedAgent | None = None
        self._gave_up = False

    def run(self) -> dict[int, Any]:
        with closing(SignalWatch(self._plan.launch.config.program_signals, self._signalled)):
            self._thread.run(self._interrupted)
        return self._outcome()

    async def run_async(self) -> dict[int, Any]:
        with closing(SignalWatch(self._plan.launch.config.program_signals, self._signalled)):
            await self._thread.run_async(self._interrupted)
        return self._outcome()

    def _outcome(self) -> dict[int, Any]:
        if self._signal:
            message = words.api.signalled(os.getpid(), self._signal.name)
            raise in_torchs_terms(SignalException)(message, self._signal)
        result = self._thread.result.result()
        if isinstance(result, Exception):
            raise result
        return result

    def _signalled(self, signum: signal.Signals) -> None:
        self._signal = signum
        if self._requests.take():
            self._thread.call(self._leave, signum.name)

    def _interrupted(self, error: BaseException) -> None:
        if not isinstance(error, KeyboardInterrupt):
            self._thread.call(self._leave, "SIGTERM")
        elif self._requests.take():
            self._thread.call(self._leave, "SIGINT")

    # Methods that run in the agent's thread.

    async def _main(self) -> _Result:
        console = ApiConsole("elastic_launch", asyncio.get_running_loop())
        self._task = asyncio.current_task()
        try:
            if self._gave_up:
                raise asyncio.CancelledError
            return await self._run_agent(console)
        except asyncio.CancelledError:
            return LaunchError(words.api.NEVER_STARTED)
        except UsageError as error:
            return LaunchError(str(error))
        finally:
            self._entry.close()
            console.close()

    async def _run_agent(self, console: Console) -> _Result:
        launch = self._plan.launch
        agent = LaunchedAgent(launch.config, console, self._entry, self._plan.custom_logs, self._plan.events)
        try:
            await agent.open()
            async with server_of(launch, console) as (make_transport, where):
                self._agent = agent
                exit_code = await agent.run(make_transport, where)
        finally:
            await agent.close()
        if exit_code:
            return self._not_started(agent) or agent.error()
        return {agent.first_rank + rank: value for rank, value in self._entry.values().items()}

    def _not_started(self, agent: "LaunchedAgent") -> OSError | None:
        """Return why the program could not be started here, if that ended the run. Torch raises the same error."""
        error = self._entry.not_started
        if error is not None:
            error.__cause__ = agent.error()
        return error

    def _leave(self, signal_name: str) -> None:
        """Make the agent leave because of this signal. Each further call makes it leave faster."""
        self._gave_up = True
        if self._agent and not self._agent.is_done:
            self._agent.leave(signal_name)
        elif self._task:
            self._task.cancel()  # it has no workers: it has not started, or waits for other nodes at the end


class LaunchedAgent(Agent):
    """Agent that runs an entry. `custom_logs`: the program's own `LogsSpecs`, or None."""

    shutdown_timeout_name = "shutdown_timeout"

    def __init__(
        self,
        config: AgentConfig,
        console: Console,
        entry: Entry,
        custom_logs: LogsSpecs | None,
        events: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(config, console)
        self._entry = entry
        self._specs = SpecMaker(config, self.temp_dir, entry.start)
        if custom_logs is not None:
            self._logs.plugin = _CustomLogs(custom_logs)
        if events is not None:
            self._features.append(EventLog(self, write=events))
        self.failure_report: WriteFailureReport | None = None
        """Report of why the run or this agent has failed."""
        self.recorded: dict[str, Any] | None = None
        """Content of the error file of the worker that ended the run, if it was on this node."""

    @property
    def first_rank(self) -> int:
        """The global rank of local rank 0 in the last round."""
        return self.assignment.first_rank if self.assignment else 0

    @property
    def is_done(self) -> bool:
        """Whether the agent has ended. It then has no workers."""
        return self._exit_code.done()

    def _write_failure_report(self, effect: WriteFailureReport) -> None:
        """Keep the report for the program, which gets an exception and decides what to write."""
        self.failure_report = effect
        if effect.failure:
            copy = partial(error_file.copy, self._own_error_file(effect.failure), effect.failure.exit_code)
            self._leaving_error = spawn(self._keep_recorded(copy))

    async def _keep_recorded(self, copy: Callable[[], dict[str, Any] | None]) -> None:
        with suppress(OSError):
            self.recorded = await in_thread(copy, ERROR_FILE_S)

    def error(self) -> Exception:
        """Return the exception for the run's failure: `ChildFailedError` for workers of any node, otherwise
        `LaunchError`.
        """
        outcome, title = self.failure_report, self.config.command.title
        if outcome is None:
            return LaunchError(words.api.HAS_LEFT)
        if outcome.finish is None or outcome.finish.failure is None:
            return LaunchError(outcome.finish.reason if outcome.finish else outcome.error)
        finish, root = outcome.finish, outcome.finish.failure
        text = paint(report(finish, title), is_coloured=False).decode()
        failures = {root.rank: process_failure(root, self.recorded)}
        for failure in finish.others:
            failures.setdefault(failure.rank, process_failure(failure))
        return in_torchs_terms(ChildFailedError)(title, failures, f"\n{text}")

    def workers(self) -> Mapping[int, int]:
        """Return the pids of running workers that have not returned. A worker that waits for others does not hang."""
        workers = super().workers().items()
        return {local_rank: pid for local_rank, pid in workers if local_rank not in self._entry.returned}

    def _stop_workers(self, stop: StopWorkers) -> None:
        self._entry.let_go()
        super()._stop_workers(stop)

    def open_port(self) -> int:
        self._entry.forget()  # a new round: the values of the last one no longer count
        return super().open_port()


class _CustomLogs:
    """The program's own `LogsSpecs`, called once a round. `node-agent` runs a plug-in's in a separate process."""

    def __init__(self, specs: LogsSpecs) -> None:
        self._specs = specs

    async def reify(self, environments: Sequence[Mapping[str, str]]) -> Routing:
        try:
            return by_logs_specs(self._specs, environments)
        except Exception as error:
            raise PluginFailed(f"logs_specs: {type(error).__name__}: {error}") from error

    async def close(self) -> None:
        pass


def _title(entrypoint: Callable[..., Any] | Command, args: Sequence[Any]) -> str:
    """Return the name for reports, by torch's rules. For `python -u train.py` it is the script."""
    if callable(entrypoint):
        return str(getattr(entrypoint, "__name__", repr(entrypoint)))
    if not isinstance(entrypoint, str | os.PathLike | list | tuple):
        return ""  # it is refused later, when an entry is made from it
    command = [os.fspath(entrypoint)] if isinstance(entrypoint, str | os.PathLike) else [*entrypoint]
    if command[:1] == [sys.executable]:
        return next((str(word) for word in [*command[1:], *args] if not str(word).startswith("-")), "")
    return str(next(iter(command), ""))
