"""Child processes: started in their own session, tied to the agent's life, and watched without polling."""

import os
import resource
import signal
import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from errno import EINVAL
from typing import Protocol

from node_agent import words
from node_agent.kernel.processes.forking import Fork, NotSetUp
from node_agent.kernel.processes.orphans_helper import MARK, becomes_readable, limit_for, mark_descendants
from node_agent.kernel.processes.system_calls import PR_SET_PDEATHSIG, pidfd_open, prctl, why_no_pidfd

_STDIN, _STDOUT, STDERR = range(3)
DEVNULL = subprocess.DEVNULL
_CPU_TIME_ERROR, _LEAST_CPU_TIME_ERROR_S = 0.01, 0.3
"""Error of the processor time in /proc, as a share of a limit, and at least in seconds. It is a measured time, but
Linux compares the limit with a count of its clock's ticks.
"""
KILL_TIMEOUT_S = 30.0
"""Seconds after which a child counts as surviving SIGKILL, as it may in uninterruptible sleep."""
_BLOCKED, _CAUGHT, _IGNORED = b"SigBlk", b"SigCgt", b"SigIgn"
"""Fields of /proc/PID/status with masks of signals, in hexadecimal."""


class Process(Protocol):
    """A started child, which leads its own process group."""

    pid: int

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the child has exited."""

    def wait_until_started(self) -> None:
        """Return when the child executes its program. Raises `OSError` with one line if there is no child then.

        Call it before all other methods. Later calls do nothing.
        """

    def reap(self) -> int:
        """Return the exit code of an exited child, negative for a signal. Release all resources of the child."""


own_children: set[int] = set()
"""Children that code in this process waits for. Other code must not reap them."""
outlived_kill: set[int] = set()
"""Children that have survived SIGKILL and are not waited for any more."""

Start = Callable[[int, int], Process]
"""Start a child with these descriptors as stdout and stderr. Raises `OSError` with one line that gives the reason. The
child may still be about to execute its program."""


class ChildProcess:
    """A child of this process that leads its own group. If it cannot be watched, it is killed, and this raises
    `OSError`.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._watch()

    def _watch(self) -> None:
        try:
            self._pidfd = pidfd_open(self.pid)
        except OSError as error:
            signal_group(self.pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
            if why := why_no_pidfd():
                raise OSError(error.errno, words.workers.no_pidfd(why)) from error
            raise
        own_children.add(self.pid)

    def fileno(self) -> int:
        return self._pidfd

    def wait_until_started(self) -> None:
        pass

    def reap(self) -> int:
        os.close(self._pidfd)
        _, status = os.waitpid(self.pid, 0)
        own_children.discard(self.pid)
        return os.waitstatus_to_exitcode(status)

    def end(self, within_s: float) -> int:
        """Kill the child's group and return its exit code. Stop waiting if the child has not ended in time."""
        signal_group(self.pid, signal.SIGKILL)
        if becomes_readable(self._pidfd, within_s):
            return self.reap()
        self.disown()
        outlived_kill.add(self.pid)
        return -signal.SIGKILL

    def disown(self) -> None:
        """Let the child continue by itself, without waiting for its end."""
        os.close(self._pidfd)

    def abandon(self) -> None:
        """Kill the child's group without waiting: the child may be in uninterruptible sleep.

        If it has not ended yet, the code that reaps orphans reaps it.
        """
        signal_group(self.pid, signal.SIGKILL)
        self.disown()
        own_children.discard(self.pid)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)


class CommandProcess(ChildProcess):
    """A child that executes a command, tied to the agent's life. Raises `OSError` if it cannot be started or watched.

    `stdin`: a descriptor, `DEVNULL`, or None for the agent's own. `ignored`: signals that it ignores from its start.
    If `waits` is false, the child may still be about to execute the command: call `wait_until_started`.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        stdout: int,
        stderr: int,
        cpus: Collection[int] = (),
        stdin: int | None = None,
        pass_fds: Collection[int] = (),
        ignored: Collection[int] = (),
        *,
        waits: bool = True,
    ) -> None:
        agent, mark = os.getpid(), environment.get(MARK)
        limit = limit_for(os.fsencode(f"{MARK}={mark}")) if mark else 0

        def set_up() -> None:
            tie_to_parent(agent)
            if limit:
                with suppress(OSError, ValueError):  # such as a sandbox without this limit
                    mark_descendants(limit)
            if cpus:
                os.sched_setaffinity(0, cpus)
            for signum in ignored:
                signal.signal(signum, signal.SIG_IGN)

        self._cpus = cpus
        given = {_STDIN: stdin, _STDOUT: stdout, STDERR: stderr}
        nowhere = os.open(os.devnull, os.O_RDWR) if DEVNULL in given.values() else -1
        try:
            streams = {n: nowhere if stream == DEVNULL else stream for n, stream in given.items() if stream is not None}
            self._fork: Fork | None = Fork(command, environment, streams, pass_fds, set_up)
        finally:
            if nowhere >= 0:
                os.close(nowhere)
        self.pid = self._fork.pid
        if waits:
            self.wait_until_started()

    def wait_until_started(self) -> None:
        if self._fork is None:
            return
        fork, self._fork = self._fork, None
        try:
            fork.wait_until_executed()
        except OSError as error:
            os.waitpid(self.pid, 0)
            if isinstance(error, NotSetUp):
                raise OSError(EINVAL, words.workers.no_cpu_left(self._cpus)) from error
            raise
        self._watch()


class OutlivingProcess(ChildProcess):
    """A child that executes a command and continues when the agent dies. Raises `OSError` if it cannot be started.

    `folder`: its working folder, by default the agent's.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        stdout: int,
        stderr: int,
        stdin: int,
        pass_fds: Collection[int] = (),
        folder: str | None = None,
    ) -> None:
        process = subprocess.Popen(
            command, env=environment, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True,
            pass_fds=pass_fds, cwd=folder,
        )  # fmt: skip
        process.returncode = 0  # only `reap` handles its end
        super().__init__(process.pid)


