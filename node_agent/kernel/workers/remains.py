"""Remains of workers: processes that still run when the workers that have started them are gone.

They get a signal and some time, as their workers did: a shell may have ended before the program that it runs, and a
tracker's helper may have to upload what it holds. The agent is their subreaper, so they are among its children. In a
user's own program nobody adopts them: only those that are still in the worker's session are known.
Like the processes of a worker, those that a program needs to save its work are told later.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress

from node_agent.kernel.workers.orphans_helper import Process, look_at
from node_agent.kernel.workers.told import Told, held, rest_is_told_after_s

GIVEN_UP_S = 1.0
"""Time that a process may take to go after SIGKILL. No run waits for one that nothing ends: it sleeps in the kernel, or
is another user's."""
Strays = Callable[[], Collection[int]]
"""Tells which processes workers have left behind that still run."""


class Remains:
    """Remains of one worker, or of all that are gone: they are signalled once, and watched until none is left."""

    def __init__(
        self, strays: Strays, session: int | None, signum: int, told: Told, within_s: float,
        gone: Callable[["Remains"], None],
    ) -> None:  # fmt: skip
        """Signal what there is, without those that are told later.

        `session`: that of the worker, which is about to be reaped; None: in any session, since no worker runs.
        `gone` is called when the last one is gone, or given up, unless there is none at all. After `within_s` seconds
        they are killed, and `GIVEN_UP_S` later given up.
        """
        self._strays, self._session, self._signum, self._told, self._gone = strays, session, signum, told, gone
        self._loop = asyncio.get_running_loop()
        self._watched: dict[int, int] = {}
        """Descriptors of processes, by pid."""
        self._tells_rest = False
        self._kill_at = self._loop.time() + within_s
        self._timer = self._loop.call_later(rest_is_told_after_s(within_s), self._tell_rest)
        self._look()

    def __bool__(self) -> bool:
        """Whether any of them still runs."""
        return bool(self._watched)

    def kill(self) -> None:
        """Kill all that still run; `gone` follows."""
        self._signum = signal.SIGKILL
        for descriptor in self._watched.values():
            _send(descriptor, signal.SIGKILL)
        self._timer.cancel()
        self._timer = self._loop.call_later(GIVEN_UP_S, self._give_up)

    def close(self) -> None:
        """Watch them no longer."""
        self._timer.cancel()
        for pid in list(self._watched):
            self._forget(pid)

    def _give_up(self) -> None:
        self.close()
        self._gone(self)

    def _tell_rest(self) -> None:
        self._tells_rest = True
        self._timer = self._loop.call_at(self._kill_at, self.kill)
        self._look()

    def _look(self) -> None:
        """Watch those that have not been seen before, and signal all that have not been told and need not wait."""
        found = dict(self._found())
        later = set() if self._tells_rest else held(found, self._signum)
        for pid in found:
            if pid not in self._watched:
                self._watch(pid)
        for pid in (found.keys() - later) & self._watched.keys():
            if self._signum == signal.SIGKILL or self._told.is_new(pid, found[pid]):
                _send(self._watched[pid], self._signum)
        if not self._watched:
            self._timer.cancel()

    def _watch(self, pid: int) -> None:
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:  # it is gone, or no descriptor is left: then it is ended with the other orphans of the round
            return
        self._watched[pid] = descriptor
        self._loop.add_reader(descriptor, self._ended, pid)

    def _found(self) -> Iterator[tuple[int, Process]]:
        for pid in self._strays():
            process = look_at(pid)
            if process and self._session in (None, process.session):
                yield pid, process

    def _ended(self, pid: int) -> None:
        """Go on without this process, but with the children that the agent has adopted by its end."""
        self._forget(pid)
        self._look()
        if not self._watched:
            self._gone(self)

    def _forget(self, pid: int) -> None:
        descriptor = self._watched.pop(pid)
        self._loop.remove_reader(descriptor)
        os.close(descriptor)


def in_session(leader: int) -> list[int]:
    """Return the processes in the session of a leader that has exited; none if another process has its pid by now."""
    if look_at(leader):
        return []
    return [pid for name in os.listdir("/proc") if name.isdigit() and _session(pid := int(name)) == leader]


def _session(pid: int) -> int:
    """Session of a process; -1 if it is gone."""
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _send(descriptor: int, signum: int) -> None:
    with suppress(OSError):  # it is gone, or another user's
        signal.pidfd_send_signal(descriptor, signum)
