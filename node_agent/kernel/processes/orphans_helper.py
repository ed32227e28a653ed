"""Program of the guardian: cleans up after an agent that has died suddenly.

It ends every process that has the agent's mark or that the agent's roster leads to, then removes the agent's temporary
folder. `orphans.py` starts it as a separate program. Its arguments are the mark as the environment has it, the folder,
and the descriptor of the roster. The workers themselves die with the agent (PR_SET_PDEATHSIG), so this program ends
their descendants, in any session.

It identifies a process by its pid and start time, and signals it through a pidfd. So it never ends another process that
has reused a pid.
"""

import errno
import os
import resource
import select
import signal
import struct
import sys
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress

if not __package__:  # isolated and run by its path: this package would not be found
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from node_agent.kernel.processes.system_calls import pidfd_open, pidfd_send_signal

MARK = "NODE_AGENT_ID"
"""Variable in the environment of every worker, inherited by all processes that the worker starts."""
LIMIT = 10
"""Linux's RLIMIT_LOCKS, which has had no effect since Linux 2.4. Processes also inherit it if their environment is
cleared, so it carries the mark, too."""
_LIMIT_NAME = b"Max file locks"
EMPTY_LOOKS = 2
"""Number of consecutive looks that must find nothing. One look can miss a process that starts meanwhile."""
END_S = 5.0
"""Most seconds to wait for the processes that one look has found."""
MOST_AT_ONCE = 200
"""Most process descriptors that are open at the same time."""
EXEC_S, EXEC_PAUSE_S = 0.5, 0.001
"""Most seconds to wait while a process executes another program, and between two looks at it."""
_MEMORY, _CODE, _COMMAND_LINE, _ENVIRONMENT = 20, 23, 45, 47
"""Places in /proc/PID/stat, counted from the state. `_MEMORY`: the size of the process's memory, 0 for a zombie.
`_CODE`: the beginning of the code, 0 until the program is executed. The last two: the beginning of the command and of
the environment, each before its end."""
_ENTRY = struct.Struct("=qqq")
"""Entry of the roster: a pid, the start time of its process, and whether it is a worker."""


class Process:
    """Process as /proc shows it."""

    def __init__(self, parent: int, group: int, session: int, began: int, *, is_leaderless: bool = False) -> None:
        """`began`: start time in ticks of the kernel's clock since boot.

        `is_leaderless`: whether its main thread has ended while others run. Its environment can then be read only from
        another thread.
        """
        self.parent, self.group, self.session, self.began = parent, group, session, began
        self.is_leaderless = is_leaderless


class Roster:
    """Processes of an agent by pid, each with its start time."""

    def __init__(self, workers: dict[int, int], others: dict[int, int]) -> None:
        """`workers`: workers that the agent has not reaped. Until then no other process can get such a pid or session.

        `others`: descendants of the workers.
        """
        self.workers, self.others = workers, others


def main(mark: bytes, folder: bytes, roster: bytes) -> int:
    code = end_all(mark, read_roster(int(roster)) if int(roster) >= 0 else Roster({}, {}))
    import shutil

    shutil.rmtree(folder, ignore_errors=True)  # it may not exist
    return code


def end_all(mark: bytes, roster: Roster) -> int:
    """Kill until `EMPTY_LOOKS` looks find nothing. Return 1 if a process could not be ended; later looks ignore that
    process.
    """
    spared: dict[int, int] = {os.getpid(): began(os.getpid())}
    known, looks, code = dict(roster.others), 0, 0
    while looks < EMPTY_LOOKS:
        found = processes()
        known |= {
            pid: process.began
            for pid, process in found.items()
            if is_marked(pid, mark, is_leaderless=process.is_leaderless)
        }
        ours = {pid: found[pid].began for pid in related(found, Roster(roster.workers, known))}
        known |= ours
        victims = {pid: when for pid, when in ours.items() if spared.get(pid) != when}
        left = end(victims, END_S)
        spared |= {pid: victims[pid] for pid in left}
        looks, code = 0 if victims else looks + 1, code or int(bool(left))
    return code


def related(found: Mapping[int, Process], roster: Roster) -> set[int]:
    """Return the pids of the roster's processes, of those in a worker's session, and of all their descendants."""
    known = roster.others | roster.workers
    ours = {pid for pid, process in found.items() if known.get(pid) == process.began}
    sessions = {pid for pid, when in roster.workers.items() if pid not in found or found[pid].began == when}
    ours |= {pid for pid, process in found.items() if process.session in sessions}
    by_parent: dict[int, list[int]] = {}
    for pid, process in found.items():
        by_parent.setdefault(process.parent, []).append(pid)
    unseen = list(ours)
    while unseen:
        further = [pid for pid in by_parent.get(unseen.pop(), ()) if pid not in ours]
        ours.update(further)
        unseen += further
    return ours


def end(victims: Mapping[int, int], within_s: float) -> set[int]:
    """Kill processes, given by pid and start time, and wait for their end. Return those that still run."""
    until, left, pids = time.monotonic() + within_s, set[int](), list(victims)
    for first in range(0, len(pids), MOST_AT_ONCE):
        some = pids[first : first + MOST_AT_ONCE]
        killed = {pid: descriptor for pid in some if (descriptor := _kill(pid, victims[pid])) is not None}
        for pid, descriptor in killed.items():
            if not becomes_readable(descriptor, until - time.monotonic()):
                left.add(pid)
            os.close(descriptor)
    return left


