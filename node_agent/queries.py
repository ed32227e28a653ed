"""Answers to what the server asks beside its directive: the end of a log, stacks of the workers, a notice to them.

Queries are answered beside everything else that the agent does, each by its own deadline at the latest.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from rdzv_protocol.queries import Examine, LogTail, Notice, Noticed, PairTest, Query, QueryAnswer, Refused, TailLog

from node_agent.config import AgentConfig
from node_agent.core.effects import Level
from node_agent.output.logs import ReadableLogs
from node_agent.output.threads import in_thread
from node_agent.transport.base import spawn
from node_agent.workers.group import WorkerGroup
from node_agent.workers.notice_board import NoticeBoard
from node_agent.workers.progress_files import ProgressFiles
from node_agent.workers.spec import SpecMaker
from node_agent.workers.temp_dir import temporary_path

if TYPE_CHECKING:
    from rdzv_protocol.evidence import Evidence
    from rdzv_protocol.queries import PairTested

    from node_agent.evidence.gather import Target
    from node_agent.output.log_tail import LogReader

QUERIES = (TailLog, Examine, Notice)
"""Kinds of the server's queries that every agent answers."""


def known(config: AgentConfig) -> tuple[type[Query], ...]:
    """Kinds of the server's queries that an agent of this plan answers."""
    check = config.node_check
    return QUERIES if check is None or check.least_mb_per_s is None else (*QUERIES, PairTest)


class StartedWorkers(Struct, frozen=True):
    """Workers of the last round that has been started here, with what the agent holds for them."""

    group: WorkerGroup
    logs: ReadableLogs
    progress: ProgressFiles
    notices: NoticeBoard | None
    """Notices to these workers, if the user wants any."""

    def close(self) -> None:
        self.group.close()
        self.progress.close()
        if self.notices:
            self.notices.close()


class Queries:
    """Queries of the server to one agent. `answered` gets a query's number and the answer, once."""

    def __init__(
        self,
        config: AgentConfig,
        specs: SpecMaker,
        log: Callable[..., None],
        started: Callable[[], StartedWorkers | None],
        answered: Callable[[int, QueryAnswer], None],
    ) -> None:
        self._config = config
        self._node = f"node {config.join.node_id}"
        self._specs = specs
        self._log = log
        self._started = started
        self._answered = answered
        self._log_reader: LogReader | None = None
        self._under_way: set[asyncio.Task[None]] = set()

    def ask(self, query: Query) -> None:
        """Find out what the server wants to know."""
        spawn(self._find_out(query), self._under_way)

    def close(self) -> None:
        for task in self._under_way:
            task.cancel()

    async def _find_out(self, query: Query) -> None:
        answer: QueryAnswer = Refused(reason=f"{self._node} was not done in time")
        with suppress(TimeoutError):
            async with asyncio.timeout(query.remaining_s):
                match query:
                    case TailLog():
                        answer = await self._tail_log(query)
                    case Examine():
                        answer = await self._examine(query)
                    case Notice():
                        answer = await self._tell_workers(query)
                    case PairTest():
                        answer = await self._test_network(query)
        self._answered(query.number, answer)

    async def _tail_log(self, query: TailLog) -> LogTail | Refused:
        """The end of a worker's log file, if the user allows that."""
        if not self._config.allow_log_reads:
            return Refused(reason=f"{self._node} shows no logs: its agent runs without --allow-log-reads")
        if (started := self._started()) is None:
            return Refused(reason=f"{self._node} has started no worker yet")
        if self._log_reader is None:
            from node_agent.output.log_tail import LogReader

            self._log_reader = LogReader(self._config.join.node_id)
        return await self._log_reader.tail(query, started.logs)

    async def _examine(self, query: Examine) -> "Evidence | Refused":
        """Evidence of what the round's workers are doing: their stacks, as far as they can be had, or a refusal."""
        started = self._started()
        if not started or not started.group.workers or query.round != started.logs.assignment.round:
            return Refused(reason=f"{self._node} has no workers of round {query.round} any more")
        from node_agent.evidence.gather import gather

        kept = self._specs.kept_folder(started.group.workers[0].spec.error_file)
        if kept:
            folder = f"{os.path.dirname(kept)}/evidence_{query.number}"
        else:
            folder = await in_thread(partial(temporary_path, "node-agent-evidence"))
        program = self._config.command.program[:1]
        python = program if "python" in os.path.basename("".join(program)) else (sys.executable,)
        evidence = await gather(_targets(started), folder, python, self._config.environment, query.remaining_s)
        said = f"looked at the workers, {query.reason}" if query.reason else "looked at the workers"
        self._log(f"{said}: {evidence.folder or '; '.join(evidence.problems)}")
        return evidence

    async def _tell_workers(self, notice: Notice) -> Noticed:
        """Tell the workers of the round that it ends, and wait until they have saved."""
        started = self._started()
        if not started or not started.notices or started.logs.assignment.round != notice.round:
            return Noticed(listening=0, acknowledged=0)
        told_at = asyncio.get_running_loop().time()
        answer = await started.notices.give(notice, lambda: started.group.by_local_rank, self._log)
        if answer.listening:
            after_s = asyncio.get_running_loop().time() - told_at
            of = f"{answer.acknowledged} of {answer.listening} workers that listen"
            self._log(f"{notice.reason}: {of} have saved after {after_s:.1f} s", Level.NOTICE, "noticed")
        return answer

    async def _test_network(self, query: PairTest) -> "PairTested | Refused":
        """Bandwidth and latency to another node, measured; or a refusal of an agent without `--check network`."""
        least_mb_per_s = self._config.node_check.least_mb_per_s if self._config.node_check else None
        if least_mb_per_s is None:
            return Refused(reason=f"{self._node} has no --check network")
        from node_agent.checks.network import measure

        tested = await measure(query, least_mb_per_s)
        figures = f"{tested.mb_per_s:.0f} MB/s" + (f", {tested.latency_s * 1000:.2f} ms" if tested.latency_s else "")
        level = Level.WARNING if tested.problem else Level.ROUTINE
        self._log(f"network test with node {query.peer}: {tested.problem or figures}", level)
        return tested


def _targets(started: StartedWorkers) -> "list[Target]":
    from node_agent.evidence.gather import Target

    told = started.progress.read()
    return [
        Target(
            rank=worker.spec.rank,
            pid=worker.pid,
            step=reading.step if (reading := told.get(worker.spec.local_rank)) else None,
            environment=worker.spec.evidence,
            stderr=worker.stderr_tail,
            stderr_file=started.logs.logs.path_of(worker.spec.local_rank, "stderr"),
        )
        for worker in started.group.workers
    ]
