"""Launcher without features: it joins over one TCP connection, forks its workers and waits for them.

`plain_agent.py PORT N COMMAND...`. It uses asyncio, since every agent needs an event loop for server, workers and
signals.
"""

import asyncio
import os
import sys
from collections.abc import Sequence

import msgpack

ADDRESS = "127.0.0.1"


async def main(port: int, nproc: int, command: Sequence[str]) -> None:
    reader, writer = await asyncio.open_connection(ADDRESS, port)
    body = msgpack.packb({"node_id": "node0", "local_world_size": nproc})
    writer.write(b"POST /join HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    head = await reader.readuntil(b"\r\n\r\n")
    reply = msgpack.unpackb(await reader.readexactly(int(head.rpartition(b": ")[2])))
    first_rank = reply["directive"]["assignment"]["first_rank"]
    workers = [_fork(first_rank + local_rank, command) for local_rank in range(nproc)]
    _wait_for(workers)
    writer.close()


def _fork(rank: int, command: Sequence[str]) -> int:
    """Start a worker and return its pid."""
    worker = os.fork()
    if not worker:
        os.execve(sys.executable, [sys.executable, "-u", *command], {**os.environ, "RANK": str(rank)})
    return worker


def _wait_for(workers: Sequence[int]) -> None:
    for worker in workers:
        os.waitpid(worker, 0)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
