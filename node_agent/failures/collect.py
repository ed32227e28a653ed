"""A worker's failure: everything about its end that can be found out once it is gone."""

import signal
import time
from typing import TYPE_CHECKING

from rdzv_protocol.messages import Failure

from node_agent.failures import error_file
from node_agent.failures.diagnose import weigh

if TYPE_CHECKING:
    from node_agent.failures.oom import OomWatch
    from node_agent.workers.group import WorkerSpec

_SIGNAL_NAMES = {number.value: number.name for number in signal.Signals}
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)


def examine(spec: "WorkerSpec", pid: int, exit_code: int, stderr: tuple[str, ...], oom: "OomWatch | None") -> Failure:
    """The failure of a worker that has been reaped. Never raises, whatever the worker left behind."""
    recorded = error_file.read(spec.error_file) if spec.error_file else None
    evidence = weigh(
        exit_code,
        stderr,
        recorded,
        signal_names=_SIGNAL_NAMES,
        out_of_memory=oom.verdict() if oom and exit_code in _KILLED else "",
    )
    return Failure(
        node_id=spec.node_id,
        rank=spec.rank,
        local_rank=spec.local_rank,
        pid=pid,
        exit_code=exit_code,
        cause=evidence.cause,
        error=evidence.error,
        traceback=evidence.traceback,
        stderr_tail=evidence.stderr_tail,
        hint=evidence.hint,
        consequence=evidence.consequence,
        error_file=spec.error_file if recorded and not recorded.problem else "",
        failed_at=(recorded and recorded.at) or time.time(),
    )
