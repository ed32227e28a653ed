"""A run of two nodes that asks its server for something all the time: `python -m benchmarks.pair PORT`.

One line for each thing that it has measured: what, when it began (CLOCK_MONOTONIC), and how many seconds it took.
It runs beside what the server is loaded with, in a process of its own and before everything else on its CPU, so that
nobody is measured but the server; `late` is how late it was itself.
"""

import asyncio
import os
import sys
import time
from contextlib import suppress
from typing import TypeVar

from rdzv_protocol.messages import Ack, Failure, JoinRequest, PollRequest, Reply, ReportRequest, Request, Start, Stop
from rdzv_protocol.settings import RequestedSettings

from node_agent.transport.http import HttpLink

REQUEST, RECOVERY, LATE = "request", "recovery", "late"
PAUSE_S = 0.003
TURNS_A_RECOVERY = 10
RUN_ID = "neighbour"
SETTINGS = RequestedSettings(min_nodes=2, max_nodes=2, max_restarts=1_000_000, lease_s=600.0)

Kind = TypeVar("Kind", Reply, Ack)


class Node:
    """An agent without workers. Its side line is for reports, as agents have one."""

    def __init__(self, name: str, port: int) -> None:
        self._name = name
        self._line, self._side_line = HttpLink("127.0.0.1", port, None), HttpLink("127.0.0.1", port, None)
        self._round = self._revision = 0

    async def join(self) -> None:
        """Return with the assignment of the next round."""
        join = JoinRequest(
            run_id=RUN_ID, agent_id=self._name, node_id=self._name, after_round=self._round, addr="127.0.0.1", port=1,
            local_world_size=1, settings=SETTINGS,
        )  # fmt: skip
        reply = await self._ask(join)
        while not isinstance(reply.directive, Start):
            reply = await self._ask(self._poll(hold=True))
        self._round = reply.directive.assignment.round

    async def poll(self) -> None:
        """An answer at once."""
        began_s = time.monotonic()
        await self._ask(self._poll(hold=False))
        note(REQUEST, began_s)

    async def fail(self) -> None:
        """Report that a worker has failed."""
        failure = Failure(
            node_id=self._name, rank=0, local_rank=0, pid=4711, exit_code=1, cause="exit code 1", error="boom"
        )
        began_s = time.monotonic()
        await _exchange(
            Ack, self._side_line, ReportRequest(run_id=RUN_ID, agent_id=self._name, round=self._round, failure=failure)
        )
        note(REQUEST, began_s)

    async def recover(self) -> None:
        """Wait to be told to stop, and be assigned again."""
        while not isinstance((await self._ask(self._poll(hold=True))).directive, Stop):
            pass
        await self.join()

    def _poll(self, hold: bool) -> PollRequest:
        return PollRequest(run_id=RUN_ID, agent_id=self._name, revision=self._revision, hold=hold)

    async def _ask(self, request: Request) -> Reply:
        reply = await _exchange(Reply, self._line, request)
        self._revision = reply.revision
        return reply


async def _exchange(kind: type[Kind], line: HttpLink, request: Request) -> Kind:
    await line.connect()
    answer = await line.exchange(request)
    assert isinstance(answer, kind)
    return answer


def note(what: str, began_s: float, floor_s: float = 0.0) -> None:
    print(what, began_s, time.monotonic() - began_s - floor_s, flush=True)


async def main(port: int) -> None:
    """Ask, until the process is ended."""
    nodes = [Node("a", port), Node("b", port)]
    await asyncio.gather(*(node.join() for node in nodes))
    while True:
        for _ in range(TURNS_A_RECOVERY):
            began_s = time.monotonic()
            await asyncio.sleep(PAUSE_S)
            note(LATE, began_s, PAUSE_S)
            for node in nodes:
                await node.poll()
        began_s = time.monotonic()
        await asyncio.gather(nodes[0].fail(), *(node.recover() for node in nodes))
        note(RECOVERY, began_s)


if __name__ == "__main__":
    with suppress(PermissionError):  # then `late` tells
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    asyncio.run(main(int(sys.argv[1])))
