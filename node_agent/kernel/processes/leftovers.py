"""Remaining processes of workers: those that still run when the workers that started them have ended.

They get a signal and some time, as their workers did. For example, a shell may end before its program, or a tracker's
helper may have to upload data. The agent is their subreaper, so they are among its children. In a user's own program
they are not adopted, so only those in the worker's session are known. Processes that a program needs to save its work
are signalled later.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress

from node_agent.kernel.processes.orphans_helper import Process, command_line, look_at
from node_agent.kernel.processes.signalling import READER_S, SignalledProcesses, remaining_signalled_after_s
from node_agent.kernel.processes.system_calls import pidfd_open, pidfd_send_signal

GIVEN_UP_S = 1.0
"""Seconds after which a process counts as surviving SIGKILL, and the run no longer waits for it. Such a process sleeps
in the kernel or belongs to another user."""
_HELPER = b"multiprocessing."
"""Module in the commands of processes that Python's multiprocessing starts. They end by themselves, a moment later."""
ListLeftovers = Callable[[], Collection[int]]
"""Return the processes that workers have left behind and that still run."""


class Leftovers:
    """Remaining processes of one worker or of all ended ones. Signalled once and watched until all are gone."""

    def __init__(
        self, leftovers: ListLeftovers, session: int | None, signum: int, sent: SignalledProcesses, within_s: float,
        gone: Callable[["Leftovers"], None], found: Callable[[int], None] = lambda pid: None,
    ) -> None:  # fmt: skip
        """Signal the existing processes, except those to be signalled later.

        `session`: that of the worker, which is about to be reaped; None for any session, if no worker runs. `gone` is
        called when the last process is gone or abandoned, unless there is none at all. After `within_s` seconds they
        are killed, and `GIVEN_UP_S` later abandoned. `found` is called with the pid of each process before its signal.
        """
        self._on_found = found
        self._leftovers, self._session, self._signum, self._sent, self._gone = leftovers, session, signum, sent, gone
        self._loop = asyncio.get_running_loop()
        self._watched: dict[int, int] = {}
        """Descriptors of processes, by pid."""
        self._readers: dict[int, asyncio.TimerHandle] = {}
        """Timers of readers that have no writer any more, by pid."""
        self._signals_remaining = False
        self._kill_at = self._loop.time() + within_s
        self._timer = self._loop.call_later(remaining_signalled_after_s(within_s), self._signal_remaining)
        self._look()

    def __bool__(self) -> bool:
        """Return whether any of them still runs."""
        return bool(self._watched)

    def kill(self) -> None:
        """Kill all that still run. `gone` is called later."""
        self._signum = signal.SIGKILL
        for descriptor in self._watched.values():
            _send(descriptor, signal.SIGKILL)
        self._timer.cancel()
        self._timer = self._loop.call_later(GIVEN_UP_S, self._give_up)

    def close(self) -> None:
        """Stop watching them."""
        self._timer.cancel()
        for pid in list(self._watched):
            self._forget(pid)

    def _give_up(self) -> None:
        self.close()
        self._gone(self)

    def _signal_remaining(self) -> None:
        self._signals_remaining = True
        self._timer = self._loop.call_at(self._kill_at, self.kill)
        self._look()

    def _look(self) -> None:
        """Watch new processes, and signal those that were not signalled and need not wait."""
        found = dict(self._found())
        later = set() if self._signals_remaining else self._sent.held(found, self._signum)
        for pid in found:
            if pid not in self._watched:
                self._watch(pid)
        for pid in found.keys() - later:
            self._signal(pid, found[pid])
        for pid in self._sent.idle_readers(found) & (self._watched.keys() - self._readers.keys()):
            self._readers[pid] = self._loop.call_later(READER_S, self._signal, pid, found[pid])
        if not self._watched:
            self._timer.cancel()

    def _signal(self, pid: int, process: Process) -> None:
        if pid in self._watched and (self._signum == signal.SIGKILL or self._sent.record(pid, process)):
            _send(self._watched[pid], self._signum)

    def _watch(self, pid: int) -> None:
        try:
            descriptor = pidfd_open(pid)
        except OSError:  # gone, or no descriptor is left: it is then ended with the round's other orphans
            return
        self._watched[pid] = descriptor
        self._on_found(pid)
        self._loop.add_reader(descriptor, self._ended, pid)

    def _found(self) -> Iterator[tuple[int, Process]]:
        for pid in self._leftovers():
            process = look_at(pid)
            if process and self._session in (None, process.session):
                yield pid, process

    def _ended(self, pid: int) -> None:
        """Stop watching this process. Watch the children that the agent has adopted because of its end."""
        self._forget(pid)
        self._look()
        if not self._watched:
            self._gone(self)

    def _forget(self, pid: int) -> None:
        descriptor = self._watched.pop(pid)
        if timer := self._readers.pop(pid, None):
            timer.cancel()
        self._loop.remove_reader(descriptor)
        os.close(descriptor)


def in_session(leader: int) -> list[int]:
    """Return the processes in the session of an exited leader, none if another process has its pid now."""
    if look_at(leader):
        return []
    return [pid for name in os.listdir("/proc") if name.isdigit() and _session(pid := int(name)) == leader]


def is_program(pid: int) -> bool:
    """Return whether the process runs a program of the user, and is no helper of Python's multiprocessing."""
    try:
        words = command_line(pid)
    except OSError:  # it is gone, or another user's
        return False
    return words != [] and not any(_HELPER in word for word in words)


def _session(pid: int) -> int:
    """Return the session of a process, -1 if it is gone."""
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _send(descriptor: int, signum: int) -> None:
    with suppress(OSError):  # it is gone, or another user's
        pidfd_send_signal(descriptor, signum)
