"""The local worker group: spawned, watched and stopped.

Each worker leads its own session and process group, so that a signal to the group reaches its children too. Its exit is
watched through a pidfd, never polled. The kernel kills it when the agent dies (PR_SET_PDEATHSIG).
"""

import asyncio
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from node_agent.console import ERR, OUT, Console
from node_agent.core.evidence import cause_of
from node_agent.output import Relay
from protocol.messages import Failure

KILL_TIMEOUT_S = 30.0
"""How long a worker may take to go after SIGKILL: one in uninterruptible sleep may not."""

_PR_SET_PDEATHSIG = 1
_SIGNAL_NAMES = {number.value: number.name for number in signal.Signals}
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One worker to start."""

    node_id: str
    rank: int
    local_rank: int
    command: Sequence[str]
    environment: dict[str, str]
    prefix: str


class Worker:
    """A started worker. `on_exit` is called once, when it has been reaped and its output read to the end."""

    def __init__(self, spec: WorkerSpec, console: Console, on_exit: Callable[["Worker"], None]) -> None:
        self.spec = spec
        self._on_exit = on_exit
        self._process = _spawn(spec)
        self.pid = self._process.pid
        assert self._process.stdout and self._process.stderr
        self._relays = [
            Relay(os.dup(self._process.stdout.fileno()), spec.prefix, console, OUT),
            Relay(os.dup(self._process.stderr.fileno()), spec.prefix, console, ERR),
        ]
        self._process.stdout.close()
        self._process.stderr.close()
        self._pidfd = os.pidfd_open(self.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)

    def signal(self, signum: int) -> None:
        """Signal the worker and its children."""
        if self._process.returncode is None:
            _signal_group(self.pid, signum)

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._process.returncode

    def failure(self) -> Failure:
        """The evidence, once it has exited."""
        exit_code = self._process.returncode
        return Failure(
            node_id=self.spec.node_id,
            rank=self.spec.rank,
            local_rank=self.spec.local_rank,
            pid=self.pid,
            exit_code=exit_code,
            cause=cause_of(exit_code, _SIGNAL_NAMES),
            stderr_tail=self._relays[1].tail(),
            failed_at=time.time(),
        )

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        _signal_group(self.pid, signal.SIGKILL)  # what it left behind; before the wait, while its group id is its own
        self._process.wait()
        for relay in self._relays:
            relay.finish()
        self._on_exit(self)


class WorkerGroup:
    """The workers of one round. Calls back once: `succeeded`, or `failed` with the first failure, or neither if it is
    stopped before; and after `stop`, once, `stopped` with the pids of workers that could not be killed.
    """

    def __init__(
        self,
        specs: Sequence[WorkerSpec],
        console: Console,
        *,
        succeeded: Callable[[], None],
        failed: Callable[[Failure], None],
        stopped: Callable[[list[int]], None],
    ) -> None:
        self._succeeded, self._failed, self._stopped = succeeded, failed, stopped
        self._alive: dict[int, Worker] = {}
        self._settled = False
        """Whether the group has called back how it ended, or is being stopped."""
        self._stopping = False
        self._timer: asyncio.TimerHandle | None = None
        self._start(specs, console)

    def stop(self, signum: int, grace_s: float) -> None:
        """Signal every worker's group; SIGKILL what is left after `grace_s`."""
        self._settled = self._stopping = True
        for worker in self._alive.values():
            worker.signal(signum)
        if self._alive:
            self._after(grace_s, self._kill)
        else:
            asyncio.get_running_loop().call_soon(self._report_stopped)

    def _start(self, specs: Sequence[WorkerSpec], console: Console) -> None:
        for spec in specs:
            try:
                worker = Worker(spec, console, self._exited)
            except OSError as error:
                self._settle(self._failed, _not_started(spec, error))
                return
            self._alive[worker.pid] = worker

    def _exited(self, worker: Worker) -> None:
        del self._alive[worker.pid]
        if worker.exit_code != 0:
            self._settle(self._failed, worker.failure())
        elif not self._alive:
            self._settle(self._succeeded)
        if self._stopping and not self._alive:
            self._report_stopped()

    def _settle(self, callback: Callable[..., None], *args: Failure) -> None:
        if not self._settled:
            self._settled = True
            asyncio.get_running_loop().call_soon(callback, *args)

    def _kill(self) -> None:
        for worker in self._alive.values():
            worker.signal(signal.SIGKILL)
        self._after(KILL_TIMEOUT_S, self._report_stopped)

    def _report_stopped(self) -> None:
        self._stopping = False
        if self._timer:
            self._timer.cancel()
        self._stopped(list(self._alive))

    def _after(self, delay_s: float, callback: Callable[[], None]) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, callback)


def _spawn(spec: WorkerSpec) -> "subprocess.Popen[bytes]":
    agent = os.getpid()

    def tie_to_agent() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != agent:  # it died before the tie was made
            os._exit(1)

    return subprocess.Popen(
        spec.command,
        env=spec.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=tie_to_agent,
    )


def _signal_group(pid: int, signum: int) -> None:
    try:
        os.killpg(pid, signum)
    except ProcessLookupError:
        pass
    except PermissionError:  # every process left in the group is another user's, or a zombie on some kernels
        pass


def _not_started(spec: WorkerSpec, error: OSError) -> Failure:
    return Failure(
        node_id=spec.node_id,
        rank=spec.rank,
        local_rank=spec.local_rank,
        pid=0,
        exit_code=127,
        cause=f"could not be started: {spec.command[0]}: {error.strerror or error}",
        failed_at=time.time(),
    )
