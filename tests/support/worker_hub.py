"""The test's side of its workers: each worker connects to the hub when it starts, and receives orders."""

import asyncio
import json
import os
import signal
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.process_info import is_running, parent, process_ended, stat
from tests.support.programs import PATIENCE_S, Program

SAME_IN_A_ROUND = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "GROUP_WORLD_SIZE")


class Worker:
    """A worker that has reported."""

    def __init__(self, report: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fields = json.loads(report)
        # Its pid as this process sees it: the worker may be in another namespace.
        credentials = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self.pid: int = struct.unpack("3i", credentials)[0]
        self.argv: list[str] = fields["argv"]
        self.env: Mapping[str, str] = fields["env"]
        self.rank = int(self.env["RANK"])
        self.group_rank = int(self.env["GROUP_RANK"])
        self._reader, self._writer = reader, writer
        self._gone = process_ended(self.pid)

    @property
    def agent_pid(self) -> int:
        return parent(self.pid)

    async def tell(self, order: str) -> str:
        """Give an order, wait until it is carried out, and return the answer."""
        self._writer.write(f"{order}\n".encode())
        async with asyncio.timeout(PATIENCE_S):
            return (await self._reader.readline()).decode().strip().removeprefix("done ").strip()

    def order(self, order: str) -> None:
        """Give an order that never completes."""
        self._writer.write(f"{order}\n".encode())

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def order_exit(self, code: int) -> None:
        self.order(f"exit {code}")

    async def gone(self, within_s: float = PATIENCE_S) -> None:
        """Return when the process has ended, in any way."""
        try:
            async with asyncio.timeout(within_s):
                await self._gone.wait()
        except TimeoutError:
            meeting = f"{self.env['MASTER_ADDR']}:{self.env['MASTER_PORT']}"
            found = stat(self.pid) or "gone"
            raise TimeoutError(f"rank {self.rank} that met at {meeting}: process {self.pid} is {found}") from None

    def close(self) -> None:
        self._writer.close()


class WorkerHub:
    """Hub to which the workers of one test report, in the order of reporting."""

    same_in_a_round: Sequence[str] = SAME_IN_A_ROUND
    patience_s = PATIENCE_S

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reported: asyncio.Queue[Worker] = asyncio.Queue()
        self.all: list[Worker] = []

    async def __aenter__(self) -> "WorkerHub":
        self._server = await asyncio.start_unix_server(self._accept, str(self._path), limit=1 << 20)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        for worker in self.all:
            worker.close()

    @property
    def env(self) -> dict[str, str]:
        """Environment in which workers find the hub."""
        return {"TEST_WORKER_HUB": str(self._path)}

    async def group(self, size: int) -> list[Worker]:
        """Return the next `size` workers, by rank. They must be one whole round."""
        async with asyncio.timeout(self.patience_s):
            workers = [await self._reported.get() for _ in range(size)]
        workers.sort(key=lambda worker: worker.rank)
        assert [worker.rank for worker in workers] == list(range(size))
        for name in self.same_in_a_round:
            assert len({worker.env[name] for worker in workers}) == 1, f"{name} differs within a round"
        assert workers[0].env["WORLD_SIZE"] == str(size)
        return workers

    def survivors(self) -> list[int]:
        """Return the workers of this test whose process still exists."""
        return [worker.pid for worker in self.all if is_running(worker.pid)]

    def forget_the_gone(self) -> None:
        """Forget the workers whose process does not exist any more."""
        gone = [worker for worker in self.all if not is_running(worker.pid)]
        self.all = [worker for worker in self.all if worker not in gone]
        for worker in gone:
            worker.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        report = await reader.readline()
        if not report.endswith(b"\n"):
            return  # it was stopped before it could report
        worker = Worker(report, reader, writer)
        self.all.append(worker)
        self._reported.put_nowait(worker)


async def finish(agent: Program, *workers: Worker) -> None:
    """Let these workers exit, and their agent with them."""
    for worker in workers:
        worker.order_exit(0)
    assert await agent.exit_code() == 0


def restart_count(workers: Sequence[Worker]) -> int:
    return int(workers[0].env["TORCHELASTIC_RESTART_COUNT"])


def of_node(workers: Sequence[Worker], group_rank: int) -> list[Worker]:
    return [worker for worker in workers if worker.group_rank == group_rank]


def of_agent(workers: Sequence[Worker], pid: int) -> list[Worker]:
    return [worker for worker in workers if worker.agent_pid == pid]


def all_run(workers: Sequence[Worker]) -> bool:
    return all(is_running(worker.pid) for worker in workers)