def to_handle(names: Iterable[str]) -> list[signal.Signals]:
    """Return the signals of these names that an agent handles: all, except a SIGHUP that it was started to ignore.

    `nohup` sets that. A shell makes background commands ignore SIGINT and SIGQUIT only because of the keyboard.
    """
    signals = [signal.Signals[name] for name in names]
    return [each for each in signals if each != signal.SIGHUP or signal.getsignal(each) is not signal.SIG_IGN]


def tie_to_parent(parent: int) -> None:
    """Make the kernel kill this process, a child, when `parent` dies, even if it died before this call."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
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


def outlasts(pid: int, *signums: int) -> bool | None:
    """Return whether a process blocks, ignores or catches one of these signals, which then may not end it.

    The process may be a zombie. Return False if its state cannot be read, and None as `waits_for` does.
    """
    return _waits(pid, (_CAUGHT, _IGNORED), signums)


def waits_for(pid: int, *signums: int) -> bool | None:
    """Return whether a process catches one of these signals, or blocks it and may wait for it.

    Return False if its state cannot be read. Return None if it blocks all signals, also SIGSEGV, for which no program
    waits: perhaps only for the moment in which it starts another program.
    """
    return _waits(pid, (_CAUGHT,), signums)


def _waits(pid: int, names: Collection[bytes], signums: Collection[int]) -> bool | None:
    masks = _masks(pid)
    if any(_is_in(masks.get(name, 0), signum) for name in names for signum in signums):
        return True
    blocked = masks.get(_BLOCKED, 0)
    is_blocked = any(_is_in(blocked, signum) for signum in signums)
    return None if is_blocked and _is_in(blocked, signal.SIGSEGV) else is_blocked


def expects(pid: int, signum: int) -> bool:
    """Return whether a process certainly handles the signal: it catches the signal, or blocks it and may wait for it.

    Return False if its state cannot be read, and if it blocks SIGSEGV too, for which no program waits. Shells and
    Python's `subprocess` block all signals for a moment when they start a program. So does the child, which has the
    parent's handlers until it executes the program. The signal would then kill that program.
    """
    masks = _masks(pid)
    blocked = masks.get(_BLOCKED, 0)
    return not _is_in(blocked, signal.SIGSEGV) and _is_in(blocked | masks.get(_CAUGHT, 0), signum)


def _masks(pid: int) -> Mapping[bytes, int]:
    """Return the masks of signals in /proc/PID/status by their names, none if it cannot be read."""
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            fields = (line.split(b":", 1) for line in status.read().splitlines())
            return {name: int(mask, 16) for name, mask in fields if name in (_BLOCKED, _CAUGHT, _IGNORED)}
    except (OSError, ValueError):
        return {}


def _is_in(mask: int, signum: int) -> bool:
    return bool(mask >> (signum - 1) & 1)


def has_used_up_cpu_time(pid: int) -> bool:
    """Return whether a process has used the processor time of its hard limit, for which Linux kills it with SIGKILL.

    Its children do not count: each has the limit for itself. At the soft limit, Linux sends SIGXCPU, unless both limits
    are equal. The process may be a zombie. Return False if its state cannot be read.
    """
    try:
        limit_s = resource.prlimit(pid, resource.RLIMIT_CPU)[1]
        with open(f"/proc/{pid}/stat", "rb") as stat:
            user, system = stat.read().rpartition(b")")[2].split()[11:13]
    except (OSError, ValueError):
        return False
    used_s = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return limit_s != resource.RLIM_INFINITY and reaches_cpu_limit(used_s, limit_s)


def reaches_cpu_limit(used_s: float, limit_s: int) -> bool:
    """Return whether the processor time of a process, as /proc shows it, is so near its limit that Linux kills it."""
    return used_s >= limit_s - max(_LEAST_CPU_TIME_ERROR_S, _CPU_TIME_ERROR * limit_s)


def given_up(pid: int) -> str:
    """Return the line about a child that has survived SIGKILL, with the reason if the kernel shows it."""
    letter, place = state(pid), None
    with suppress(OSError), open(f"/proc/{pid}/wchan") as wchan:
        place = wchan.read()
    if not letter or place is None:  # just ended, or this process may not read it
        return words.workers.cannot_kill(pid)
    return words.workers.outlives_kill(pid, words.workers.in_state(letter, "" if place == "0" else place))


def state(pid: int | str) -> str:
    """Return the state letter of a process's main thread as in /proc, empty if it is gone.

    `pid`: may name another thread, as PID/task/TID.
    """
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
