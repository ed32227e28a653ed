"""The local worker group: spawned, watched and stopped.

Each worker leads its own session and process group, so that a signal to the group reaches its children too. Its exit is
watched through a descriptor, never polled. The kernel kills it when the agent dies (PR_SET_PDEATHSIG).
"""

import asyncio
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from rdzv_protocol.messages import Failure

from node_agent.config import SIGNALS
from node_agent.core.machine import NOT_STARTED
from node_agent.output.streams import Stream
from node_agent.workers.process import KILL_TIMEOUT_S, Start, signal_group

if TYPE_CHECKING:
    from node_agent.failures.oom import OomWatch

CAUSE_TIMEOUT_S = 0.5
"""Wait of a failure that may have a cause elsewhere: another worker's end, or a signal to the whole node."""

TOLD_TO_END = frozenset(signal.Signals[name] for name in SIGNALS)


class WorkerSpec(Struct, frozen=True, kw_only=True):
    """One worker to start."""

    node_id: str
    rank: int
    local_rank: int
    title: str
    """Name of what is executed, for a person."""
    start: Start
    open_streams: Callable[[], tuple[Stream, Stream]]
    """Opens the worker's stdout and stderr; called when it is about to start."""
    error_file: str = ""
    """File to which torch's `@record` writes the error; empty: none."""
    evidence: Mapping[str, str] = {}
    """Variables of its environment that name the places where it can be asked what it does."""


class Worker:
    """A started worker. `on_exit` is called once, when it has been reaped and its output read to the end."""

    def __init__(self, spec: WorkerSpec, on_exit: Callable[["Worker"], None]) -> None:
        self.spec = spec
        self._on_exit = on_exit
        self.exit_code: int | None = None
        """Exit code, negative for a signal; None while the worker runs."""
        self._streams = spec.open_streams()
        try:
            self._process = spec.start(self._streams[0].writable(), self._streams[1].writable())
            self.pid = self._process.pid
            self._watch()
        except BaseException:
            for stream in self._streams:
                stream.finish()
            raise

    @property
    def last_output_at(self) -> float:
        """Time of the worker's last output, by the event loop's clock; 0: there was none."""
        return max(stream.last_read_at or 0.0 for stream in self._streams)

    def failure(self, oom: "OomWatch | None" = None) -> Failure:
        """The worker's failure with its evidence, once it has exited."""
        from node_agent.failures.diagnose import examine

        assert self.exit_code is not None
        return examine(self.spec, self.pid, self.exit_code, self._streams[1].tail(), oom)

    def _watch(self) -> None:
        """Watch the worker; kill it if it cannot be watched."""
        try:
            for stream in self._streams:
                stream.started()
            asyncio.get_running_loop().add_reader(self._process.fileno(), self._reap)
        except BaseException:
            signal_group(self.pid, signal.SIGKILL)
            self._process.reap()
            raise

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process.fileno())
        signal_group(self.pid, signal.SIGKILL)  # what it left behind; before the wait, while its group id is its own
        self.exit_code = self._process.reap()
        for stream in self._streams:
            stream.finish()
        self._on_exit(self)


class ProcessGroup:
    """Processes that are stopped together. What their ends mean is for the classes that are derived from it."""

    def __init__(self) -> None:
        self._alive: dict[int, Worker] = {}
        """Workers that have not exited, by pid, in the order of the local ranks."""
        self._stopping = self._killed = False
        self._timer: asyncio.TimerHandle | None = None

    def stop(self, signum: int, grace_s: float) -> None:
        """Signal every worker's group; SIGKILL what is left after `grace_s`. May be repeated until they are killed."""
        if self._killed:
            return
        self._stopping = True
        for pid in self._alive:
            signal_group(pid, signum)
        if self._alive:
            self._after(grace_s, self._kill)
        else:
            asyncio.get_running_loop().call_soon(self._are_gone)

    def _ended(self, worker: Worker) -> None:
        """Take note of a worker that has ended."""
        raise NotImplementedError

    def _all_stopped(self) -> None:
        """Take note that after `stop` all workers are gone, but for those in `_alive`, which SIGKILL has not ended."""
        raise NotImplementedError

    def _start_worker(self, spec: WorkerSpec) -> Worker:
        worker = Worker(spec, self._exited)
        self._alive[worker.pid] = worker
        return worker

    def _exited(self, worker: Worker) -> None:
        del self._alive[worker.pid]
        self._ended(worker)
        if self._stopping and not self._alive:
            self._are_gone()

    def _kill(self) -> None:
        self._killed = True
        for pid in self._alive:
            signal_group(pid, signal.SIGKILL)
        self._after(KILL_TIMEOUT_S, self._are_gone)

    def _are_gone(self) -> None:
        self._stopping = self._killed = False
        if self._timer:
            self._timer.cancel()
        self._all_stopped()

    def _after(self, delay_s: float, callback: Callable[[], None]) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, callback)


