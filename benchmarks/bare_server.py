"""Server without decisions: it lets N nodes join, and answers all of them when the last one has asked.

`python -m benchmarks.bare_server PORT N`
"""

import asyncio
import sys

from rdzv_protocol.codec import encode
from rdzv_protocol.messages import Assignment, Reply, Start

from benchmarks.framing import Exchange, framed
from benchmarks.launchers import ADDRESS, NPROC

BACKLOG = 16_384


def answer(nodes: int) -> bytes:
    """Return the answer to a join, as long as one of rdzv-server. All nodes get the same answer."""
    workers = nodes * NPROC
    seat = Assignment(
        round=1, group_rank=nodes - 1, group_world_size=nodes, first_rank=workers - NPROC, local_world_size=NPROC,
        world_size=workers, first_role_rank=workers - NPROC, role_world_size=workers, master_addr="10.1.0.1",
        master_port=29_500, restart_count=0, max_restarts=3,
    )  # fmt: skip
    start = Start(assignment=seat, reason=f"round 1 starts with {nodes} nodes")
    reply = Reply(epoch="0123456789abcdef", revision=1, lease_s=30.0, directive=start, attempt=1)
    return framed("HTTP/1.1 200 OK", encode(reply))


class Crowd:
    """Nodes that wait for each other."""

    def __init__(self, nodes: int) -> None:
        self._nodes, self._answer = nodes, answer(nodes)
        self._waiting: list[asyncio.Transport] = []

    def joined(self, line: asyncio.Transport) -> None:
        self._waiting.append(line)
        if len(self._waiting) == self._nodes:
            for each in self._waiting:
                each.write(self._answer)


class Seat(Exchange):
    """Connection of one node. Its first request is the join; the server does not answer later requests."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._line: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._line = transport

    def received(self, head: bytes, body: bytes) -> None:
        if self._line:
            self._crowd.joined(self._line)
        self._line = None


async def main(port: int, nodes: int) -> None:
    crowd = Crowd(nodes)
    server = await asyncio.get_running_loop().create_server(lambda: Seat(crowd), ADDRESS, port, backlog=BACKLOG)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
