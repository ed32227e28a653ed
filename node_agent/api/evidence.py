"""What the agent knows of a worker's end, as a program is told it."""

import atexit
import os
import signal
import time
from contextlib import suppress
from typing import Any

from rdzv_protocol.messages import Failure

from node_agent.api.errors import ProcessFailure
from node_agent.failures import error_file
from node_agent.workers.temp_dir import ScratchDir


def process_failure(
    failure: Failure, recorded: dict[str, Any] | None = None, *, was_stopped: bool = False
) -> ProcessFailure:
    """With the worker's own error file while that can be read. Where it is gone, or another node's, with one that says
    the same: `recorded`, or what else is known of the error. Without any error it says how the worker ended.
    """
    path = failure.error_file
    if not path or not os.path.isfile(path):
        path = _kept(recorded or _told_again(failure))
    told = ProcessFailure(failure.local_rank, failure.pid, failure.exit_code, path)
    if not path:
        cause = f"{failure.cause.partition(':')[0]}: it was told to go" if was_stopped else failure.cause
        told.message = "\n".join([cause, *(f"  | {line}" for line in failure.stderr_tail)])
        told.timestamp = int(failure.failed_at or told.timestamp)
    return told


def unkillable(local_rank: int, pid: int) -> ProcessFailure:
    """Of a process that SIGKILL has not ended: it hangs in the kernel."""
    told = ProcessFailure(local_rank, pid, -signal.SIGKILL, "")
    told.message = f"SIGKILL has not ended pid {pid}, which hangs in the kernel; given up"
    return told


def _told_again(failure: Failure) -> dict[str, Any] | None:
    if not failure.error:
        return None
    traceback = "\n".join(failure.traceback) or failure.error
    return error_file.content(failure.error, traceback, failure.failed_at or time.time())


def _kept(content: dict[str, Any] | None) -> str:
    """A file for torch's `@record`, which copies what it finds there. It goes with this process."""
    if content is None:
        return ""
    folder = ScratchDir()
    atexit.register(folder.remove)
    with suppress(OSError):
        path = folder.path("error.json")
        error_file.write(path, content)
        return path
    return ""