def _kill(pid: int, when: int) -> int | None:
    """Kill a process. Return its pidfd, or None if it has ended before."""
    try:
        descriptor = pidfd_open(pid)
    except OSError:
        return None
    if began(pid) != when:  # the descriptor belongs to another process that has this pid now
        os.close(descriptor)
        return None
    with suppress(OSError):  # it has ended, or is another user's: the wait shows which
        pidfd_send_signal(descriptor, signal.SIGKILL)
    return descriptor


# Reading /proc.


def processes() -> dict[int, Process]:
    """Return all processes by pid, except those that have ended."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return {pid: process for pid in pids if (process := look_at(pid))}


def look_at(pid: int) -> Process | None:
    """Return the process with this pid, None if it is gone or a zombie.

    A main thread that has ended is shown as a zombie, too. Its process has not ended as long as it has other threads.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            state, *fields = stat.read().rpartition(b")")[2].split()
    except (OSError, ValueError):
        return None
    if state == b"X" or (state == b"Z" and int(fields[16]) <= 1):
        return None
    parent, group, session, began = (int(fields[place]) for place in (0, 1, 2, 18))
    return Process(parent, group, session, began, is_leaderless=state == b"Z")


def began(pid: int) -> int:
    """Return the start time of the process, by which it differs from others with its pid; -1 if it is gone."""
    process = look_at(pid)
    return process.began if process else -1


def is_marked(pid: int, mark: bytes, *, is_leaderless: bool = False) -> bool:
    """Return whether the process's environment or limit has the mark. False for a zombie or another user's process."""
    try:
        is_in_environment = mark in (_environment_of_threads(pid) if is_leaderless else _environment(str(pid)))
        return is_in_environment or limit_of(pid) == limit_for(mark)
    except OSError:
        return False


def mark_descendants(limit: int) -> None:
    """Mark this process and the descendants that it starts from now on by their limit, unless the limit is in use."""
    soft, hard = resource.getrlimit(LIMIT)
    if hard == resource.RLIM_INFINITY and (soft == hard or soft & _MARKED):
        resource.setrlimit(LIMIT, (limit, hard))


def limit_for(mark: bytes) -> int:
    """Return the limit that carries a mark, given as the environment has it."""
    return _MARKED | zlib.crc32(mark) << 30 | zlib.crc32(mark[::-1]) >> 2


_MARKED = 1 << 62


def limit_of(pid: int) -> int:
    """Return the limit of a process that may carry a mark, 0 if it has none. Raises `OSError` if it is gone."""
    with open(f"/proc/{pid}/limits", "rb") as limits:
        values = (line.removeprefix(_LIMIT_NAME).split()[0] for line in limits if line.startswith(_LIMIT_NAME))
        return next((int(value) for value in values if value.isdigit()), 0)


def environment(pid: int) -> list[bytes]:
    """Return the entries of a process's environment. Raises `OSError` for a zombie or another user's process."""
    try:
        if entries := _environment(str(pid)):
            return entries
    except OSError:
        if not _is_leaderless(pid):
            raise
    return _environment_of_threads(pid) if _is_leaderless(pid) else []  # older kernels show it as empty


def _is_leaderless(pid: int) -> bool:
    process = look_at(pid)
    return process is not None and process.is_leaderless


def _environment_of_threads(pid: int) -> list[bytes]:
    """Return the entries of the environment of a process whose main thread has ended."""
    entries: list[bytes] | None = None
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(OSError):  # this thread has ended, or all belong to another user
            if entries := _environment(f"{pid}/task/{thread}"):
                return entries
    if entries is None:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    return entries


def _environment(task: str) -> list[bytes]:
    return _of_program(task, "environ", _ENVIRONMENT)


def command_line(pid: int) -> list[bytes]:
    """Return the words of a process's command, empty for a zombie. Raises `OSError` if the process is gone."""
    return _of_program(str(pid), "cmdline", _COMMAND_LINE)


def _of_program(task: str, name: str, place: int) -> list[bytes]:
    """Return the entries of a file in /proc about the program of a process or thread.

    The file is empty for a moment while the process executes another program. This waits until it has.
    """
    until = time.monotonic() + EXEC_S
    while True:
        with open(f"/proc/{task}/{name}", "rb") as file:
            if text := file.read():
                return text.split(b"\0")
        with open(f"/proc/{task}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
        has_program, is_executed = fields[_MEMORY] != b"0", fields[_CODE] != b"0"
        is_empty = fields[place] == fields[place + 1]
        if not has_program or (is_executed and is_empty) or time.monotonic() > until:
            return []
        if not is_executed:
            time.sleep(EXEC_PAUSE_S)


def has_ended(pid: int, within_s: float) -> bool:
    """Wait for the process to end. Return whether it is gone or a zombie in time."""
    try:
        descriptor = pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return becomes_readable(descriptor, within_s)
    finally:
        os.close(descriptor)


def becomes_readable(descriptor: int, within_s: float) -> bool:
    """Return whether the descriptor becomes readable in time. A process's pidfd does when the process has ended."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * max(0.0, within_s)))


# The roster.


def write_roster(file: int, roster: Roster) -> None:
    """Write the whole roster. If the writer is killed meanwhile, a reader gets a mixture of the old and the new one."""
    data = b"".join(
        _ENTRY.pack(pid, when, is_worker)
        for is_worker, those in enumerate((roster.others, roster.workers))
        for pid, when in those.items()
    )
    os.pwrite(file, data, 0)
    os.ftruncate(file, len(data))


def read_roster(file: int) -> Roster:
    data = os.pread(file, os.fstat(file).st_size, 0)
    entries = list(_ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size]))
    workers = {pid: when for pid, when, is_worker in entries if is_worker}
    return Roster(workers, {pid: when for pid, when, is_worker in entries if not is_worker})


if __name__ == "__main__":
    sys.exit(main(*map(os.fsencode, sys.argv[1:])))
