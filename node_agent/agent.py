"""The agent from start to end: it takes a launch plan and returns an exit code.

This module does what every agent does. Everything else is a feature: see `node_agent.features`.
"""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial

from msgspec.structs import replace
from rdzv_protocol import hung_disks, late_signals
from rdzv_protocol.constraints import sendable
from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.messages import Assignment, Failure, Finish, PollRequest, Reply, ReportedError, ReportRequest, Start

from node_agent import words
from node_agent.features.enabled import Features, Queries
from node_agent.kernel import late_imports
from node_agent.kernel.config import AgentConfig, LaunchPlan
from node_agent.kernel.core.effects import (
    Ask,
    CheckNode,
    Exit,
    JudgeFailure,
    Level,
    Log,
    OwnEffect,
    StartWorkers,
    StopWorkers,
    WriteFailureReport,
)
from node_agent.kernel.core.events import (
    Answer,
    FailureJudged,
    GaveUp,
    NodeChecked,
    Signalled,
    Started,
    Suspected,
    WorkerFailed,
    WorkersStopped,
    WorkersSucceeded,
)
from node_agent.kernel.core.failure_reporter import log_line
from node_agent.kernel.core.machine import CAUSE_TIMEOUT_S, AgentMachine
from node_agent.kernel.environment import omp_warning
from node_agent.kernel.feature import StartedWorkers
from node_agent.kernel.leave_signals import LeaveSignals
from node_agent.kernel.output.console import HELD_S, Console
from node_agent.kernel.output.logs import AgentLogs, RoundLogs
from node_agent.kernel.output.routing import PluginFailed
from node_agent.kernel.output.sinks import Sink
from node_agent.kernel.processes import temp_dir
from node_agent.kernel.processes.leftovers import is_program
from node_agent.kernel.processes.orphans import Orphans, new_mark
from node_agent.kernel.processes.ports import ReservedPort
from node_agent.kernel.processes.process import given_up
from node_agent.kernel.processes.temp_dir import REMOVED_WITHIN_S, TempDir
from node_agent.kernel.runner import Facts, Runner
from node_agent.kernel.tasks import spawn
from node_agent.kernel.threads import in_thread
from node_agent.kernel.transport.retrying import Transport
from node_agent.kernel.workers.group import WorkerGroup
from node_agent.kernel.workers.progress_files import ProgressFiles
from node_agent.kernel.workers.spec_maker import SpecMaker
from node_agent.servers.modes import server_of

GUARDED_AFTER_S = 0.001
"""Seconds until the agent starts its guardian. A server that is near has the join by then, so the two overlap."""
MOST_OTHERS = 8
"""Most failures of this node's workers in the final report, beside the one that ended the run."""
ERROR_FILE_S = 2.0
"""Most seconds that an exiting agent waits until its own error file is written."""


def run(plan: LaunchPlan) -> int:
    """Run the agent in this process and return its exit code.

    Raises `UsageError` if the agent should host a server but cannot.
    """
    with asyncio.Runner(loop_factory=_Loop) as runner:
        exit_code = runner.run(_run(plan))
    return exit_code.as_torchruns if plan.has_torchruns_exit_codes else exit_code


class _Loop(asyncio.SelectorEventLoop):
    def _check_signal(self, sig: int) -> None:
        """Accept the signal: asyncio lists all signals to check one, which takes 0.05 ms for each handler."""


async def _run(plan: LaunchPlan) -> ExitCode:
    signals = LeaveSignals(plan.config.signals)
    signals.listen()  # first: a signal then makes the agent leave, and does not end it in the middle of its start
    console = Console(plan.config.lines, asyncio.get_running_loop())
    console.context.update({"run_id": plan.config.join.run_id, "node_id": plan.config.join.node_id})
    orphans = Orphans(new_mark())
    config = replace(plan.config, environment={**plan.config.environment, **orphans.mark})
    agent = Agent(config, console, orphans, signals)
    hung_disks.end()
    try:
        await agent.open()
        async with server_of(plan, console) as (make_transport, where):
            late_imports.end()
            return await agent.run(make_transport, where)
    finally:
        await agent.close()
        for pid in orphans.close():
            console.log(given_up(pid))
        console.close()
        remove_handler = asyncio.get_running_loop().remove_signal_handler
        late_signals.ignore((signal.Signals[name] for name in config.signals), remove_handler)


