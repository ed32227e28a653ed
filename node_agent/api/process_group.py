"""The processes of one `start_processes`, in the event loop of the thread that started them."""

import asyncio
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rdzv_protocol.messages import Failure

from node_agent.workers.group import KILL_TIMEOUT_S, Worker, WorkerSpec

STOP_TIMEOUT_S = 30.0
"""torch's: from the signal to SIGKILL for those that are left when another one has failed."""


@dataclass(slots=True)
class Endings:
    """How the processes have ended, by local rank, in the order in which they did."""

    failures: dict[int, Failure] = field(default_factory=dict)
    """Those with another exit code than 0."""
    stopped: set[int] = field(default_factory=set)
    """Those that ended after all were told to go."""
    left: dict[int, int] = field(default_factory=dict)
    """The pids of those that SIGKILL could not end."""


class ProcessGroup:
    """All or nothing: when one fails, the others are told to go."""

    def __init__(self) -> None:
        self._endings = Endings()
        self._alive: dict[int, Worker] = {}
        self._is_over = asyncio.get_running_loop().create_future()
        self._stopping = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self, specs: Sequence[WorkerSpec]) -> dict[int, int]:
        """Their pids, by local rank. Raises `OSError` if one cannot be started; then the others are killed."""
        try:
            for spec in specs:
                self._alive[spec.local_rank] = Worker(spec, self._exited)
        except BaseException:
            self.stop(signal.SIGKILL, KILL_TIMEOUT_S)
            raise
        return {local_rank: worker.pid for local_rank, worker in self._alive.items()}

    async def ended(self) -> Endings:
        """Returns when all are gone, or given up."""
        if self._alive:
            await self._is_over
        return self._endings

    def stop(self, signum: int, timeout_s: float) -> None:
        """Signal every process and its children; SIGKILL those that are left after `timeout_s`. May be repeated."""
        self._stopping = True
        for worker in self._alive.values():
            worker.signal(signum)
        if self._alive:
            self._after(timeout_s, self._kill)

    def _exited(self, worker: Worker) -> None:
        local_rank = worker.spec.local_rank
        del self._alive[local_rank]
        if self._stopping:
            self._endings.stopped.add(local_rank)
        if worker.exit_code != 0:
            self._endings.failures[local_rank] = worker.failure()
            if not self._stopping:
                self.stop(signal.SIGTERM, STOP_TIMEOUT_S)
        if not self._alive:
            self._end()

    def _kill(self) -> None:
        for worker in self._alive.values():
            worker.signal(signal.SIGKILL)
        self._after(KILL_TIMEOUT_S, self._give_up)

    def _give_up(self) -> None:
        self._endings.left = {local_rank: worker.pid for local_rank, worker in self._alive.items()}
        self._end()

    def _end(self) -> None:
        if self._timer:
            self._timer.cancel()
        if not self._is_over.done():
            self._is_over.set_result(None)

    def _after(self, delay_s: float, callback: Callable[[], None]) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, callback)
