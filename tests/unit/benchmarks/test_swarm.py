"""Nodes of the swarm benchmarks."""

import asyncio

import pytest

from benchmarks.bare_server import Crowd, Seat
from benchmarks.stage import Broken
from benchmarks.swarm import GROUP, Swarm

NODES = 10 * GROUP


async def test_a_swarm_whose_server_is_lost_reports_it_and_does_not_wait() -> None:
    async def go_away(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(go_away, "127.0.0.1", 0)
    swarm = Swarm(2, server.sockets[0].getsockname()[1])
    with pytest.raises(Broken, match=r"the connection of node-[01] is closed"):
        async with asyncio.timeout(10):
            await swarm.join()
    swarm.close()
    server.close()


async def test_a_node_sends_its_join_before_the_last_ones_begin_to_connect(monkeypatch) -> None:
    began, begun_at_join = [], []
    loop = asyncio.get_running_loop()
    connect = loop.create_connection

    def count(*arguments, **more):
        began.append(arguments)
        return connect(*arguments, **more)

    class NotingSeat(Seat):
        def received(self, head: bytes, body: bytes) -> None:
            begun_at_join.append(len(began))
            super().received(head, body)

    crowd = Crowd(NODES)
    server = await loop.create_server(lambda: NotingSeat(crowd), "127.0.0.1", 0)
    monkeypatch.setattr(loop, "create_connection", count)
    swarm = Swarm(NODES, server.sockets[0].getsockname()[1])
    async with asyncio.timeout(30):
        await swarm.join()
    assert begun_at_join[0] < NODES == len(began)
    swarm.close()
    server.close()