class WorkerGroup(ProcessGroup):
    """The workers of one round. Calls back once: `succeeded`, or `failed` with the first failure, or neither if it is
    stopped before; and after `stop`, once, `stopped` with the pids of workers that could not be killed.

    A failure that follows from another worker's is not called back at once: if that one is a worker of this group and
    ends soon, it is the one to report. Nor is the end by a signal that schedulers send to all processes of a node: if
    the agent gets it, too, whichever is first, the node leaves and no worker has failed.
    """

    def __init__(
        self,
        specs: Sequence[WorkerSpec],
        *,
        succeeded: Callable[[], None],
        failed: Callable[[Failure], None],
        stopped: Callable[[list[int]], None],
    ) -> None:
        super().__init__()
        self._succeeded, self._failed, self._stopped = succeeded, failed, stopped
        self._settled = False
        """Whether the group has called back how it ended, or is being stopped."""
        self._suspect: Failure | None = None
        """The first failure that follows from another, or from a signal that the agent may be about to get, too."""
        self._error_files: dict[int, str] = {}
        self._oom: OomWatch | None = None
        for spec in specs:
            try:
                self._error_files[self._start_worker(spec).pid] = spec.error_file
            except OSError as error:
                self._settle(self._failed, _not_started(spec, error))
                return
        from node_agent.failures import oom

        self._oom = oom.OomWatch()  # when the workers run already: it has no part in their start

    @property
    def pids(self) -> list[int]:
        """Pids of the workers that have not exited, in the order of the local ranks."""
        return list(self._alive)

    @property
    def by_local_rank(self) -> dict[int, int]:
        """Pids of the workers that have not exited, by local rank."""
        return {worker.spec.local_rank: pid for pid, worker in self._alive.items()}

    @property
    def workers(self) -> list[Worker]:
        """Workers that have not exited, in the order of the local ranks."""
        return list(self._alive.values())

    @property
    def last_output_at(self) -> float | None:
        """Time of the last output of the workers that run, by the event loop's clock; None: there was none."""
        return max((worker.last_output_at for worker in self._alive.values()), default=0.0) or None

    def error_file(self, pid: int) -> str:
        """File to which this worker, also one that is gone, was to write its error; empty if it is not ours."""
        return self._error_files.get(pid, "")

    def stop(self, signum: int, grace_s: float) -> None:
        self._settled = True
        super().stop(signum, grace_s)

    def _ended(self, worker: Worker) -> None:
        if self._settled:
            return
        failure = worker.failure(self._oom) if worker.exit_code != 0 else None
        if failure and not failure.consequence and not _is_told_to_end(failure):
            self._settle(self._failed, failure)
            return
        is_first, self._suspect = self._suspect is None, self._suspect or failure
        if self._suspect is None:
            if not self._alive:
                self._settle(self._succeeded)
        elif not self._alive and not _is_told_to_end(self._suspect):
            self._settle(self._failed, self._suspect)
        elif is_first:
            asyncio.get_running_loop().call_later(CAUSE_TIMEOUT_S, self._settle, self._failed, self._suspect)

    def _all_stopped(self) -> None:
        self._stopped(list(self._alive))

    def _settle(self, callback: Callable[..., None], *args: Failure) -> None:
        if not self._settled:
            self._settled = True
            asyncio.get_running_loop().call_soon(callback, *args)


def _is_told_to_end(failure: Failure) -> bool:
    """Whether the worker ended by a signal that its agent may be about to get, too."""
    return -failure.exit_code in TOLD_TO_END


def _not_started(spec: WorkerSpec, error: OSError) -> Failure:
    return Failure(
        node_id=spec.node_id,
        rank=spec.rank,
        local_rank=spec.local_rank,
        pid=0,
        exit_code=NOT_STARTED,
        cause=f"could not be started: {spec.title}: {error.strerror or error}",
        failed_at=time.time(),
    )
