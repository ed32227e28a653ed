"""Program whose main thread ends while another thread continues: /proc then shows the process as a zombie.

Run it with an interpreter of its own, and wait with `until_leaderless`, or `is_leaderless`, until its main thread has
ended. With the argument `uninterruptibly` the other thread sleeps in state D. A signal to the process group ends both
this thread and the child for which it waits.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

PTRACE_SEIZE, WALL = 0x4206, 0x40000000
SYS_EXIT = {"x86_64": 60}.get(os.uname().machine, 93)
"""Number of exit(2), which ends one thread."""
SYS_CLONE, CLONE_VFORK = {"x86_64": 56}.get(os.uname().machine, 220), 0x4000
COMMAND = (sys.executable, "-IS", __file__)
WITHIN_S, PACE_S = 30.0, 0.001
"""Most seconds that a main thread may take to end, and seconds between two looks at it."""


def is_leaderless(pid: int) -> bool:
    """Return whether the main thread has ended. Fails if the whole process has."""
    state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    assert state != "Z" or int(fields[16]) > 1, f"process {pid} has ended"
    return state == "Z"


def until_leaderless(pid: int) -> None:
    """Wait until the main thread has ended. Fails if it has not in time."""
    until = time.monotonic() + WITHIN_S
    while not is_leaderless(pid):
        assert time.monotonic() < until, f"the main thread of {pid} has not ended"
        time.sleep(PACE_S)


class HeldThread:
    """A thread that cannot end when its process is killed, as if it hung in a driver: a debugger has not let it go."""

    def __init__(self, pid: int) -> None:
        (self._thread,) = (int(name) for name in os.listdir(f"/proc/{pid}/task") if int(name) != pid)
        ptrace = ctypes.CDLL(None, use_errno=True).ptrace
        ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
        assert ptrace(PTRACE_SEIZE, self._thread, None, None) == 0, os.strerror(ctypes.get_errno())

    def release(self) -> None:
        """Let the thread go, once its process was killed."""
        os.waitpid(self._thread, WALL)


def sleep_uninterruptibly() -> None:
    """Wait in state D for a child that neither ends nor executes anything: as after vfork(2)."""
    if ctypes.CDLL(None).syscall(SYS_CLONE, CLONE_VFORK | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        time.sleep(1000)


if __name__ == "__main__":
    sleeps = sleep_uninterruptibly if "uninterruptibly" in sys.argv else partial(time.sleep, 1000)
    threading.Thread(target=sleeps).start()
    ctypes.CDLL(None).syscall(SYS_EXIT, 0)
