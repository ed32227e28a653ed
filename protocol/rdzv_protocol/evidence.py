"""Evidence of a hang: what the workers of one node were doing when they were examined, within a limited size.

The files behind it stay on the node, with the logs of the round.
"""

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from rdzv_protocol.constraints import Count, Line, Lines, Name, Rank, Seconds, Traceback
from rdzv_protocol.text import clip, printable

MOST_GROUPS = 32
MOST_FRAMES = 24
OUTERMOST_FRAMES = 8
"""Number of frames kept from the outer end of a stack with more than `MOST_FRAMES`; the others are inner ones."""
MOST_BYTES = 32 * 1024
"""Most bytes of all names of files and functions in one node's evidence, in UTF-8."""
MOST_ERRORS = 16

_MOST_FUNCTION, _MOST_FILE = 96, 192
FunctionName = Annotated[str, Meta(max_length=_MOST_FUNCTION)]
FilePath = Annotated[str, Meta(max_length=_MOST_FILE)]

_ENDING = {
    ("_shutdown", "threading"),
    ("_python_exit", "thread"),
    ("_exit_function", "util"),
    ("_exitfunc", "weakref"),
    ("destroy_process_group", "distributed_c10d"),
}
"""Outermost function, and its file, of a main thread whose script has ended: what Python runs before it exits."""


class Frame(Struct, frozen=True, kw_only=True):
    """One frame of a Python stack."""

    function: FunctionName
    file: FilePath
    """Path on the node; if it is too long, only its end."""
    line: Count = 0


class ProcessState(Enum):
    """State of a process, by the letter in /proc/PID/stat."""

    ALIVE = "alive"
    """Running, or asleep like a process that waits for something."""
    STOPPED = "stopped"
    TRACED = "traced"
    """Held by a debugger."""
    UNINTERRUPTIBLE = "uninterruptible"
    """In uninterruptible sleep (state D) in each of several samples: it waits for a disk, a file system or a driver."""
    ENDED = "ended"


class StackGroup(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Workers whose main threads had the same Python stack and state."""

    ranks: Annotated[tuple[Rank, ...], Meta(max_length=1_024)]
    frames: Annotated[tuple[Frame, ...], Meta(max_length=MOST_FRAMES)] = ()
    """Frames of the stack, innermost first; empty if no Python stack could be read."""
    state: ProcessState = ProcessState.ALIVE
    wchan: Name | None = None
    """Kernel function in which the first of these workers sleeps."""
    step: Count | None = None
    """Step that the script has reported with `node_agent.progress`."""
    collective: Count | None = None
    """Number of the last collective of the default process group, from torch's flight recorder."""


def has_ended_script(frames: Sequence[Frame]) -> bool:
    """Return whether this is the stack of a main thread whose script has ended."""
    if not frames:
        return False
    outermost = frames[-1]
    function, file = outermost.function.rpartition(".")[2], outermost.file.rpartition("/")[2].removesuffix(".py")
    return (function, file) in _ENDING


class LastError(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Exception at the end of a worker's stderr."""

    rank: Rank
    error: Line
    """The exception as Python writes it: "ValueError: boom"."""
    traceback: Traceback = ()
    is_uncaught: bool = False
    """Whether the exception is known to have ended the script, because torch has marked its lines."""
    is_consequence: bool = False
    """Whether the exception says that another worker is gone or late."""
    thread: Line = ""
    """Name of the thread that the exception has ended, if it was not the main thread: the process continues."""


class Evidence(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="tag", tag="evidence"):
    """Stacks and states of the workers of one node: what they were doing."""

    groups: Annotated[tuple[StackGroup, ...], Meta(max_length=MOST_GROUPS)]
    folder: Line = ""
    """Folder on the node with all of the evidence in files; empty if there is none."""
    problems: Lines = ()
    """Evidence that could not be collected, and why, for a person."""
    flight_recorder: Traceback = ()
    """Output of torch's `torchfrtrace` about this node's flight recorder dumps."""
    nccl: Traceback = ()
    """Errors and warnings about the communicators of the whole job, from NCCL's RAS subsystem."""
    took_s: Seconds = 0.0
    errors: Annotated[tuple[LastError, ...], Meta(max_length=MOST_ERRORS)] = ()
    """Exceptions at the end of the workers' stderr. A worker may have caught its exception and continued."""


def frame(function: str, file: str, line: int) -> Frame:
    """Return a frame whose names are printable and within the limits of the wire."""
    return Frame(
        function=clip(_sendable(function), _MOST_FUNCTION),
        file=_sendable(file)[-_MOST_FILE:],
        line=max(0, min(line, 10_000_000)),
    )


def bounded(groups: Iterable[StackGroup]) -> tuple[StackGroup, ...]:
    """Return the groups within the limits.

    The largest groups are left out first, and a large stack loses its middle.
    """
    kept, left = [], MOST_BYTES
    for group in sorted(groups, key=lambda group: len(group.ranks))[:MOST_GROUPS]:  # small groups tell the most
        frames = _both_ends(group.frames)
        size = sum(len(each.function.encode()) + len(each.file.encode()) for each in frames)
        if size > left:
            frames, size = (), 0
        left -= size
        kept.append(replace(group, frames=frames))
    return tuple(sorted(kept, key=lambda group: group.ranks))


def _both_ends(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    if len(frames) <= MOST_FRAMES:
        return frames
    return frames[: MOST_FRAMES - OUTERMOST_FRAMES] + frames[-OUTERMOST_FRAMES:]


def _sendable(text: str) -> str:
    return printable(text.encode(errors="replace").decode())
