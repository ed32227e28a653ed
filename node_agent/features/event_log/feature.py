"""`--event-log-handler console`: writes torchrun's events to stderr as lines of JSON, in torch's format.

There is one event when a worker starts and one when it ends (SUCCEEDED, FAILED, or TERMINATED if it was stopped because
another worker failed). There are two events for each rendezvous, and one for the agent's own end.
"""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from rdzv_protocol.messages import Assignment, Failure

from node_agent.kernel.feature import Feature, Kernel
from node_agent.kernel.output.console import ERR


class EventLog(Feature):
    """Writes this agent's events. `write` takes one line. If it is None, lines go to the console's stderr."""

    def __init__(self, kernel: Kernel, options: object = None, write: Callable[[str], None] | None = None) -> None:
        super().__init__(kernel)
        self._config = kernel.config
        self._write = write or (lambda line: kernel.console.write(ERR, f"{line}\n".encode()))
        self._began = time.monotonic()
        self._joined_at = self._began
        self._assignment: Assignment | None = None
        self._pids: Mapping[int, int] = {}
        self._failure: Failure | None = None

    def joining(self) -> None:
        self._joined_at = time.monotonic()

    def started(self, assignment: Assignment, pids: Mapping[int, int]) -> None:
        self._assignment, self._pids, self._failure = assignment, pids, None
        self._record("RENDEZVOUS", duration_ms=(time.monotonic() - self._joined_at) * 1000)
        self._record("ASSIGN_WORKER_RANKS", duration_ms=0.0)  # the ranks come with the rendezvous
        for local_rank, pid in pids.items():
            self._record("START", local_rank, pid=pid)

    def failed(self, failure: Failure) -> None:
        self._failure = failure

    def ended(self, exit_code: int) -> None:
        state, failure = "FAILED" if exit_code else "SUCCEEDED", self._failure
        for local_rank, pid in self._pids.items():
            if failure and failure.local_rank == local_rank:
                self._record(state, local_rank, failure.pid, failure.exit_code, raw_error=failure.cause)
            else:
                self._record("TERMINATED" if exit_code else state, local_rank, pid)
        self._record(state, raw_error=failure.cause if failure and exit_code else None)

    def _record(
        self,
        state: str,
        local_rank: int | None = None,
        pid: int | None = None,
        exit_code: int | None = None,
        **measured: str | float | None,
    ) -> None:
        import json

        assignment, global_rank = self._assignment, None
        details: dict[str, Any] = {
            "group_world_size": assignment and assignment.group_world_size,
            "entry_point": os.path.basename(self._config.command.title),
        }
        if assignment and local_rank is not None:
            global_rank = assignment.first_rank + local_rank
            details |= {
                "local_rank": [local_rank],
                "role_rank": [assignment.first_role_rank + local_rank],
                "role_world_size": [assignment.role_world_size],
                "exit_code": [exit_code],
                "worker_pid": [pid],
            }
        metadata: dict[str, Any] = {
            "run_id": self._config.join.run_id,
            "global_rank": global_rank,
            "group_rank": assignment and assignment.group_rank,
            "worker_id": None if pid is None else str(pid),
            "role": self._config.join.role,
            "hostname": self._config.join.node_id,
            "state": state,
            "total_run_time": int(time.monotonic() - self._began),
            "rdzv_backend": self._config.backend,
            "raw_error": None,
            "metadata": json.dumps(details),
            "agent_restarts": assignment.restart_count if assignment else 0,
            "duration_ms": None,
        }
        event = {
            "name": f"torchelastic.worker.status.{state}",
            "source": "AGENT" if local_rank is None else "WORKER",
            "timestamp": int(time.time() * 1000),
            "metadata": metadata | measured,
        }
        self._write(json.dumps(event))
