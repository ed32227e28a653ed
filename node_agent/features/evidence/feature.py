"""Feature: answers the server's queries about what the workers are doing, with their stacks."""

import asyncio
import os
import sys
from functools import partial

from rdzv_protocol.evidence import Evidence as Found
from rdzv_protocol.queries import Examine, Query, Refused

from node_agent.features import words
from node_agent.features.evidence.gather import Target, gather
from node_agent.kernel.feature import Feature, StartedWorkers
from node_agent.kernel.processes.temp_dir import temporary_path
from node_agent.kernel.threads import in_thread


class Evidence(Feature):
    """Answers `Examine` queries."""

    async def answer(self, query: Query) -> Found | Refused:
        """Return evidence of what the round's workers are doing, as far as possible, or a refusal."""
        assert isinstance(query, Examine)
        started, config = self.kernel.started, self.kernel.config
        if not started or not started.group.workers or query.round != started.assignment.round:
            return Refused(reason=words.no_workers(config.join.node_id, query.round))
        kept = self.kernel.kept_folder(started.group.workers[0].spec.error_file)
        if kept:
            folder = f"{os.path.dirname(kept)}/evidence_{query.number}"
        else:
            folder = await in_thread(partial(temporary_path, "node-agent-evidence"))
        program = config.command.program[:1]
        python = program if "python" in os.path.basename("".join(program)) else (sys.executable,)
        evidence = await gather(_targets(started), folder, python, config.environment, query.remaining_s)
        result = evidence.folder or "; ".join(evidence.problems)
        self.kernel.console.log(words.examined_workers(query.reason, result))
        return evidence


def _targets(started: StartedWorkers) -> list[Target]:
    readings = started.progress.read(asyncio.get_running_loop().time())
    return [
        Target(
            rank=worker.spec.rank,
            pid=worker.pid,
            step=reading.step if (reading := readings.get(worker.spec.local_rank)) else None,
            environment=worker.spec.environment,
            stderr=worker.stderr_tail,
            stderr_file=started.logs.path_of(worker.spec.local_rank, "stderr"),
        )
        for worker in started.group.workers
    ]
