"""Signals that make an agent leave. Each comes directly from its sender, or another process forwards it.

A scheduler such as Slurm signals every process of a step. The agent then gets one signal twice, in either order. The
same happens if a group of processes is signalled, and a job script in it has a trap that signals the agent.
"""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from math import inf

from node_agent.kernel import early_signals
from node_agent.kernel.processes.process import to_handle

ONE_REQUEST_S = 1.0
"""Seconds within which further signals, of any name, are the same request to leave. A wrapper forwards within
milliseconds, and a person first reads what the agent has logged."""


class Requests:
    """Tells a further request to leave, which ends the workers' grace, from a signal that comes more than once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._latest_at = -inf

    def take(self) -> bool:
        """Take a signal that comes now. Return whether it is another request than the latest one."""
        now = self._clock()
        if now < self._latest_at + ONE_REQUEST_S:
            return False
        self._latest_at = now
        return True


class LeaveSignals:
    """Signals of an agent, from `listen` on. Signals before `hand_to` wait for it."""

    def __init__(self, names: Iterable[str] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self._names = names
        self._requests = Requests(clock)
        self._handled: list[signal.Signals] = []
        self._waiting: list[str] = []
        self._heard: Callable[[str], object] = self._waiting.append
        self._direct = Counter[str]()
        self._forwarded = Counter[str]()

    def listen(self) -> None:
        """Take the signals, also one that came during the imports."""
        self._handled = to_handle(self._names)
        for signum in self._handled:
            signal.signal(signum, lambda signum, _: self.come(signal.Signals(signum).name))
        early_signals.release()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._handled)  # the parent may have blocked them

    def hand_to(self, heard: Callable[[str], object]) -> None:
        """Call `heard` in the event loop with each signal's name, also of those that wait.

        It is called only once if a signal comes both ways, or more than once within `ONE_REQUEST_S`.
        """
        for signum in self._handled:
            asyncio.get_running_loop().add_signal_handler(signum, self.come, signum.name)
        self._heard = heard
        while self._waiting:
            heard(self._waiting.pop(0))

    def come(self, name: str, *, is_forwarded: bool = False) -> None:
        """Take a signal, and pass its name on if it is another request."""
        here, there = (self._forwarded, self._direct) if is_forwarded else (self._direct, self._forwarded)
        here[name] += 1
        if here[name] > there[name] and self._requests.take():
            self._heard(name)
