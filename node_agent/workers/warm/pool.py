"""Warm processes in reserve: one for each worker, forked ahead of time, that become the next round's workers.

While a round runs, the set for the next one is there already, so that a restart costs no import and no fork. What
cannot be kept warm is started cold, and said once.
"""

import asyncio
import json
import os
import signal
import socket
from collections.abc import Callable, Collection, Mapping, Sequence

from node_agent.workers.process import CommandProcess, Process, Start, own_children

ZYGOTE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fork_server_helper.py")
LONGEST_ANSWER = 8_192
MOST_DEATHS = 3
"""A zygote that dies so often is given up."""
STDIN, STDERR = 0, 2


class WarmProcess:
    """A process that waits, and then is a worker."""

    def __init__(self, pid: int, orders: socket.socket) -> None:
        self.pid = pid
        own_children.add(pid)
        self._orders = orders
        self._pidfd = os.pidfd_open(pid)

    def become(
        self, command: Sequence[str], environment: Mapping[str, str], cpus: Collection[int], streams: Sequence[int]
    ) -> None:
        """Execute the command with these streams. Raises `OSError` if the process is gone."""
        job = {"command": list(command), "environment": dict(environment), "cpus": list(cpus)}
        text = memoryview(json.dumps(job).encode())
        with self._orders as orders:
            sent = socket.send_fds(orders, [text], streams)
            orders.sendall(text[sent:])

    def fileno(self) -> int:
        return self._pidfd

    def reap(self) -> int:
        os.close(self._pidfd)
        self._orders.close()
        _, status = os.waitpid(self.pid, 0)
        own_children.discard(self.pid)
        return os.waitstatus_to_exitcode(status)


class Reserve:
    """The zygote and the processes that it has forked. `say` is told what a person should know, once."""

    def __init__(
        self,
        modules: Sequence[str],
        command: Sequence[str],
        environment: Mapping[str, str],
        count: int,
        say: Callable[[str], None],
    ) -> None:
        self._modules, self._command, self._environment = modules, command, environment
        self._count = count
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, WarmProcess] = {}
        self._asked = 0
        self._deaths = 0
        self._changed = asyncio.Event()
        self._is_over = False
        self._zygote: CommandProcess | None = None
        self._start()

    async def full(self) -> None:
        """Return when every worker can be started warm, or none will be."""
        while not self._is_over and len(self._waiting) < self._count:
            self._changed.clear()
            await self._changed.wait()

    def starter(self, command: Sequence[str], environment: Mapping[str, str], cpus: Collection[int]) -> Start:
        """What starts a worker: warm if a process is there, else cold."""

        def start(stdout: int, stderr: int) -> Process:
            if process := self.start(command, environment, (STDIN, stdout, stderr), cpus):
                self._loop.call_soon(self._refill)
                return process
            return CommandProcess(command, environment, stdout, stderr, cpus)

        return start

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        streams: Sequence[int],
        cpus: Collection[int] = (),
    ) -> Process | None:
        """A process that executes the command, with these for stdin, stdout and stderr; None if none is there.

        It leads a session of its own. Its place in the reserve is filled when a worker has started.
        """
        while self._waiting:
            process = self._take()
            try:
                process.become(command, environment, cpus, streams)
            except OSError:
                process.reap()  # it has died just now
            else:
                return process
        return None

    def close(self) -> None:
        """Let the zygote and the reserve go."""
        self._give_up()

    # The zygote.

    def _start(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._asked = 0
        python, *rest = self._command
        command = [python, "-u", ZYGOTE, str(theirs.fileno()), ",".join(self._modules), python, *rest]
        with theirs:
            self._zygote = CommandProcess(command, self._environment, STDERR, STDERR, pass_fds=[theirs.fileno()])
        self._loop.add_reader(self._zygote.fileno(), self._died)
        self._loop.add_reader(self._control, self._hear)

    def _hear(self) -> None:
        try:
            answer, descriptors, _, _ = socket.recv_fds(self._control, LONGEST_ANSWER, 1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        word, _, rest = answer.decode(errors="replace").partition(" ")
        if descriptors:
            self._join_the_reserve(int(word), socket.socket(fileno=descriptors[0]))
        elif word == "ready":
            if not self._deaths:
                self._say(f"workers start warm: {', '.join(self._modules)} imported in {rest} s")
            self._refill()
        elif word in ("refused", "failed"):
            self._say(f"workers start cold, without --preload: {rest or 'no process can be forked'}")
            self._give_up()
        else:
            self._loop.remove_reader(self._control)  # its end; `_died` says so

    def _refill(self) -> None:
        missing = self._count - len(self._waiting) - self._asked
        if missing > 0 and not self._is_over:
            try:
                self._control.send(str(missing).encode())
                self._asked += missing
            except OSError:
                pass  # it is dead, which will be noticed

    def _died(self) -> None:
        assert self._zygote
        self._let_go_of_zygote()
        self._deaths += 1
        if self._deaths >= MOST_DEATHS:
            self._say(f"workers start cold: the process that imports {', '.join(self._modules)} died again and again")
            self._give_up()
        else:
            self._say(f"the process that imports {', '.join(self._modules)} died; starting another one")
            self._start()

    def _let_go_of_zygote(self) -> None:
        if self._zygote:
            self._loop.remove_reader(self._zygote.fileno())
            self._loop.remove_reader(self._control)
            self._control.close()
            self._zygote.reap()
            self._zygote = None

    def _give_up(self) -> None:
        self._is_over = True
        if self._zygote:
            os.kill(self._zygote.pid, signal.SIGKILL)
        self._let_go_of_zygote()
        while self._waiting:
            process = self._take()
            os.kill(process.pid, signal.SIGKILL)
            process.reap()
        self._changed.set()

    # The reserve.

    def _join_the_reserve(self, pid: int, orders: socket.socket) -> None:
        self._asked -= 1
        try:
            process = WarmProcess(pid, orders)
        except ProcessLookupError:  # dead already, and reaped
            orders.close()
            self._refill()
            return
        self._waiting[pid] = process
        self._loop.add_reader(process.fileno(), self._lost, process)
        self._changed.set()

    def _take(self) -> WarmProcess:
        pid = next(iter(self._waiting))
        process = self._waiting.pop(pid)
        self._loop.remove_reader(process.fileno())
        return process

    def _lost(self, process: WarmProcess) -> None:
        """It died while it waited."""
        del self._waiting[process.pid]
        self._loop.remove_reader(process.fileno())
        process.reap()
        self._refill()
