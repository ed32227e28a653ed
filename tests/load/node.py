"""A node without a process: the agent's real machine and real connections to the server, with simulated workers."""

import asyncio
from collections.abc import Callable
from typing import Any

from rdzv_protocol.credentials import Credentials
from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.messages import Assignment, Failure, JoinRequest, Reply
from rdzv_protocol.settings import RequestedSettings

from node_agent.kernel.config import AgentConfig
from node_agent.kernel.core.command import Command
from node_agent.kernel.core.effects import Exit, Level, Log, OwnEffect, StartWorkers, StopWorkers
from node_agent.kernel.core.events import Event, Signalled, Started, WorkerFailed, WorkersStopped, WorkersSucceeded
from node_agent.kernel.runner import Facts, Runner
from node_agent.kernel.transport.http import HttpTransport

CLOSE_S = 10.0
EXIT_CODE = 3
EVIDENCE = tuple(f"line {number} of what the script wrote last" for number in range(20))


class Node:
    """One agent of a run. `changed` is called when its workers start, and when it has ended."""

    def __init__(
        self, port: int, run_id: str, name: str, settings: RequestedSettings, changed: Callable[[], None],
        token: str | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.assignment: Assignment | None = None
        """Assignment of the running workers."""
        self.exit_code: int | None = None
        self.warnings: list[str] = []
        """Refusals, and problems of the connection."""
        self._changed = changed
        config = AgentConfig(
            command=Command(("true",)), connect_timeout_s=60.0, close_timeout_s=CLOSE_S,
            join=JoinRequest(
                run_id=run_id, explicit_run_id=True, rerun=True, node_id=name, local_world_size=2, settings=settings,
                agent_id="", after_round=0, addr="", port=0,
            ),
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        self._work = Runner(
            config,
            lambda: HttpTransport("127.0.0.1", port, _credentials(token)),
            "the server",
            self,
            loop,
        )
        self._work.feed(Started())

    # Events.

    def succeed(self) -> None:
        """The node's workers exit 0."""
        self._finish_round(WorkersSucceeded(self._work.round))

    def fail(self, **evidence: Any) -> None:
        """One of its workers fails."""
        assert self.assignment
        failure = Failure(
            node_id=self.name, rank=self.assignment.first_rank, local_rank=0, pid=7, exit_code=EXIT_CODE,
            cause=f"exit code {EXIT_CODE}", **{"error": "ValueError: boom", "stderr_tail": EVIDENCE, **evidence},
        )  # fmt: skip
        self._finish_round(WorkerFailed(self._work.round, failure))

    async def leave(self) -> None:
        """The node gets an order to leave, reports it, and leaves."""
        self._work.feed(Signalled("SIGTERM"))
        await self.gone()

    async def gone(self) -> None:
        """Close its connections: after its machine has ended, or suddenly if it has not."""
        await self._work.close()

    def _finish_round(self, event: Event) -> None:
        self.assignment = None
        self._work.feed(event)

    # Effects of the machine.

    def open_port(self) -> int:
        return 29_500

    def perform(self, effect: OwnEffect) -> None:
        match effect:
            case StartWorkers(assignment):
                self.assignment = assignment
                self._changed()
            case StopWorkers():
                asyncio.get_running_loop().call_soon(self._finish_round, WorkersStopped(self._work.round))
            case Log(text, level, event) if level is Level.WARNING or event == "gave_up":
                self.warnings.append(text)
            case Exit(code):
                self.exit_code = code
                self._changed()

    def filled(self, request: Facts) -> Facts:
        return request

    def answered(self, answer: Reply | ProtocolError) -> None:
        if not isinstance(answer, Reply):
            self.warnings.append(str(answer))

    def crashed(self, error: BaseException) -> None:
        self.warnings.append(repr(error))
        self._changed()

    has_workers = False

    def abort(self) -> None:
        self.perform(Exit(1))


def _credentials(token: str | None) -> Credentials | None:
    if token is None:
        return None
    credentials = Credentials()
    credentials.token = token
    return credentials
