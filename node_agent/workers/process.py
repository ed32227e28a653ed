"""Child processes: started in a session of their own, tied to the agent's life, and watched without polling."""

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

_PR_SET_PDEATHSIG = 1
_STATES = {"D": "uninterruptible sleep", "Z": "dead, but held by a debugger or a thread of its own"}
"""States of /proc/PID/stat in which a process outlives SIGKILL."""
_libc = ctypes.CDLL(None, use_errno=True)


class Process(Protocol):
    """A started child. It leads its own process group."""

    pid: int

    def fileno(self) -> int:
        """A descriptor that becomes readable when the child has exited."""

    def reap(self) -> int:
        """Exit code of a child that has exited, negative for a signal. Frees everything that was its own."""


own_children: set[int] = set()
"""Children that somebody here waits for: nobody else may reap them."""

Start = Callable[[int, int], Process]
"""Starts a child whose stdout and stderr are these descriptors. Raises `OSError` with one line that says why not."""


class CommandProcess:
    """A child that executes a command. Raises `OSError`, also if it cannot be watched: then it is killed."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        stdout: int,
        stderr: int,
        cpus: Collection[int] = (),
        stdin: int | None = None,
        pass_fds: Collection[int] = (),
        outlives_agent: bool = False,
    ) -> None:
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            preexec_fn=None if outlives_agent else _preparation(cpus),
            pass_fds=pass_fds,
        )
        self.pid = self._process.pid
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except OSError:
            signal_group(self.pid, signal.SIGKILL)
            self._process.wait()
            raise
        own_children.add(self.pid)

    def fileno(self) -> int:
        return self._pidfd

    def reap(self) -> int:
        os.close(self._pidfd)
        exit_code = self._process.wait()
        own_children.discard(self.pid)
        return exit_code

    def disown(self) -> None:
        """Let it go on by itself: nobody here waits for it any more."""
        os.close(self._pidfd)
        self._process.returncode = 0  # or the destructor would complain of a child that still runs


def tie_to_parent(parent: int) -> None:
    """Called in a child: the kernel kills it when `parent` dies. Also if that was before the tie was made."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def signal_group(pid: int, signum: int) -> None:
    """Signal the process group that `pid` leads."""
    try:
        os.killpg(pid, signum)
    except ProcessLookupError:
        pass
    except PermissionError:  # every process left in the group is another user's, or a zombie on some kernels
        pass


def kill_and_reap(pid: int) -> None:
    """End a child that nobody else waits for; it may be gone already."""
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def given_up(pid: int) -> str:
    """Line that says that a child outlives SIGKILL, and why, as far as the kernel tells."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            state = stat.read().rpartition(")")[2].split()[0]
        with open(f"/proc/{pid}/wchan") as wchan:
            place = wchan.read()
    except OSError:  # gone this moment, or not ours to look at
        return f"could not kill pid {pid}: giving it up"
    where = f" in {place}" if place not in ("", "0") else ""
    why = _STATES.get(state, f"state {state}")
    return f"could not kill pid {pid} ({why}{where}): giving it up, and what it holds with it"


def _preparation(cpus: Collection[int]) -> Callable[[], None]:
    """Function that the child calls before it executes its command."""
    agent = os.getpid()

    def prepare() -> None:
        tie_to_parent(agent)
        if cpus:
            os.sched_setaffinity(0, cpus)

    return prepare
