"""Signals that make an agent leave. Each comes directly from its sender, or another process forwards it.

A scheduler such as Slurm signals every process of a step. The agent then gets one signal twice, in either order.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Iterable

from node_agent.kernel import early_signals
from node_agent.kernel.processes.process import to_handle


class LeaveSignals:
    """Signals of an agent, from `listen` on. Those that come before `hand_to` wait for it."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = names
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

        It is called only once if a signal comes both ways.
        """
        for signum in self._handled:
            asyncio.get_running_loop().add_signal_handler(signum, self.come, signum.name)
        self._heard = heard
        while self._waiting:
            heard(self._waiting.pop(0))

    def come(self, name: str, *, is_forwarded: bool = False) -> None:
        """Take a signal, and pass its name on unless the same signal already came the other way."""
        here, there = (self._forwarded, self._direct) if is_forwarded else (self._direct, self._forwarded)
        here[name] += 1
        if here[name] > there[name]:
            self._heard(name)
