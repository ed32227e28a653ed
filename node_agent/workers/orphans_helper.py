"""Program of the guardian whose agent has died without a word: it tidies up after it.

It ends every process that carries the agent's mark, then removes the agent's temporary folder. A program of its own,
started by node_agent/workers/orphans.py; its arguments are the mark as it stands in the environment, and the folder.
The workers themselves die with the agent (PR_SET_PDEATHSIG): this is for their children, in whatever session they are.
"""

import os
import select
import signal
import sys


def main(mark: bytes, folder: bytes) -> int:
    code = _end(mark)
    import shutil

    shutil.rmtree(folder, ignore_errors=True)  # it may never have been made
    return code


def is_marked(pid: int, mark: bytes) -> bool:
    """Whether the mark stands in the process's environment; of a zombie, or another user's, it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            return mark in environ.read().split(b"\0")
    except OSError:
        return False


def has_ended(pid: int, within_s: float) -> bool:
    """Whether the process is gone in time, or a zombie."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return becomes_readable(descriptor, within_s)
    finally:
        os.close(descriptor)


def becomes_readable(descriptor: int, within_s: float) -> bool:
    """Whether the descriptor is readable in time; that of a process is when it has ended."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * max(0.0, within_s)))


def _end(mark: bytes) -> int:
    """Kill until nothing is left; what is killed may have started something else just before."""
    while marked := [pid for pid in _processes() if is_marked(pid, mark)]:
        for pid in marked:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                return 1  # it may not be killed: looking again would never end
        for pid in marked:
            has_ended(pid, 5.0)
    return 0


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


if __name__ == "__main__":
    sys.exit(main(*map(os.fsencode, sys.argv[1:])))
