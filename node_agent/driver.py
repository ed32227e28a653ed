"""One agent with workers of its own, from its start to its exit code."""

import asyncio
import os
import signal
import time
from collections.abc import Callable

from node_agent.config import AgentConfig
from node_agent.console import Console
from node_agent.conversation import ServerLost
from node_agent.core.environment import omp_warning
from node_agent.core.events import Signalled, Started, WorkerFailed, WorkersStopped, WorkersSucceeded
from node_agent.core.machine import AgentMachine
from node_agent.link import Link
from node_agent.machine_loop import MachineLoop
from node_agent.ports import ReservedPort
from node_agent.run_line import RunLine
from node_agent.scratch import ScratchDir
from node_agent.specs import SpecMaker
from node_agent.store_host import StoreHost
from node_agent.workers import WorkerGroup
from protocol.errors import ProtocolError
from protocol.messages import Assignment, Failure, Reply


class Driver:
    """Joins, supervises and leaves. `where` names the server for people, `make_link` opens a line to it."""

    def __init__(self, config: AgentConfig, make_link: Callable[[], Link], where: str, console: Console) -> None:
        loop = asyncio.get_running_loop()
        self._config = config
        self._console = console
        self._scratch = ScratchDir()
        self._specs = SpecMaker(config, console, self._scratch)
        self._store_host = StoreHost(config.environment, self._store_broke)
        self.hosts_store = self._store_host.is_available
        self._port: ReservedPort | None = None
        self._assignment: Assignment | None = None
        self._group: WorkerGroup | None = None
        self._exit_code: asyncio.Future[int] = loop.create_future()
        machine = AgentMachine(f"{config.node_id[:64]}-{os.urandom(6).hex()}")
        line = RunLine(config, make_link, where, console.say)
        self._machine = MachineLoop(machine, line, self, loop, config.farewell_timeout_s)

    async def run(self) -> int:
        """Join, supervise, and return the process's exit code."""
        loop = asyncio.get_running_loop()
        for signum in map(signal.Signals.__getitem__, self._config.signals):
            if signal.getsignal(signum) is not signal.SIG_IGN:  # nohup stays nohup
                loop.add_signal_handler(signum, self._machine.feed, Signalled(signum.name))
        self._machine.feed(Started())
        try:
            return await self._exit_code
        finally:
            await self._machine.take_leave()
            self._let_go()

    def _let_go(self) -> None:
        self._store_host.close()
        if self._port:
            self._port.release()
        self._scratch.remove()

    # What the machine wants done.

    def open_port(self) -> int:
        """A fresh port each round, unless the user chose one."""
        if self._port is None or self._config.master_port is None:
            used, self._port = self._port, ReservedPort(self._config.master_port or 0)
            if used:
                used.release()  # after the new one was reserved, so that the two differ
        return self._port.number

    def start_workers(self, assignment: Assignment) -> None:
        round_, self._assignment = assignment.round, assignment
        if self._group is None and (warning := omp_warning(self._config.environment, assignment.local_world_size)):
            self._console.say(warning)
        if assignment.agent_store and assignment.group_rank == 0:
            assert self._port
            self._store_host.open(self._port.socket)
        self._group = WorkerGroup(
            self._specs.specs(assignment),
            succeeded=lambda: self._machine.feed(WorkersSucceeded(round_)),
            failed=lambda failure: self._machine.feed(WorkerFailed(round_, failure)),
            stopped=lambda left: self._workers_stopped(round_, left),
        )

    def stop_workers(self, signal_name: str, kill: bool) -> None:
        assert self._group
        if kill:
            self._group.stop(signal.SIGKILL, 0.0)
        else:
            self._group.stop(signal.Signals[signal_name], self._config.shutdown_timeout_s)

    def say(self, text: str) -> None:
        self._console.say(text)

    def heard(self, answer: Reply | ProtocolError | ServerLost) -> None:
        pass  # the machine knows what to do

    def ended(self, exit_code: int) -> None:
        self._exit_code.set_result(exit_code)

    def crashed(self, error: BaseException) -> None:
        if not self._exit_code.done():
            self._exit_code.set_exception(error)

    # What happens to the workers.

    def _workers_stopped(self, round_: int, left: list[int]) -> None:
        if left:
            self._console.say(f"could not kill: pid {', '.join(map(str, left))}; giving them up")
        self._store_host.shut()
        self._machine.feed(WorkersStopped(round_))

    def _store_broke(self, reason: str) -> None:
        """Without their store the workers cannot go on."""
        assert self._assignment
        failure = Failure(
            node_id=self._config.node_id,
            rank=self._assignment.first_rank,
            local_rank=0,
            pid=0,
            exit_code=1,
            cause=reason,
            failed_at=time.time(),
        )
        self._machine.feed(WorkerFailed(self._assignment.round, failure))
