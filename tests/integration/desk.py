"""The test's side of its workers: each one connects here when it starts, and is told what to do."""

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path

from tests.integration.programs import PATIENCE_S


class WorkerAtDesk:
    """A worker that has reported. `gone` is set when its process has ended, however it ended."""

    def __init__(self, said: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        report = json.loads(said)
        self.pid: int = report["pid"]
        self.argv: list[str] = report["argv"]
        self.env: Mapping[str, str] = report["env"]
        self.rank = int(self.env["RANK"])
        self._reader, self._writer = reader, writer
        self._gone = process_ended(self.pid)

    async def tell(self, order: str) -> str:
        """Give an order and wait until it is carried out; the answer."""
        self._writer.write(f"{order}\n".encode())
        async with asyncio.timeout(PATIENCE_S):
            return (await self._reader.readline()).decode().strip().removeprefix("done ").strip()

    def order_exit(self, code: int) -> None:
        self._writer.write(f"exit {code}\n".encode())

    async def gone(self, within_s: float = PATIENCE_S) -> None:
        """Return when the process has ended."""
        async with asyncio.timeout(within_s):
            await self._gone.wait()

    def close(self) -> None:
        self._writer.close()


class Desk:
    """Where the workers of one test report, in the order of reporting."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._arrivals: asyncio.Queue[WorkerAtDesk] = asyncio.Queue()
        self.all: list[WorkerAtDesk] = []

    async def __aenter__(self) -> "Desk":
        self._server = await asyncio.start_unix_server(self._arrive, str(self._path), limit=1 << 20)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        for worker in self.all:
            worker.close()

    @property
    def env(self) -> dict[str, str]:
        return {"TEST_DESK": str(self._path)}

    async def group(self, size: int) -> list[WorkerAtDesk]:
        """The next `size` workers, by rank; they must be one whole round."""
        async with asyncio.timeout(PATIENCE_S):
            workers = [await self._arrivals.get() for _ in range(size)]
        workers.sort(key=lambda worker: worker.rank)
        assert [worker.rank for worker in workers] == list(range(size))
        for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "GROUP_WORLD_SIZE"):
            assert len({worker.env[name] for worker in workers}) == 1, f"{name} differs within a round"
        assert workers[0].env["WORLD_SIZE"] == str(size)
        return workers

    async def nobody_new(self) -> bool:
        """Whether nobody has reported that the test has not seen."""
        return self._arrivals.empty()

    def survivors(self) -> list[int]:
        """Workers of this test whose process is still there."""
        return [worker.pid for worker in self.all if is_running(worker.pid)]

    async def _arrive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = await reader.readline()
        if not said.endswith(b"\n"):
            return  # stopped before it could report
        worker = WorkerAtDesk(said, reader, writer)
        self.all.append(worker)
        self._arrivals.put_nowait(worker)


def is_running(pid: int) -> bool:
    """Whether the process is there and not merely waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def process_ended(pid: int) -> asyncio.Event:
    """An event that is set when the process has ended."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        ended.set()
        return ended

    def note() -> None:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        ended.set()

    loop.add_reader(pidfd, note)
    return ended
