"""Warm pool: processes forked in advance, one for each worker, which become the next round's workers.

The processes for the next round wait while a round runs, so that a restart needs no import and no fork. A worker that
has no warm process starts cold, which is logged once.
"""

import asyncio
import json
import os
import signal
import socket
from collections.abc import Callable, Collection, Mapping, Sequence

from node_agent.features.evidence import STACKS_FILE, STACKS_SIGNAL
from node_agent.features.warm import words
from node_agent.kernel.core.command import Command
from node_agent.kernel.processes.helper import Helper
from node_agent.kernel.processes.process import (
    KILL_TIMEOUT_S,
    STDERR,
    ChildProcess,
    CommandProcess,
    Process,
    signal_group,
)

FORK_SERVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fork_server_helper.py")
LONGEST_ANSWER = 8_192
MOST_DEATHS = 3
"""Deaths of a fork server, and of waiting processes for each worker, after which the pool is abandoned."""
NOTICE_S = 2.0
"""Seconds of waiting for an import after which the agent logs what it waits for."""
STDIN = 0
_NAMES = ("fork-server", "warm-process")
"""Names of a process in ps from its fork until it becomes a worker, as fork_server_helper.py sets them."""


class WarmProcess(ChildProcess):
    """A process that waits for a command to execute."""

    def __init__(self, pid: int, orders: socket.socket) -> None:
        super().__init__(pid)
        self._orders = orders

    def exec(
        self, command: Sequence[str], environment: Mapping[str, str], cpus: Collection[int], streams: Sequence[int]
    ) -> None:
        """Execute the command with these streams. Raises `OSError` if the process is gone."""
        environment = dict(environment)
        stacks = {"path": environment.pop(STACKS_FILE, ""), "signum": STACKS_SIGNAL}
        task = {"command": list(command), "environment": environment, "cpus": list(cpus), "stacks": stacks}
        text = memoryview(json.dumps(task).encode())
        with self._orders as orders:
            sent = socket.send_fds(orders, [text], streams)
            orders.sendall(text[sent:])

    def reap(self) -> int:
        self._orders.close()
        return super().reap()

    def disown(self) -> None:
        self._orders.close()
        super().disown()


