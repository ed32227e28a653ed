"""`--event-log-handler console`: what torchrun records as events, as lines of JSON on stderr, in torch's format.

One event when a worker starts and one when the run is over for it (SUCCEEDED, FAILED, or TERMINATED: stopped because
another one failed), one for each rendezvous, and one for the agent's own end.
"""

import os
import time
from collections.abc import Callable
from typing import Any

from rdzv_protocol.messages import Assignment, Failure

from node_agent.config import AgentConfig

AGENT, WORKER = "AGENT", "WORKER"


class EventLog:
    """Writes this agent's events. `write` takes one line."""

    def __init__(self, config: AgentConfig, write: Callable[[str], None]) -> None:
        self._config = config
        self._write = write
        self._began = time.monotonic()
        self._joined_at = self._began
        self._assignment: Assignment | None = None
        self._failure: Failure | None = None

    def joining(self) -> None:
        """The agent waits for the next round."""
        self._joined_at = time.monotonic()

    def started(self, assignment: Assignment, pids: list[int]) -> None:
        """The round has begun, and these workers run, by local rank."""
        self._assignment, self._failure = assignment, None
        self._record("RENDEZVOUS", AGENT, duration_ms=(time.monotonic() - self._joined_at) * 1000)
        for local_rank, pid in enumerate(pids):
            self._record("START", WORKER, local_rank, pid=pid)

    def failed(self, failure: Failure) -> None:
        """The round's first failure on this node."""
        self._failure = failure

    def ended(self, exit_code: int) -> None:
        """The agent exits."""
        state = "SUCCEEDED" if exit_code == 0 else "FAILED"
        if self._assignment:
            for local_rank in range(self._assignment.local_world_size):
                self._record_end(local_rank, state)
        error = f"{self._failure.cause}" if self._failure and exit_code else None
        self._record(state, AGENT, raw_error=error)

    def _record_end(self, local_rank: int, state: str) -> None:
        failure = self._failure if self._failure and self._failure.local_rank == local_rank else None
        if state == "FAILED" and failure is None:
            state = "TERMINATED"
        if failure:
            self._record(state, WORKER, local_rank, failure.pid, failure.exit_code, failure.cause)
        else:
            self._record(state, WORKER, local_rank)

    def _record(
        self,
        state: str,
        source: str,
        local_rank: int | None = None,
        pid: int | None = None,
        exit_code: int | None = None,
        raw_error: str | None = None,
        duration_ms: float | None = None,
    ) -> None:
        import json

        assignment, worker = self._assignment, local_rank is not None
        details: dict[str, Any] = {
            "group_world_size": assignment and assignment.group_world_size,
            "entry_point": os.path.basename(self._config.command.title),
        }
        if assignment and local_rank is not None:
            details |= {
                "local_rank": [local_rank],
                "role_rank": [assignment.first_role_rank + local_rank],
                "role_world_size": [assignment.role_world_size],
                "exit_code": [exit_code],
                "worker_pid": [pid],
            }
        metadata = {
            "run_id": self._config.run_id,
            "global_rank": assignment.first_rank + local_rank if assignment and local_rank is not None else None,
            "group_rank": assignment and assignment.group_rank,
            "worker_id": str(pid) if worker and pid is not None else None,
            "role": self._config.role,
            "hostname": self._config.node_id,
            "state": state,
            "total_run_time": int(time.monotonic() - self._began),
            "rdzv_backend": "rdzv-server",
            "raw_error": raw_error,
            "metadata": json.dumps(details),
            "agent_restarts": assignment.restart_count if assignment else 0,
            "duration_ms": duration_ms,
        }
        event = {
            "name": f"torchelastic.worker.status.{state}",
            "source": source,
            "timestamp": int(time.time() * 1000),
            "metadata": metadata,
        }
        self._write(json.dumps(event))
