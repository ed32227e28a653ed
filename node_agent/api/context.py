"""`start_processes`: copies of a function or a command on this machine, as torch starts them; no rendezvous, no ranks.

A thread of its own starts and supervises the processes. So they are supervised whatever the caller does, in a notebook
and under asyncio, too; and they live no longer than this process, which the kernel sees to.
"""

import asyncio
import atexit
import os
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from types import TracebackType
from typing import Any

from node_agent.api.entrypoint import Entry
from node_agent.api.errors import ProcessFailure, SignalException, in_torchs_terms
from node_agent.api.evidence import process_failure, unkillable
from node_agent.api.log_console import ApiConsole
from node_agent.api.loop_thread import Awaited, LoopThread, done
from node_agent.api.outputs import Outputs, OutputSettings
from node_agent.api.process_group import Endings, ProcessGroup
from node_agent.api.signals import SignalWatch
from node_agent.workers.group import WorkerSpec

CLOSE_TIMEOUT_S = 30.0


@dataclass
class RunProcsResult:
    """How the processes ended; every map is by local rank."""

    return_values: dict[int, Any] = field(default_factory=dict)
    """What functions returned; None for each command. Empty if any process failed."""
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    """First failed first. With commands, those that were stopped because another one failed, too."""
    stdouts: dict[int, str] = field(default_factory=dict)
    """The log file; empty where there is none."""
    stderrs: dict[int, str] = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Whether any process failed."""
        return bool(self.failures)


class PContext:
    """Processes that `start_processes` has started. All or nothing: when one fails, the others are stopped at once.

    A context manager, also an async one, that closes it in the end. Its methods may be called from any thread.
    """

    def __init__(
        self,
        entry: Entry,
        envs: Mapping[int, Mapping[str, str]],
        settings: OutputSettings,
        cpus: Sequence[Collection[int]] | None,
    ) -> None:
        self.name = settings.name
        self.nprocs = len(envs)
        self.stdouts: dict[int, str] = {}
        """Log files by local rank; empty where there is none."""
        self.stderrs: dict[int, str] = {}
        self.error_files: dict[int, str] = {}
        """Where each process leaves its exception, if it raises one."""
        self._entry = entry
        self._envs = envs
        self._settings = settings
        self._cpus = cpus
        self._home = os.getpid()
        self._pids: Awaited[dict[int, int]] = Awaited()
        self._group: ProcessGroup | None = None
        self._is_program_ending = False

    def pids(self) -> dict[int, int]:
        """The process ids by local rank, also of processes that have ended."""
        self._pids.wait()
        return self._pids.result()

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        """Wait until all processes are gone: all have succeeded, or one has failed and the others were stopped.

        None if that has not come about after `timeout` seconds; negative: wait for ever; 0: look. `period` is torch's,
        and has no effect: nothing is polled here. Raises `SignalException` for a signal that ends this process (only
        in the main thread), `LaunchError` if a return value cannot be unpickled here.
        """
        result = self._thread.result
        result.wait(inf if timeout < 0 else timeout)
        return self._concluded() if result.done() else None

    async def wait_async(self) -> RunProcsResult:
        """`wait` for asyncio, without a limit: within `asyncio.timeout` it has one. To cancel it stops no process."""
        await done(self._thread.result)
        return self._concluded()

    def close(self, death_sig: signal.Signals | None = None, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Stop the processes that still run, with their children: `death_sig` (SIGTERM), and SIGKILL after `timeout`.

        Returns when they are gone. A second Ctrl-C kills at once.
        """
        if os.getpid() != self._home:
            return  # a fork of the program: the processes are not its children
        self._ask_to_stop(death_sig, timeout)
        try:
            self._thread.result.wait()
        except BaseException:
            self._ask_to_stop(signal.SIGKILL, 0.0)
            self._thread.result.wait()
            raise
        finally:
            self._let_go()

    async def close_async(
        self,
        death_sig: signal.Signals | None = None,
        timeout: float = CLOSE_TIMEOUT_S,  # noqa: ASYNC109
    ) -> None:
        """`close` for asyncio. To cancel it kills the processes at once."""
        self._ask_to_stop(death_sig, timeout)
        try:
            await done(self._thread.result)
        except asyncio.CancelledError:
            self._ask_to_stop(signal.SIGKILL, 0.0)
            self._thread.result.wait()
            raise
        self._let_go()

    def __enter__(self) -> "PContext":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> "PContext":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close_async()

    # How it starts: for `start_processes` alone.

    def start(self, signals: tuple[str, ...]) -> None:
        """Return when all processes run, or raise why they do not. From now on `signals` raise `SignalException`."""
        self._begin(signals)
        try:
            self._pids.wait()
            self._pids.result()
        except BaseException:
            self.close(signal.SIGKILL)
            raise

    async def start_async(self) -> None:
        """`start` for asyncio, without signals."""
        self._begin(())
        try:
            await done(self._pids)
            self._pids.result()
        except BaseException:
            await self.close_async(signal.SIGKILL)
            raise

    def _begin(self, signals: tuple[str, ...]) -> None:
        self._signals = SignalWatch(signals, self._signalled)
        self._thread = LoopThread(self.name, self._main)
        atexit.register(self._at_exit)
        self._thread.result.add_done_callback(lambda _: atexit.unregister(self._at_exit))
        self._thread.start()

    def _ask_to_stop(self, death_sig: signal.Signals | None, timeout: float) -> None:
        self._thread.call(self._stop, death_sig or signal.SIGTERM, timeout)

    def _concluded(self) -> RunProcsResult:
        self._let_go()
        return self._thread.result.result()

    def _let_go(self) -> None:
        self._thread.join()
        self._signals.stop()

    def _signalled(self, signum: signal.Signals) -> None:
        raise in_torchs_terms(SignalException)(f"process {os.getpid()} got {signum.name}", signum)

    def _at_exit(self) -> None:
        """The program ends without having closed it."""
        self._is_program_ending = True
        self.close()

    # What follows runs in the thread.

    async def _main(self) -> RunProcsResult:
        console = ApiConsole(self.name, asyncio.get_running_loop())
        try:
            return await self._supervise(console)
        except BaseException as error:
            if not self._pids.done():
                self._pids.set_exception(error)
            raise
        finally:
            self._entry.close()
            console.close()

    async def _supervise(self, console: ApiConsole) -> RunProcsResult:
        outputs = Outputs(self._settings, self._envs, console)
        group = self._group = ProcessGroup()
        succeeded = False
        try:
            self.stdouts, self.stderrs, self.error_files = outputs.stdouts, outputs.stderrs, outputs.error_files
            self._pids.set_result(group.start([self._spec(local_rank, outputs) for local_rank in range(self.nprocs)]))
            endings = await group.ended()
            succeeded = not endings.failures
            return self._result(endings, outputs)
        finally:
            await group.ended()
            await outputs.close()
            if succeeded or self._is_program_ending:
                outputs.forget()
            else:
                atexit.register(outputs.forget)  # until then the failures' error files can be read

    def _stop(self, death_sig: signal.Signals, timeout: float) -> None:
        if self._group:
            self._group.stop(death_sig, timeout)

    def _spec(self, local_rank: int, outputs: Outputs) -> WorkerSpec:
        environment = {**os.environ, **self._envs[local_rank], **outputs.environment(local_rank)}
        cpus = self._cpus[local_rank] if self._cpus else ()
        return WorkerSpec(
            node_id=os.uname().nodename,
            rank=local_rank,
            local_rank=local_rank,
            title=self._entry.title,
            start=self._entry.starter(local_rank, environment, cpus),
            open_streams=lambda: outputs.open_streams(local_rank),
            error_file=outputs.error_files[local_rank],
        )

    def _result(self, endings: Endings, outputs: Outputs) -> RunProcsResult:
        failures = {
            local_rank: process_failure(failure, was_stopped=local_rank in endings.stopped)
            for local_rank, failure in endings.failures.items()
        }
        failures |= {local_rank: unkillable(local_rank, pid) for local_rank, pid in endings.left.items()}
        first = {local_rank: failure for local_rank, failure in failures.items() if local_rank not in endings.stopped}
        if first and not self._entry.counts_stopped:
            failures = first
        values = {} if failures else self._entry.values()
        return RunProcsResult(values, failures, outputs.stdouts, outputs.stderrs)