class Agent:
    """Agent of one node, with its own workers, from the join to the leave."""

    shutdown_timeout_name = "--shutdown-timeout"
    """Name of the workers' grace, for messages."""

    def __init__(
        self,
        config: AgentConfig,
        console: Console,
        orphans: Orphans | None = None,
        signals: LeaveSignals | None = None,
    ) -> None:
        self.config = config
        self.console = console
        self.orphans = orphans
        self.temp_dir = TempDir()
        self.port: ReservedPort | None = None
        self.preparation = ""
        self.assignment: Assignment | None = None
        self.started: StartedWorkers | None = None
        self._features = Features(self)
        start_worker = next((each.start_worker for each in self._features if each.start_worker), None)
        self._specs = SpecMaker(config, self.temp_dir, start_worker)
        self._logs = AgentLogs(
            config, console, self.temp_dir, lambda reason: self._runner.feed(GaveUp(reason)), self._sinks
        )
        self._signals = signals or LeaveSignals()
        self._starting: asyncio.Task[None] | None = None
        """Task that starts workers. It waits for their files, for a plug-in's answer, and for what features prepare."""
        self._guarding: asyncio.TimerHandle | None = None
        """Timer of the guardian's start. Before a check or the first workers, the agent starts it at once."""
        self._checking: asyncio.Task[None] | None = None
        self._judging: asyncio.Task[None] | None = None
        self._leaving_error: asyncio.Task[None] | None = None
        self._exit_code: asyncio.Future[ExitCode] = asyncio.get_running_loop().create_future()
        self._runner: Runner
        self._queries = Queries(
            config.join.node_id, self._features, self.console, lambda *answer: self._runner.feed(Answer(*answer))
        )
        self._errors: list[ReportedError] = []
        """Errors of the workers that have all exited 0, as far as they are known."""
        self._finding: asyncio.Task[None] | None = None
        """Task that finds these errors."""
        self._other_failures: list[Failure] = []
        """Failures of the last round's workers beside the reported one."""
        self._has_shutdown_timeout = True
        """Whether the workers' last stop gave them the user's `--shutdown-timeout`, not the time of a drain."""
        self._is_closed = False

    async def open(self) -> None:
        """Acquire what the agent needs before it contacts a server. Raises `UsageError`; call `close` even then."""
        for feature in self._features:
            await feature.open()

    async def run(self, make_transport: Callable[[], Transport], where: str) -> ExitCode:
        """Join the run, supervise the workers, and return the process's exit code.

        `where`: the server's name for people. `make_transport`: opens a connection to that server.
        """
        loop = asyncio.get_running_loop()
        self._runner = Runner(
            replace(self.config, join=replace(self.config.join, log_dir=self._logs.announced_path)),
            make_transport,
            where,
            self,
            loop,
            self._features.capabilities,
            member=self._is_member,
            completed=self._with_errors,
        )
        if "TMPDIR" in os.environ:
            spawn(self._warn_of_tmpdir())
        if self.config.join.addr:
            spawn(self._warn_of_address(self.config.join.addr))
        for feature in self._features:
            feature.began()
        self._signals.hand_to(self.leave)  # before the join: an agent that is to leave does not join
        loop.call_soon(self._runner.feed, Started())
        self._guarding = loop.call_later(GUARDED_AFTER_S, self._guard)
        try:
            return await self._exit_code
        finally:
            async with AsyncExitStack() as closing:  # each step runs even if another one fails
                closing.push_async_callback(self.close)
                closing.push_async_callback(self._logs.close)
                closing.callback(self._forget_workers)  # before the logs: they show the last output
                closing.push_async_callback(self._runner.close)
                closing.callback(self._queries.close)

    async def close(self) -> None:
        """Release what the agent holds, even if it has not run. May be called more than once."""
        if self._is_closed:
            return
        self._is_closed = True
        async with AsyncExitStack() as closing:  # each step runs even if another one fails
            closing.push_async_callback(self._remove_temp_dir)
            closing.push_async_callback(self._error_file_left)
            if self.port:
                closing.callback(self.port.release)
            for feature in reversed(self._features):
                closing.push_async_callback(feature.close)
            closing.push_async_callback(self._end_tasks)
            closing.push_async_callback(self._errors_logged)
            closing.callback(self._forget_workers)

    async def _end_tasks(self) -> None:
        """Cancel the start of workers, and the questions to the features about this node and about a failure."""
        tasks = [each for each in (self._starting, self._checking, self._judging) if each]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _warn_of_tmpdir(self) -> None:
        if warning := await in_thread(temp_dir.warning):
            self.console.log(warning)

    async def _warn_of_address(self, addr: str) -> None:
        """Warn if the address that other nodes get for this node is a name that this node cannot look up."""
        from node_agent.kernel.transport import name_lookup

        if why := await name_lookup.why_unknown(addr):
            self.console.log(words.connection.own_name_unknown(addr, why))

    def leave(self, signal_name: str, reason: str = "") -> None:
        """Leave the run because of this signal. Each further signal makes the agent leave faster."""
        for feature in self._features:
            feature.leaving()
        ago_s = self.started.succeeded_ago_s(asyncio.get_running_loop().time()) if self.started else None
        self._runner.feed(Signalled(signal_name, reason, ago_s))

    def forwarded(self, signal_name: str) -> None:
        """Leave because of a signal that another process has forwarded. It counts once if it also comes directly."""
        self._signals.come(signal_name, is_forwarded=True)

    def _is_member(self, is_member: bool) -> None:
        for feature in self._features:
            feature.member(is_member)

    # Host of the runner: carry out the machine's effects.

    def open_port(self) -> int:
        """Reserve the MASTER_PORT of the next round: a fresh one each round unless the user chose one."""
        for feature in self._features:
            feature.joining()
        if self.port is None or self.config.master_port is None:
            used, self.port = self.port, ReservedPort(self.config.master_port or 0)
            if used:
                used.release()  # after the new port was reserved, so that the two differ
        return self.port.number

    def filled(self, request: Facts) -> Facts:
        now, started = asyncio.get_running_loop().time(), self.started
        if started:
            started.group.look()  # the agent is awake anyway, because it is about to send a message
            if self.orphans:
                self.orphans.look()
            request = replace(request, progress=started.progress.summary(now), finished=started.finished(now))
        if isinstance(request, PollRequest):
            held_s = self._console_held_s(now) if started else None
            return self._polling(replace(request, console_held_s=held_s), now)  # type: ignore[return-value]
        return replace(request, ago_s=started.failed_ago_s(now) if started else 0.0)

    def _polling(self, request: PollRequest, now: float) -> PollRequest:
        for feature in self._features:
            request = feature.polling(request, now)
        return request

    async def _with_errors(self, report: ReportRequest) -> ReportRequest:
        """Return the report, with the errors of workers that have exited 0 if they are known within `CAUSE_TIMEOUT_S`.

        In that time, a signal withdraws the success anyway. So a slow disk does not decide whether it counts.
        """
        if report.failure or not self._finding:
            return report
        await asyncio.wait([self._finding], timeout=CAUSE_TIMEOUT_S)
        return replace(report, errors=tuple(self._errors))

    def _console_held_s(self, now: float) -> float | None:
        """Return the seconds for which the console has taken nothing, None if they are few."""
        since = self.console.held_since
        return None if since is None or now - since < HELD_S else sendable(now - since)

    def perform(self, effect: OwnEffect) -> None:
        if not any(feature.performing(effect) for feature in self._features):
            self._carry_out(effect)

    def _carry_out(self, effect: OwnEffect) -> None:
        match effect:
            case StartWorkers(assignment):
                self._start_workers(assignment)
            case StopWorkers():
                self._stop_workers(effect)
            case JudgeFailure(round_, failure):
                if self._judging:
                    self._judging.cancel()
                self._judging = spawn(self._judge(round_, failure))
            case CheckNode(after_failure):
                self._checking = spawn(self._check_node(after_failure))
            case Log(text, level, event):
                self.console.log(text, level, event)
            case WriteFailureReport():
                self._write_failure_report(effect)
            case Ask(query):
                self._queries.ask(query)
            case Exit(code):
                self._ended(code)

    async def _check_node(self, after_failure: bool) -> None:
        self._guard()
        unfit = ""
        for feature in self._features:
            if unfit := await feature.unfit(after_failure):
                break
        self._runner.feed(NodeChecked(unfit))

    async def _judge(self, round_: int, failure: Failure) -> None:
        for feature in self._features:
            failure = await feature.judged(failure)
        self._runner.feed(FailureJudged(round_, failure))

    def _start_workers(self, assignment: Assignment) -> None:
        if self.assignment is None:
            self._log_first_start(assignment)
        self.assignment = assignment
        for feature in self._features:
            feature.starting(assignment)
        self._forget_workers()
        self._starting = spawn(self._prepare_and_start(assignment))

    def _log_first_start(self, assignment: Assignment) -> None:
        """Log what stays the same in every round and what a user may want to change."""
        warning = omp_warning(self.config.environment, assignment.local_world_size)
        if warning and self.config.limits_threads:
            self.console.log(warning, Level.ROUTINE)
        if (preferred := self.config.join.preferred_rank) not in (None, assignment.group_rank):
            self.console.log(words.agent.node_rank_taken(preferred, assignment.group_rank), Level.NOTICE)

    def first_variables(self, assignment: Assignment) -> Mapping[str, str]:
        """Return the variables that the assignment and this node give to the node's first worker."""
        return self._specs.names(assignment)

    def kept_folder(self, error_file: str) -> str:
        """Return the folder of a worker's error file, empty if it is removed when the agent exits."""
        return self._specs.kept_folder(error_file)

    def _forget_workers(self) -> None:
        """Close the resources of the last round's workers. Workers that succeeded were never stopped."""
        if self.started:
            self.started.close()
            self.started = None

    def _stop_workers(self, stop: StopWorkers) -> None:
        for feature in self._features:
            feature.stopping()
        self._has_shutdown_timeout = stop.grace_s is None
        grace_s = self.config.shutdown_timeout_s if stop.grace_s is None else stop.grace_s
        if self.started is None:
            assert self.assignment
            if self._starting:
                self._starting.cancel()
            asyncio.get_running_loop().call_soon(self._workers_stopped, self.assignment.round, [])
        elif stop.kill:
            self.started.group.stop(signal.SIGKILL, 0.0)
        else:
            self.started.group.stop(signal.Signals[stop.signal_name], grace_s, seeks_cause=stop.seeks_cause)

    async def _prepare_and_start(self, assignment: Assignment) -> None:
        try:
            logs = await self._logs.open(assignment, lambda: self._specs.environments(assignment))
        except PluginFailed as error:
            self.fail(str(error))
            return
        try:
            for feature in self._features:
                self.preparation = feature.preparation
                await feature.preparing(assignment)
            self._start_group(assignment, logs)
        finally:
            self.preparation = ""
            logs.close_files()

    def _guard(self) -> None:
        """Start the guardian, unless this was called before."""
        guarding, self._guarding = self._guarding, None
        if guarding and self.orphans:
            guarding.cancel()
            self.orphans.guard(self.config.environment, self.temp_dir.folder, self.config.eviction_signals)

    def _start_group(self, assignment: Assignment, logs: RoundLogs) -> None:
        self._guard()
        round_, log_folder = assignment.round, self._logs.readable_path
        self._other_failures = []
        progress = ProgressFiles(round_, assignment.local_world_size, asyncio.get_running_loop().time())
        try:
            group = WorkerGroup(
                self._specs.specs(assignment, logs, progress, partial(self._variables, assignment), self._cpus),
                signals=self.config.eviction_signals,
                succeeded=lambda: self._workers_succeeded(round_),
                failed=lambda failure: self._worker_failed(round_, failure),
                raised=lambda failure: self._worker_failed(round_, failure, before_stop=True),
                failed_too=self._worker_failed_too,
                stopped=lambda left: self._workers_stopped(round_, left),
                exited=self.orphans.exited if self.orphans else lambda pid: None,
                leftovers=self.orphans.leftovers if self.orphans else None,
                is_last=assignment.used_restarts >= assignment.max_restarts,
                progress_times=lambda: progress.last_times(asyncio.get_running_loop().time()),
            )
        except BaseException:
            progress.close()
            raise
        progress.spawned_at = asyncio.get_running_loop().time()
        self.started = StartedWorkers(assignment, group, logs, log_folder, progress)
        if self.orphans:
            self.orphans.started(group.pids)
        for feature in self._features:
            feature.started(assignment, group.by_local_rank)

    def _variables(self, assignment: Assignment, local_rank: int) -> Mapping[str, str]:
        return {k: v for each in self._features for k, v in each.variables(assignment, local_rank).items()}

    def _cpus(self, local_rank: int) -> Collection[int]:
        return next((cpus for each in self._features if (cpus := each.cpus(local_rank))), ())

    def _sinks(self, local_rank: int, is_shown: bool) -> Sequence[Sink]:
        return [sink for each in self._features for sink in each.sinks(local_rank, is_shown=is_shown)]

    def _write_failure_report(self, effect: WriteFailureReport) -> None:
        from node_agent.kernel.failures import error_file, report

        if effect.finish:
            report.show(self._with_own(effect.finish), self.config, self._logs.kept_path, self.console)
        own = self._own_error_file(effect.failure)
        problems: list[str] = []
        leave = partial(error_file.leave, effect.error, effect.failure, own, self.config.environment, problems.append)

        async def log_problems() -> None:
            await in_thread(leave)
            for problem in problems:
                self.console.log(problem)

        self._leaving_error = spawn(log_problems())

    def _with_own(self, finish: Finish) -> Finish:
        """Return the report with the failures that only this agent knows, if this is the run's only node.

        With several nodes, every node shows the same report.
        """
        round_ = self.started.assignment if self.started else None
        if not self.started or not round_ or round_.group_world_size > 1 or round_.round != finish.round:
            return finish
        own = self._other_failures
        more = finish.more_failures + max(0, len(own) - MOST_OTHERS)
        return replace(finish, others=(*finish.others, *own[:MOST_OTHERS]), more_failures=more)

    async def _error_file_left(self) -> None:
        """Wait until the agent's own error file is written, for at most `ERROR_FILE_S`."""
        if self._leaving_error:
            await asyncio.wait([self._leaving_error], timeout=ERROR_FILE_S)

    async def _remove_temp_dir(self) -> None:
        """Remove the temporary folder, without waiting forever for a disk that hangs."""
        with suppress(OSError):
            await in_thread(self.temp_dir.remove, REMOVED_WITHIN_S)

    def _own_error_file(self, failure: Failure | None) -> str:
        """Return the path of the failed worker's error file, empty if the worker was not on this node."""
        if self.started is None or failure is None or failure.node_id != self.config.join.node_id:
            return ""
        return self.started.group.error_file(failure.pid)

    def answered(self, answer: Reply | ProtocolError) -> None:
        for feature in self._features:
            feature.answered(answer)
        match answer:
            case Reply(directive=Start(assignment=assignment)):
                self.console.context.update({"round": assignment.round, "group_rank": assignment.group_rank})

    def _ended(self, exit_code: ExitCode) -> None:
        for feature in self._features:
            feature.ended(exit_code)
        if not self._exit_code.done():
            self._exit_code.set_result(exit_code)

    def crashed(self, error: BaseException) -> None:
        from traceback import format_exception

        self.console.log(words.agent.bug("".join(format_exception(error)).rstrip()), Level.ERROR)

    def abort(self) -> None:
        if not self._exit_code.done():
            self._exit_code.set_result(ExitCode.FAILED)
        if self.started:
            self.started.group.stop(signal.SIGKILL, 0.0)

    # Events of the workers.

    @property
    def has_workers(self) -> bool:
        return self.started is not None and bool(self.started.group.pids)

    def workers(self) -> Mapping[int, int]:
        """Pids of the running workers, by local rank."""
        return self.started.group.by_local_rank if self.started else {}

    @property
    def machine(self) -> AgentMachine:
        """The agent's machine. Only available while the agent runs."""
        return self._runner.machine

    def suspect(self, event: Suspected) -> None:
        """Report that workers may hang, unless all workers of that round have ended."""
        self._runner.feed(event)

    def noticed(self) -> None:
        """Tell the features that the workers have a notice of their round's end."""
        for feature in self._features:
            feature.noticed()

    def _workers_succeeded(self, round_: int) -> None:
        if self.orphans:
            if not self.config.command.is_python:
                self._log_left_behind(self.orphans.leftovers())
            self.orphans.end()
        asked = [reason for feature in self._features if (reason := feature.interruption())]
        spawn(self._succeed(round_, asked))

    def _log_left_behind(self, leftovers: Collection[int]) -> None:
        """Log how many programs a wrapper, such as a shell, has left behind. Such a run may have done nothing."""
        assert self.started
        if left := self.started.group.left_behind.union(filter(is_program, leftovers)):
            self.console.log(words.workers.left_behind(len(left)))

    async def _succeed(self, round_: int, asked: list[Awaitable[bool]]) -> None:
        is_interrupted = any([await each for each in asked])
        self._finding = spawn(self._find_errors())
        self._runner.feed(WorkersSucceeded(round_, is_interrupted))

    async def _find_errors(self) -> None:
        found: list[ReportedError] = []
        self._errors = found
        for feature in self._features:
            await feature.errors_of_success(found.append)

    async def _errors_logged(self) -> None:
        """Wait until the errors of workers that have exited 0 are logged, also those that a report did not wait for."""
        if self._finding:
            await asyncio.wait([self._finding])

    def _worker_failed(self, round_: int, failure: Failure, *, before_stop: bool = False) -> None:
        failure = self._explained(failure)
        for feature in self._features:
            feature.failed(failure)
        self._runner.feed(WorkerFailed(round_, failure, before_stop))

    def _worker_failed_too(self, failure: Failure) -> None:
        """Log a failure that is not the round's, and keep it for the final report."""
        failure = self._explained(failure)
        self._other_failures.append(failure)
        self.perform(log_line(failure))

    def _explained(self, failure: Failure) -> Failure:
        if not self._logs.keeps_error_files:
            failure = replace(failure, error_file="")
        for feature in self._features:
            failure = feature.explained(failure)
        return failure

    def _workers_stopped(self, round_: int, left: list[int]) -> None:
        if self.started and (late := self.started.group.killed_late):
            limit = self.shutdown_timeout_name if self._has_shutdown_timeout else ""
            self.console.log(words.workers.killed_late(late.ranks, late.signal_name, late.within_s, limit))
        for pid in left:
            self.console.log(given_up(pid))
        if self.started:
            self.started.progress.close()
        if self.orphans:
            self.orphans.end()
        for feature in self._features:
            feature.stopped()
        signal_until = self.started.group.signal_until if self.started else 0.0
        self._runner.feed(WorkersStopped(round_, signal_until))

    def fail(self, reason: str) -> None:
        """Report that the agent failed to provide something that the workers need to start or continue."""
        assert self.assignment
        failure = Failure(
            node_id=self.config.join.node_id,
            rank=self.assignment.first_rank,
            local_rank=0,
            pid=0,
            exit_code=1,
            cause=reason,
            failed_at=time.time(),
        )
        self._worker_failed(self.assignment.round, failure)
