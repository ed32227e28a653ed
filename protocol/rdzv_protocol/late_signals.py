"""Signals that come when a program has decided on its exit code and only has to end.

An event loop restores the usual effects of its signals when it is closed. A signal that comes between that and the
program's end would kill the program, and its exit code would say nothing about its run.
"""

import signal
from collections.abc import Callable, Iterable


def ignore(signums: Iterable[signal.Signals], remove_handler: Callable[[int], bool]) -> None:
    """Ignore those of the signals that the program handles, until it has ended.

    `remove_handler`: the event loop's method. It returns whether the loop has handled this signal.
    """
    signums = list(signums)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signums)  # while they have their usual effects
    for signum in signums:
        if remove_handler(signum):
            signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
