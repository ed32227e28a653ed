"""Messages about workers, and about what the agent makes for them."""

from collections.abc import Collection, Sequence

from rdzv_protocol.text import count
from rdzv_protocol.text import ranks as ranks_as_text

_STATES = {"D": "uninterruptible sleep", "Z": "dead, but held by a debugger or a thread of its own"}
"""States of /proc/PID/stat in which a process survives SIGKILL."""


def cannot_start(title: str, why: str) -> str:
    return f"could not start {title}: {why}"


def no_cpu_left(cpus: Collection[int]) -> str:
    shown = ", ".join(map(str, sorted(cpus)))
    return f"this process may no longer use any of the CPUs {shown}; check the cpuset"


def no_pidfd(why: str) -> str:
    return (
        f"this process may not use pidfd_open and pidfd_send_signal ({why}), with which the agent watches workers: it "
        "needs Linux 5.3 or newer. In a container, update the container engine or change its seccomp profile"
    )


def cannot_kill(pid: int) -> str:
    return f"could not kill process {pid} in time; no longer waiting for it"


def killed_late(ranks: Sequence[int], signal_name: str, within_s: float, limit: str) -> str:
    """For workers that were killed when their time to end was over.

    `limit`: the flag or field that gave this time, empty if the user cannot change it there.
    """
    is_one = len(ranks) == 1
    who = f"{count(len(ranks), 'worker')} ({ranks_as_text(ranks)})"
    was, it_was = ("was", "it was") if is_one else ("were", "they were")
    advice = f"; if {it_was} saving, raise {limit}" if limit else ""
    return f"{who} did not end within {within_s:g} s of {signal_name} and {was} killed{advice}"


def left_behind(number: int) -> str:
    """For processes that workers had started and that the agent has ended, because the workers had exited 0."""
    them = "it" if number == 1 else "them"
    return (
        f"ended {number} process{'es' * (number != 1)} that still ran after the workers that had started {them} exited "
        "0; a script that starts its program with & must wait for it"
    )


def outlives_kill(pid: int, why: str) -> str:
    return (
        f"could not kill process {pid} ({why}): it stays behind, with its GPU memory and ports. "
        "If it does not end, look for the cause with dmesg, or restart the node"
    )


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
    """`exit_code`: None if it is unknown."""
    ended = f"the workers' store (process {pid}) ended unexpectedly"
    return ended if exit_code is None else f"{ended} with exit code {exit_code}"


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


def progress_is_hidden(path: str, why: str) -> str:
    """The script calls `progress`, but this process cannot open its agent's file."""
    return (
        f"node_agent.progress: this worker's progress is not reported: it cannot open {path} ({why}). Start node-agent "
        "in the worker's container and as its user. Otherwise --progress-timeout treats the worker as hung"
    )


def notices_are_hidden(path: str, why: str) -> str:
    """The script calls `notice`, but this process cannot open its agent's file."""
    return (
        f"node_agent.notice: this worker gets no notices: it cannot open {path} ({why}). Start node-agent in the "
        "worker's container and as its user"
    )


def steps_fall(before: int, step: int) -> str:
    return (
        f"node_agent.progress: the step went back from {before} to {step} without a restart. Report the number of "
        "steps done in all epochs. Otherwise --max-restarts-without-progress judges by how long each round lasts"
    )
