"""Life of an agent with workers of its own: launch plan in, exit code out."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace
from rdzv_protocol import VERSION
from rdzv_protocol.constraints import MAX_ITEMS
from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.messages import Assignment, Failure, FinishedWorkers, Progress, Reply, Start

from node_agent.config import PROGRAM, AgentConfig, LaunchPlan
from node_agent.core.effects import (
    Ask,
    CheckNode,
    Exit,
    Level,
    Log,
    MatchRules,
    OwnEffect,
    StartWorkers,
    StopWorkers,
    WriteFailureReport,
)
from node_agent.core.events import (
    Answer,
    Event,
    GaveUp,
    NodeChecked,
    RulesMatched,
    Signalled,
    Started,
    Suspected,
    WorkerFailed,
    WorkersStopped,
    WorkersSucceeded,
)
from node_agent.features.table import features_of
from node_agent.leave_signals import LeaveSignals
from node_agent.output.console import ERR, Console
from node_agent.output.logs import OPENED_WITHIN_S, AgentLogs, ReadableLogs, RoundLogs
from node_agent.output.routing import PluginFailed
from node_agent.output.threads import in_thread
from node_agent.queries import Queries, StartedWorkers, known
from node_agent.runner import CRASH_MARGIN_S, Runner
from node_agent.server_modes import server_of
from node_agent.transport.base import Transport, spawn
from node_agent.workers import temp_dir
from node_agent.workers.environment import ENABLE_FILE_TIMER, defaults, omp_warning
from node_agent.workers.group import WorkerGroup
from node_agent.workers.notice_board import NoticeBoard
from node_agent.workers.orphans import Orphans
from node_agent.workers.ports import ReservedPort
from node_agent.workers.process import given_up
from node_agent.workers.progress_files import ProgressFiles
from node_agent.workers.spec import SpecMaker
from node_agent.workers.store import StoreHost
from node_agent.workers.temp_dir import REMOVED_WITHIN_S, TempDir

if TYPE_CHECKING:
    from rdzv_protocol.service_manager import ServiceManager

    from node_agent.checks.pre_join import PreJoinCheck
    from node_agent.core.hang import Suspicion
    from node_agent.core.progress import Reading
    from node_agent.failures.rules import RuleMatch
    from node_agent.output.metrics import AgentMetrics, Facts
    from node_agent.output.observer import Observer
    from node_agent.workers.file_timer import FileTimer
    from node_agent.workers.hang_watch import HangWatch
    from node_agent.workers.warm.pool import WarmPool


LONGEST_NAME = 128
ERROR_FILE_S = 2.0
"""Longest time for which an agent waits at its end until its own error file is written."""


def run(plan: LaunchPlan, manager: "ServiceManager | None" = None, forwarded: int = -1) -> int:
    """Run the agent of this process, for its service manager if it has one.

    `forwarded`: descriptor from which the numbers of signals come that a supervisor forwards, a byte each; -1: none.
    Raises `UsageError` if it cannot host the server that it should.
    """
    exit_code = asyncio.run(_run(plan, manager, forwarded))
    return exit_code.as_torchruns if plan.has_torchruns_exit_codes else exit_code


async def _run(plan: LaunchPlan, manager: "ServiceManager | None", forwarded: int) -> ExitCode:
    console = Console(plan.config.lines, asyncio.get_running_loop())
    console.context.update({"run_id": plan.config.join.run_id, "node_id": plan.config.join.node_id})
    orphans = Orphans(os.urandom(8).hex())
    config = replace(plan.config, environment={**plan.config.environment, **orphans.mark})
    metrics = await open_metrics(config, console)
    try:
        async with server_of(plan, console, page=plan.config.status_page) as (make_transport, where):
            return await Agent(config, make_transport, where, console, orphans, manager, metrics, forwarded).run()
    finally:
        if metrics:
            await metrics.shutdown()
        for pid in orphans.close():
            console.log(given_up(pid))
        console.close()


class Agent:
    """Agent of one node, from its join to its leave, with workers of its own.

    `where` names the server for people, `make_transport` opens a connection to it.
    """

    def __init__(
        self,
        config: AgentConfig,
        make_transport: Callable[[], Transport],
        where: str,
        console: Console,
        orphans: Orphans | None = None,
        manager: "ServiceManager | None" = None,
        metrics: "AgentMetrics | None" = None,
        forwarded: int = -1,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._manager = manager
        self.orphans = orphans
        self.config = config
        self.console = console
        self._temp_dir = TempDir()
        self._warm = _warm_pool(config, console)
        if orphans and self._warm:
            orphans.expects = self._warm.expects
        self._specs = SpecMaker(config, self._temp_dir, self._warm.start_worker if self._warm else None)
        self._observers = _observers(config, console, metrics)
        self._hangs = self._hang_watch() if config.hangs.is_on else None
        self._logs = AgentLogs(
            config,
            console,
            self._temp_dir,
            lambda reason: self._runner.feed(GaveUp(reason)),
            self._first_output if config.traces else None,
            self._hangs.sink if self._hangs else None,
        )
        self._store_host = StoreHost(config.environment, self._fail, at_once=_preloads_torch(config))
        self._signals = LeaveSignals(config.signals, self.leave, forwarded)
        self._port: ReservedPort | None = None
        self.assignment: Assignment | None = None
        self._started: StartedWorkers | None = None
        self._starting: asyncio.Task[None] | None = None
        """Start of workers, which waits for their files, a plug-in's word about them, and until they can be warm."""
        self._leaving_error: asyncio.Task[None] | None = None
        self._file_timer: FileTimer | None = None
        self._check: PreJoinCheck | None = None
        self._rule_match: RuleMatch | None = None
        self._exit_code: asyncio.Future[ExitCode] = loop.create_future()
        joining = replace(config, join=replace(config.join, log_dir=self._logs.announced_path))
        self._runner = Runner(
            joining, make_transport, where, self, loop, hosts_store=self._store_host.is_available, queries=known(config)
        )
        self._queries = Queries(
            config, self._specs, console.log, lambda: self._started, lambda *answer: self._runner.feed(Answer(*answer))
        )
        self._features = features_of(self)
        if metrics:
            metrics.read = self._facts

    async def run(self) -> ExitCode:
        """Join, supervise, and return the process's exit code."""
        loop = asyncio.get_running_loop()
        self._signals.listen()
        spawn(self._warn_of_tmpdir())
        if self._manager:
            self._manager.watch(loop.call_later)
        for feature in self._features:
            feature.began()
        loop.call_soon(self._runner.feed, Started())
        if self.orphans:  # soon: while the server is asked
            loop.call_soon(self.orphans.guard, self.config.environment, self._temp_dir.folder)
        try:
            return await self._exit_code
        finally:
            async with AsyncExitStack() as closing:  # all of it, whatever fails
                closing.push_async_callback(self._remove_temp_dir)
                closing.push_async_callback(self._error_file_left)
                for observer in self._observers:
                    closing.push_async_callback(asyncio.to_thread, observer.close)
                for feature in reversed(self._features):
                    closing.push_async_callback(feature.close)
                if self._port:
                    closing.callback(self._port.release)
                if self._file_timer:
                    closing.callback(self._file_timer.close)
                if self._warm:
                    closing.callback(self._warm.close)
                if self._hangs:
                    closing.callback(self._hangs.close)
                closing.callback(self._forget_workers)
                if self._check:
                    closing.callback(self._check.close)
                if self._rule_match:
                    closing.callback(self._rule_match.close)
                closing.callback(self._store_host.shutdown)
                closing.push_async_callback(self._logs.close)
                closing.push_async_callback(self._runner.close)
                closing.callback(self._queries.close)

    async def _warn_of_tmpdir(self) -> None:
        if warning := await in_thread(temp_dir.warning):
            self.console.log(warning)

    def leave(self, signal_name: str, reason: str = "") -> None:
        """Leave the run because of this signal; each further one is more pressing."""
        self._tell_of_the_end()
        self.feed(Signalled(signal_name, reason))

    def feed(self, event: Event) -> None:
        """Tell the machine what happened."""
        self._runner.feed(event)

    def _tell_of_the_end(self) -> None:
        if self._manager:
            self._manager.stopping(self.config.shutdown_timeout_s + CRASH_MARGIN_S)

    # Host of the runner: what the machine wants done.

    def open_port(self) -> int:
        """Reserve the MASTER_PORT of the next round: a fresh one each round, unless the user chose one."""
        for observer in self._observers:
            observer.joining()
        self._store_host.close()  # that of a round whose workers have succeeded here is no longer needed anywhere
        if self._port is None or self.config.master_port is None:
            used, self._port = self._port, ReservedPort(self.config.master_port or 0)
            if used:
                used.release()  # after the new one was reserved, so that the two differ
        return self._port.number

    def progress(self) -> Progress | None:
        if self._started:  # a message is about to be sent: the agent is awake anyway
            self._started.group.look()
            if self.orphans:
                self.orphans.look()
        return self._started.progress.summary(asyncio.get_running_loop().time()) if self._started else None

    def finished(self) -> FinishedWorkers | None:
        if self._started is None or self.assignment is None:
            return None
        group, assignment = self._started.group, self.assignment
        if not group.pids or not 0 < len(group.finished_at) <= MAX_ITEMS:
            return None
        ago_s = asyncio.get_running_loop().time() - max(group.finished_at.values())
        ranks = tuple(sorted(assignment.first_rank + local_rank for local_rank in group.finished_at))
        return FinishedWorkers(round=assignment.round, ranks=ranks, ago_s=max(0.0, ago_s))

    def perform(self, effect: OwnEffect) -> None:
        if not any(feature.performing(effect) for feature in self._features):
            self._carry_out(effect)
        if self._manager and isinstance(effect, Log):
            self._manager.status(effect.text)

    def _carry_out(self, effect: OwnEffect) -> None:
        match effect:
            case StartWorkers(assignment):
                self._start_workers(assignment)
            case StopWorkers():
                self._stop_workers(effect)
            case MatchRules(round_, failure):
                self._match_rules(round_, failure)
            case CheckNode(after_failure):
                self._check_node(after_failure)
            case Log(text, level, event):
                self.console.log(text, level, event)
            case WriteFailureReport():
                self._write_failure_report(effect)
            case Ask(query):
                self._queries.ask(query)
            case Exit(code):
                self._ended(code)

    def _check_node(self, after_failure: bool) -> None:
        from node_agent.checks.pre_join import PreJoinCheck

        if self._check is None:
            assert self.config.node_check
            node_id, environment = self.config.join.node_id, self.config.environment
            self._check = PreJoinCheck(self.config.node_check, node_id, environment, self.console.log)
        self._check.start(after_failure, lambda unfit: self._runner.feed(NodeChecked(unfit)))

    def _start_workers(self, assignment: Assignment) -> None:
        if self.assignment is None:
            self._log_first_start(assignment)
        self.assignment = assignment
        for observer in self._observers:
            observer.starting(assignment)
        if assignment.agent_store and assignment.group_rank == 0:
            assert self._port
            self._store_host.open(self._port.socket)
        for feature in self._features:
            feature.starting(assignment)
        self._forget_workers()
        self._starting = spawn(self._prepare_and_start(assignment))

    def _log_first_start(self, assignment: Assignment) -> None:
        """Log what is the same in every round, and what a person may want to change."""
        if warning := omp_warning(self.config.environment, assignment.local_world_size):
            self.console.log(warning, Level.ROUTINE)
        if (wish := self.config.join.preferred_rank) not in (None, assignment.group_rank):
            text = f"--node-rank {wish} is another node's; this node has rank {assignment.group_rank}"
            self.console.log(text, Level.NOTICE)

    def first_variables(self, assignment: Assignment) -> Mapping[str, str]:
        return self._specs.names(assignment)

    def _forget_workers(self) -> None:
        """Close what belonged to the workers of the last round: they may have succeeded, and were not stopped."""
        if self._started:
            self._started.close()
            self._started = None

    def _stop_workers(self, stop: StopWorkers) -> None:
        if self._hangs:
            self._hangs.stop()
        grace_s = self.config.shutdown_timeout_s if stop.grace_s is None else stop.grace_s
        if self._started is None:
            assert self.assignment
            if self._starting:
                self._starting.cancel()
            asyncio.get_running_loop().call_soon(self._workers_stopped, self.assignment.round, [])
        elif stop.kill:
            self._started.group.stop(signal.SIGKILL, 0.0)
        else:
            self._started.group.stop(signal.Signals[stop.signal_name], grace_s)

    async def _prepare_and_start(self, assignment: Assignment) -> None:
        try:
            if self._warm:
                await self._warm.full()
            if self._logs.plugin:
                logs = await self._logs.ask(assignment, self._specs.environments(assignment))
            else:
                logs = await self._logs.open(assignment)
        except PluginFailed as error:
            self._fail(str(error))
            return
        try:
            await self._watch_timers()
            self._start_group(assignment, logs)
        finally:
            logs.close_files()

    def _start_group(self, assignment: Assignment, logs: RoundLogs) -> None:
        round_ = assignment.round
        readable = ReadableLogs(assignment, logs, self._logs.readable_path)
        progress = ProgressFiles(round_, assignment.local_world_size)
        notices = self._notice_board(assignment)
        try:
            group = WorkerGroup(
                self._specs.specs(assignment, logs, progress, notices),
                succeeded=lambda: self._workers_succeeded(round_),
                failed=lambda failure: self._worker_failed(round_, failure),
                stopped=lambda left: self._workers_stopped(round_, left),
                exited=self.orphans.exited if self.orphans else lambda pid: None,
                strays=self.orphans.strays if self.orphans else None,
            )
        except BaseException:
            progress.close()
            raise
        self._started = StartedWorkers(group, readable, progress, notices)
        if self.orphans:
            self.orphans.started(group.pids)
        if self._hangs and self.has_workers:
            self._hangs.start(assignment.ranks, assignment.world_size, self._runner.machine.answer_gap_s)
        for observer in self._observers:
            observer.started(assignment, group.pids)

    def _first_output(self, assignment: Assignment) -> None:
        for observer in self._observers:
            observer.first_output(assignment)

    def _notice_board(self, assignment: Assignment) -> NoticeBoard | None:
        if not self.config.gives_notices:
            return None
        if not self._temp_dir.is_made:
            folder = self._temp_dir.folder
            self.console.log(f"the workers cannot be told of notices: {folder} could not be made", Level.WARNING)
            return None
        return NoticeBoard(self._temp_dir, assignment.round, assignment.local_world_size, self.config.notice_signal)

    def _write_failure_report(self, effect: WriteFailureReport) -> None:
        from node_agent.failures import error_file, report

        if effect.finish:
            report.show(effect.finish, self.config, self._logs.kept_path, self.console)
        own = self._own_error_file(effect.failure)
        problems: list[str] = []
        leave = partial(error_file.leave, effect.error, effect.failure, own, self.config.environment, problems.append)

        async def log_problems() -> None:
            await in_thread(leave)
            for problem in problems:
                self.console.log(problem)

        self._leaving_error = spawn(log_problems())

    async def _error_file_left(self) -> None:
        """Wait until the agent's own error file is written, though not for ever."""
        if self._leaving_error:
            await asyncio.wait([self._leaving_error], timeout=ERROR_FILE_S)

    async def _remove_temp_dir(self) -> None:
        """Remove the temporary folder; an agent that ends does not wait for ever for its disk."""
        with suppress(OSError):
            await in_thread(self._temp_dir.remove, REMOVED_WITHIN_S)

    def _own_error_file(self, failure: Failure | None) -> str:
        """Path of the failed worker's error file; empty unless it was a worker of this node."""
        if self._started is None or failure is None or failure.node_id != self.config.join.node_id:
            return ""
        return self._started.group.error_file(failure.pid)

    def answered(self, answer: Reply | ProtocolError) -> None:
        if self._hangs and isinstance(answer, Reply):
            self._hangs.server_answered()
        if self._manager and isinstance(answer, Reply):
            self._manager.ready()  # it has been let in: it waits, stands by or has workers
        for observer in self._observers:
            observer.answered(answer)
        for feature in self._features:
            feature.answered(answer)
        match answer:
            case Reply(directive=Start(assignment=assignment)):
                self.console.context.update({"round": assignment.round, "group_rank": assignment.group_rank})

    def _ended(self, exit_code: ExitCode) -> None:
        self._tell_of_the_end()
        for observer in self._observers:
            observer.ended(exit_code)
        if not self._exit_code.done():
            self._exit_code.set_result(exit_code)

    def crashed(self, error: BaseException) -> None:
        from traceback import format_exception

        text = f"this is a bug, please report it:\n{''.join(format_exception(error)).rstrip()}"
        self.console.log(text, Level.ERROR)

    def abort(self) -> None:
        if not self._exit_code.done():
            self._exit_code.set_result(ExitCode.FAILED)
        if self._started:
            self._started.group.stop(signal.SIGKILL, 0.0)

    def _facts(self) -> "Facts":
        """State of this agent, for its metrics."""
        from node_agent.output.metrics import Facts

        assignment, group, join = self.assignment, self._started and self._started.group, self.config.join
        return Facts(
            run_id=join.run_id,
            node_id=join.node_id,
            is_member=self._runner.machine.is_member,
            round=self._runner.round,
            world_size=assignment.world_size if assignment else 0,
            restart_count=assignment.restart_count if assignment else 0,
            workers=assignment.local_world_size if assignment else 0,
            workers_running=len(group.pids) if group else 0,
            last_output_at=group.last_output_at if group else None,
            silent_s=self._runner.machine.outages.silent_s(asyncio.get_running_loop().time()),
        )

    # What happens to the workers.

    @property
    def has_workers(self) -> bool:
        return self._started is not None and bool(self._started.group.pids)

    async def _watch_timers(self) -> None:
        """Serve torch's file timer from the first round on, if the user wants it."""
        if self._file_timer is None and self.config.environment.get(ENABLE_FILE_TIMER) == "1":
            from node_agent.workers.file_timer import FileTimer, open_pipe

            path, report = self._specs.timer_file, self._timer_expired if self._hangs else None
            try:
                pipe = await in_thread(partial(open_pipe, path), OPENED_WITHIN_S, os.close)
            except OSError as error:
                self.console.log(f"no file timer: {error}")
            else:
                self._file_timer = FileTimer(path, pipe, self.console.log, self._is_worker, report)

    def _is_worker(self, pid: int) -> bool:
        return self._local_rank(pid) is not None

    def _local_rank(self, pid: int) -> int | None:
        """Local rank of the worker that this process is, or whose session it belongs to; None if it is gone."""
        try:
            leader = os.getsid(pid)
        except ProcessLookupError:
            return None
        workers = self._by_local_rank().items()
        return next((local_rank for local_rank, worker in workers if worker == leader), None)

    def _by_local_rank(self) -> Mapping[int, int]:
        """Pids of the workers that run."""
        return self._started.group.by_local_rank if self._started else {}

    def _hang_watch(self) -> "HangWatch":
        from node_agent.workers.hang_watch import HangWatch

        def read() -> "Mapping[int, Reading]":
            return self._started.progress.read() if self._started else {}

        environment, warn = self.config.environment, self.console.log
        return HangWatch(self.config.hangs, self._by_local_rank, read, self._suspected, environment, warn)

    def _timer_expired(self, pid: int, reason: str) -> None:
        local_rank = self._local_rank(pid)
        if self._hangs and local_rank is not None:
            self._hangs.timer_expired(local_rank, reason)

    def _suspected(self, told: "Suspicion") -> None:
        if self.assignment:
            ranks = tuple(self.assignment.first_rank + rank for rank in told.local_ranks)
            source = told.source[:LONGEST_NAME]
            round_ = self.assignment.round
            self._runner.feed(Suspected(round_, source, told.reason, ranks, told.silent_s, told.limit_s))

    def _workers_succeeded(self, round_: int) -> None:
        if self.orphans:
            self.orphans.end()
        notices = self._started.notices if self._started else None
        if notices and notices.is_given:
            spawn(self._succeed_after_notice(round_, notices))
        else:
            self._runner.feed(WorkersSucceeded(round_, False))

    async def _succeed_after_notice(self, round_: int, notices: NoticeBoard) -> None:
        self._runner.feed(WorkersSucceeded(round_, await notices.is_acknowledged()))

    def _worker_failed(self, round_: int, failure: Failure) -> None:
        if not self._logs.keeps_error_files:
            failure = replace(failure, error_file="")
        if self._file_timer and (late := self._file_timer.killed.get(failure.pid)):
            from node_agent.failures.diagnose import by_timer

            failure = by_timer(failure, late)
        for observer in self._observers:
            observer.failed(failure)
        self._runner.feed(WorkerFailed(round_, failure))

    def _match_rules(self, round_: int, failure: Failure) -> None:
        from node_agent.failures import rules

        def matched(judged: Failure, problem: str) -> None:
            self._rule_match = None
            if problem:
                self.console.log(f"warning: {problem}", Level.WARNING)
            self._runner.feed(RulesMatched(round_, judged))

        if self._rule_match:
            self._rule_match.close()
        try:
            self._rule_match = rules.RuleMatch(self.config.failure_rules, failure, self.config.environment, matched)
        except OSError as error:
            problem = rules.unmatched(f"failed: {error}")
            asyncio.get_running_loop().call_soon(matched, failure, problem)

    def _workers_stopped(self, round_: int, left: list[int]) -> None:
        for pid in left:
            self.console.log(given_up(pid))
        if self._started:
            self._started.progress.close()
        if self.orphans:
            self.orphans.end()
        self._store_host.close()
        if self._file_timer:
            self._file_timer.clear()
        self._runner.feed(WorkersStopped(round_))

    def _fail(self, reason: str) -> None:
        """Report that the workers cannot go on, or not begin, without something that the agent does for them."""
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


