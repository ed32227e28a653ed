"""Signals that come during a program's imports, and while it reads its command line.

SIGTERM waits until the agent can leave: its exit code then tells the scheduler to start the node again. SIGINT ends the
process at once, because a person waits. Python's own handler for it raises, and msgspec crashes if a handler raises
while it prepares a type.
"""

import signal
import sys

_waiting: list[int] = []


def hold() -> None:
    """Hold SIGTERM until `release`. The second one ends the process at once, as does each SIGINT.

    A SIGINT may have come before: during its own start, CPython prints `KeyboardInterrupt` and continues. This also
    corrects what the process has inherited.
    """
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _wait)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if getattr(sys, "last_type", None) is KeyboardInterrupt:
            signal.raise_signal(signal.SIGINT)
    from rdzv_protocol import inherited  # with SIGTERM held

    inherited.correct()


def _wait(signum: int, _: object) -> None:
    _waiting.append(signum)
    signal.signal(signum, signal.SIG_DFL)


def is_held() -> bool:
    """Return whether a SIGTERM waits for `release`."""
    return bool(_waiting)


def release() -> None:
    """Send the held signal to this process again. Signals that have no handler by now get their usual effects."""
    if signal.getsignal(signal.SIGTERM) is _wait:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    while _waiting:
        signal.raise_signal(_waiting.pop())
