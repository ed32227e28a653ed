"""Signals that make an agent leave. They come from the sender, or the agent's supervisor forwards them.

A scheduler such as Slurm signals every process of a step. The agent then gets one signal twice, in either order.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable

from node_agent.kernel.workers.process import to_handle

_MOST_READ = 4_096


class LeaveSignals:
    """Signals of an agent, from `listen` on. Those that come before `hand_to` wait for it."""

    def __init__(self, names: Iterable[str] = (), forwarded: int = -1) -> None:
        """`forwarded`: descriptor that delivers the numbers of forwarded signals, one byte each; -1 for none."""
        self._names, self._descriptor = names, forwarded
        self._waiting: list[str] = []
        self._heard: Callable[[str], object] = self._waiting.append
        self._direct = Counter[str]()
        self._forwarded = Counter[str]()

    def listen(self) -> None:
        """Handle the signals in the running event loop."""
        loop = asyncio.get_running_loop()
        for signum in to_handle(self._names):
            loop.add_signal_handler(signum, self.come, signum.name)
        if self._descriptor >= 0:
            loop.add_reader(self._descriptor, self._read)

    def hand_to(self, heard: Callable[[str], object]) -> None:
        """Call `heard` with the name of each signal, also of those that wait; only once if a signal comes both ways."""
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