def _preloads_torch(config: AgentConfig) -> bool:
    return "torch" in {name.partition(".")[0] for name in config.preload}


def _warm_pool(config: AgentConfig, console: Console) -> "WarmPool | None":
    if not config.preload:
        return None
    from node_agent.workers.warm.pool import WarmPool

    workers = config.join.local_world_size
    environment = {**config.environment, **defaults(config.environment, workers)}
    return WarmPool(config.preload, config.command, environment, workers, console.log)


async def open_metrics(config: AgentConfig, console: Console) -> "AgentMetrics | None":
    """Metrics of the agent, if the user asked for a port. Raises `UsageError` if it cannot be bound."""
    if config.metrics_port is None:
        return None
    from node_agent.output.metrics import AgentMetrics

    metrics = AgentMetrics(config.metrics_port, console.log)
    await metrics.open()
    return metrics


def _observers(config: AgentConfig, console: Console, metrics: "AgentMetrics | None") -> "list[Observer]":
    """Observers that the user asked for."""
    observers: list[Observer] = [metrics] if metrics else []
    if config.traces:
        from rdzv_protocol.tracing import Attributes, SpanExport

        from node_agent.output.round_trace import RoundTrace

        about: Attributes = {"service.version": VERSION, "host.name": config.join.node_id, "process.pid": os.getpid()}
        observers.append(RoundTrace(config, SpanExport(PROGRAM, about, console.log)))
    if config.event_log == "console":
        from node_agent.output.event_log import EventLog

        observers.append(EventLog(config, lambda line: console.write(ERR, f"{line}\n".encode())))
    return observers
