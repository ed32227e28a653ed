"""Messages about workers, and about what the agent makes for them."""

from collections.abc import Collection

_STATES = {"D": "uninterruptible sleep", "Z": "dead, but held by a debugger or a thread of its own"}
"""States of /proc/PID/stat in which a process survives SIGKILL."""


def cannot_start(title: str, why: str) -> str:
    return f"could not start {title}: {why}"


def no_cpu_left(cpus: Collection[int]) -> str:
    shown = ", ".join(map(str, sorted(cpus)))
    return f"this process may no longer use any of the CPUs {shown}; check the cpuset"


def cannot_kill(pid: int) -> str:
    return f"could not kill pid {pid}; continuing without it"


def outlives_kill(pid: int, why: str) -> str:
    return f"could not kill pid {pid} ({why}); continuing; its GPU memory and ports stay in use"


def in_state(state: str, place: str) -> str:
    """`state`: a process's letter in /proc. `place`: where in the kernel it waits, empty if unknown."""
    return _STATES.get(state, f"state {state}") + (f" in {place}" if place else "")


def no_port(port: int, why: str) -> str:
    """`port`: 0 for any."""
    return f"cannot reserve {port or 'a free port'} as MASTER_PORT: {why}"


# The workers' store.


def store_cannot_listen(why: str) -> str:
    return f"the workers' store cannot listen: {why}"


def store_not_started(why: str) -> str:
    return f"could not start the workers' store: {why}"


def store_ended(pid: int, exit_code: int | None) -> str:
    return f"the workers' store (process {pid}) ended unexpectedly with exit code {exit_code}"


# The folder of temporary files.

NOT_A_FOLDER = "it is not a folder"
NOT_WRITABLE = "this user may not write to it"
DISK_FULL = "its disk is full"


def tmpdir_unusable(tmpdir: str, problem: str, instead: str) -> str:
    return f"cannot use TMPDIR={tmpdir}: {problem}; the agent keeps temporary files in {instead}"


# In a worker's own stderr.


def progress_of_another_version(file: str) -> str:
    """The script calls `progress` of a package version that differs from its agent's."""
    return (
        "node_agent.progress: this worker's progress is not reported: the script imports another version of "
        f"node_agent ({file}) than its agent; install the agent's version there"
    )
