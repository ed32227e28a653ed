"""Signals that make an agent leave. They come from the sender, or the agent's supervisor forwards them.

A scheduler such as Slurm signals every process of a step. The agent then gets one signal twice, in either order.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable

from node_agent.kernel import early_signals
from node_agent.kernel.processes.process import to_handle

_MOST_READ = 4_096


class LeaveSignals:
    """Signals of an agent, from `listen` on. Those that come before `hand_to` wait for it."""

    def __init__(self, names: Iterable[str] = (), forwarded: int = -1) -> None:
        """`forwarded`: descriptor that delivers the numbers of forwarded signals, one byte each; -1 for none."""
        self._names, self._descriptor = names, forwarded
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
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._handled)  # the supervisor has blocked them
        if self._descriptor >= 0:
            asyncio.get_running_loop().add_reader(self._descriptor, self._read)

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

    def _read(self) -> None:
        try:
            numbers = os.read(self._descriptor, _MOST_READ)
        except ConnectionError:  # the supervisor died without having read the attempt's number
            numbers = b""
        if not numbers:  # the supervisor is gone, and the kernel ends this process
            asyncio.get_running_loop().remove_reader(self._descriptor)
        for number in numbers:
            self.come(signal.Signals(number).name, is_forwarded=True)