class WarmPool:
    """The fork server and the waiting processes. `log` is called once with each problem."""

    def __init__(
        self,
        modules: Sequence[str],
        command: Command,
        environment: Mapping[str, str],
        count: int,
        log: Callable[[str], None],
        ignored: Collection[int],
    ) -> None:
        """`ignored`: signals that a scheduler sends to every process of a node."""
        self._modules, self._command, self._environment = modules, command, environment
        self._names = ", ".join(modules)
        self._count = count
        self._log, self._ignored = log, ",".join(str(int(each)) for each in ignored)
        self._loop = asyncio.get_running_loop()
        self._asked: set[socket.socket] = set()
        """Sockets of processes that have not sent their pids yet."""
        self._waiting: list[WarmProcess] = []
        self._deaths = 0
        self._failed_waits = 0
        """Processes that have died since one of them last became a worker."""
        self._changed = asyncio.Event()
        self._is_over = False
        self._is_ready = False
        self._server: Helper | None = None
        self._start_server()

    async def full(self) -> None:
        """Return when every worker can be started warm, or none will be."""
        notice = self._loop.call_later(NOTICE_S, self._notify_of_import)
        while not self._is_over and len(self._waiting) < self._count:
            self._changed.clear()
            await self._changed.wait()
        notice.cancel()

    def _notify_of_import(self) -> None:
        if not self._is_ready:
            self._log(words.waiting_for_import(self._names))

    def start_worker(
        self, local_rank: int, environment: Mapping[str, str], cpus: Collection[int], stdout: int, stderr: int
    ) -> Process:
        """Start the worker with this local rank, warm if a process waits and otherwise cold. Raises `OSError`."""
        command = self._command.for_worker(local_rank)
        while self._waiting:
            process = self._take(self._waiting[0])
            try:
                process.exec(command, environment, cpus, (STDIN, stdout, stderr))
            except OSError:
                process.reap()  # it has just died
            else:
                self._failed_waits = 0
                self._loop.call_soon(self._refill)
                return process
        visible = {name: value for name, value in environment.items() if name != STACKS_FILE}
        return CommandProcess(command, visible, stdout, stderr, cpus)

    def expects(self, pid: int) -> bool:
        """Return whether this child of the agent may be a pool process that has not sent its pid, so not a worker's
        orphan.
        """
        try:
            with open(f"/proc/{pid}/comm") as comm:
                return bool(self._asked) and comm.read().strip() in _NAMES
        except OSError:
            return False

    def close(self) -> None:
        """End the fork server and the waiting processes. Workers started from now on are cold."""
        self._is_over = True
        if self._server:
            self._server.close()
        self._server, self._is_ready = None, False
        while self._asked:
            self._no_longer_asked(next(iter(self._asked))).close()  # its process then ends
        for process in self._waiting:
            signal_group(process.pid, signal.SIGKILL)
        until = self._loop.time() + KILL_TIMEOUT_S
        while self._waiting:
            self._take(self._waiting[0]).end(until - self._loop.time())
        self._changed.set()

    # The fork server.

    def _start_server(self) -> None:
        python, *rest = self._command.for_worker(0)

        def start(control: int) -> CommandProcess:
            numbers = (str(control), str(os.getpid()))
            command = [python, "-u", FORK_SERVER, *numbers, self._ignored, ",".join(self._modules), python, *rest]
            return CommandProcess(command, self._environment, STDERR, STDERR, pass_fds=[control])

        try:
            self._server = Helper(start, self._on_server_exit, socket.SOCK_SEQPACKET)
        except OSError as error:
            self._give_up(words.import_not_started(self._names, error.strerror or str(error)))
        else:
            self._loop.add_reader(self._server.socket, self._on_message, self._server.socket)

    def _on_message(self, control: socket.socket) -> None:
        try:
            answer = control.recv(LONGEST_ANSWER)
        except ConnectionError:  # it died before it read the order
            answer = b""
        word, _, rest = answer.decode(errors="replace").partition(" ")
        if word == "ready":
            if not self._deaths:
                self._log(words.start_warm(self._names, rest))
            self._is_ready = True
            self._refill()
        elif word == "refused":
            self._give_up(rest)
        else:
            self._loop.remove_reader(control)  # its end, which `_on_server_exit` handles

    def _on_server_exit(self, server: Helper) -> None:
        self._server, self._is_ready = None, False
        self._deaths += 1
        if self._deaths >= MOST_DEATHS:
            self._log(words.import_died_again(self._names))
            self.close()
        else:
            self._log(words.import_died(self._names))
            self._start_server()

    def _give_up(self, why: str) -> None:
        self._log(words.start_cold(why))
        self.close()

    # Waiting processes.

    def _refill(self) -> None:
        """Request the missing processes. Each gets a socket over which it sends its pid."""
        while self._server and self._is_ready and len(self._asked) + len(self._waiting) < self._count:
            try:
                ours, theirs = socket.socketpair()
            except OSError as error:
                self._give_up(error.strerror or str(error))
                return
            with theirs:
                try:
                    socket.send_fds(self._server.socket, [b"fork"], [theirs.fileno()])
                except ConnectionError:  # it is dead, which will be noticed
                    ours.close()
                    return
            self._asked.add(ours)
            self._loop.add_reader(ours, self._on_pid, ours)

    def _on_pid(self, orders: socket.socket) -> None:
        self._no_longer_asked(orders)
        try:
            pid = orders.recv(LONGEST_ANSWER)
            self._waiting.append(process := WarmProcess(int(pid), orders))
        except (ValueError, ProcessLookupError, ConnectionError):  # already dead
            orders.close()
            self._replace()
        except OSError as error:
            orders.close()
            self._give_up(error.strerror or str(error))
        else:
            self._loop.add_reader(process.fileno(), self._on_exit, process)
            self._changed.set()

    def _no_longer_asked(self, orders: socket.socket) -> socket.socket:
        self._asked.remove(orders)
        self._loop.remove_reader(orders)
        return orders

    def _take(self, process: WarmProcess) -> WarmProcess:
        self._waiting.remove(process)
        self._loop.remove_reader(process.fileno())
        return process

    def _on_exit(self, process: WarmProcess) -> None:
        self._take(process).reap()
        self._replace()

    def _replace(self) -> None:
        """Fork another process in place of one that has died, unless every process dies."""
        self._failed_waits += 1
        if self._failed_waits < MOST_DEATHS * self._count:
            self._refill()
        else:
            self._give_up(words.END_BEFORE_START)
