"""The agent's machine in a separate thread, for a program with its own workers and main loop.

It works like `node_agent.agent` without workers. The call for the next round also reports that the workers of the last
one have ended. The program watches `round_is_over`, which is set when the workers must end. `ending` has the reason for
which the agent ended.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from logging import INFO, WARNING, Logger
from typing import Any, TypeVar

from rdzv_protocol.errors import AgentFenced, ProtocolError
from rdzv_protocol.messages import Assignment, Failure, Finish, Reply

from node_agent import words
from node_agent.kernel.config import AgentConfig
from node_agent.kernel.core.backoff import ServerLost
from node_agent.kernel.core.effects import Exit, Level, Log, OwnEffect, StartWorkers, StopWorkers, WriteFailureReport
from node_agent.kernel.core.events import Signalled, Started, WorkerFailed, WorkersStopped, WorkersSucceeded
from node_agent.kernel.core.machine import Capabilities
from node_agent.kernel.runner import Facts, Runner
from node_agent.kernel.threads import ThreadLoop
from node_agent.kernel.transport.retrying import Transport

LEAVE_TIMEOUT_S = 2.0
"""Seconds in which a leaving agent tries to deliver its leave."""

T = TypeVar("T")


class Ended(Exception):
    """There is no next round: the run has ended (`finish`), an error occurred (`error`), or this agent has left
    (neither).
    """

    def __init__(self, finish: Finish | None = None, error: BaseException | None = None) -> None:
        super().__init__(finish.reason if finish else error or words.torchrun.HAS_LEFT)
        self.finish = finish
        self.error = error


class AgentThread:
    """One agent. Other threads call its methods, which block.

    `open_port` is called for every join, in the agent's thread, and opens the port of the join. `log` is called with
    events, and with warnings about the connection to the server.
    """

    def __init__(
        self,
        config: AgentConfig,
        make_transport: Callable[[], Transport],
        endpoint: str,
        open_port: Callable[[], int],
        log: Logger,
    ) -> None:
        self.round_is_over = threading.Event()
        """Set when the workers of the round must end, even if no round follows."""
        self.ending: Ended | None = None
        self._open_port = open_port
        self._log = log
        self._assignment: Assignment | None = None
        self._leaving = ""
        """Why there is no further round for this node."""
        self._changed = asyncio.Event()
        self._loop = ThreadLoop()
        capabilities = Capabilities(hosts_store=True)
        self._runner = Runner(config, make_transport, endpoint, self, self._loop, capabilities)
        self._thread = threading.Thread(target=self._loop.run_forever, name="rdzv-server", daemon=True)
        self._thread.start()

    def next_round(self, failure: Failure) -> Assignment:
        """Return the assignment of the next round. Raises `Ended`.

        The call reports that the workers of the last round have ended. If they had not been told to end, `failure` was
        the cause.
        """
        return self._call(self._next_round(failure))

    def succeed(self, within_s: float) -> bool:
        """Report that the workers have exited 0. Wait for the end of the run, or leave it. Return whether it ended."""
        return self._call(self._close(WorkersSucceeded(self._runner.round), words.torchrun.WORKERS_DONE, within_s))

    def fail(self, failure: Failure, within_s: float) -> bool:
        """Report this failure, even after another report. Wait for the end of the run, or leave it. Return whether it
        ended.
        """
        return self._call(self._close(failure, words.torchrun.WORKERS_FAILED, within_s))

    def leave(self, reason: str) -> bool:
        """Leave the run, which continues without this node. Return whether it had ended before."""
        return self._call(self._close(None, reason, 0.0))

    def stop(self) -> None:
        """End the thread. Call no other method afterwards."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # Methods that run in the agent's thread.

    async def _next_round(self, failure: Failure) -> Assignment:
        if self._runner.round == 0:
            self._runner.feed(Started())
        else:
            # ignored by a machine that was told to stop them
            self._runner.feed(WorkerFailed(self._runner.round, failure))
            self._runner.feed(WorkersStopped(self._runner.round))
        while self._assignment is None:
            if self.ending:
                raise self.ending
            self._changed.clear()
            await self._changed.wait()
        assignment, self._assignment = self._assignment, None
        return assignment

    async def _close(self, outcome: WorkersSucceeded | Failure | None, reason: str, within_s: float) -> bool:
        self._leaving = reason
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s or LEAVE_TIMEOUT_S):
                if isinstance(outcome, Failure):
                    await self._runner.report(outcome)
                elif outcome:
                    self._runner.feed(outcome)
                self._runner.feed(WorkersStopped(self._runner.round))
                while within_s and not self.ending:
                    self._changed.clear()
                    await self._changed.wait()
        ended = self.ending is not None and self.ending.finish is not None
        self._runner.feed(Signalled(reason))  # ignored by a machine that has exited
        await self._runner.close()
        return ended

    # Effects of the machine.

    def open_port(self) -> int | str:
        return self._leaving or self._open_port()

    def perform(self, effect: OwnEffect) -> None:
        match effect:
            case StartWorkers(assignment):
                self._assignment = assignment
                self.round_is_over.clear()
                self._changed.set()
            case StopWorkers():
                self.round_is_over.set()
            case Log(text, level, event):
                is_known = level is Level.ERROR and event != "gave_up"  # the program reports failures and refusals
                self._log.log(INFO if is_known else min(level.number, WARNING), text)
            case WriteFailureReport(error, is_server_lost=True):  # the program knows or reports other reasons
                self._end(Ended(error=ServerLost(error)))
            case Exit():
                self._end(Ended())

    def filled(self, request: Facts) -> Facts:
        """Return the request as it is: torchrun tells nothing about its workers."""
        return request

    def answered(self, answer: Reply | ProtocolError) -> None:
        match answer:
            case Reply(directive=Finish() as finish):
                self._end(Ended(finish=finish))
            case AgentFenced():
                pass  # the machine joins again
            case ProtocolError():
                self._end(Ended(error=answer))

    has_workers = False
    """Always False: the workers are the program's, which stops them once `round_is_over` is set."""

    def crashed(self, error: BaseException) -> None:
        self._log.warning(words.torchrun.BUG, exc_info=error)
        self._end(Ended(error=error))

    def abort(self) -> None:
        self._end(Ended())

    def _end(self, ending: Ended) -> None:
        """End for this reason, unless the agent has already ended."""
        self.ending = self.ending or ending
        self.round_is_over.set()
        self._changed.set()
