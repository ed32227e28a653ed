"""Nodes of the swarm benchmarks."""

import asyncio

import pytest

from benchmarks.stage import Broken
from benchmarks.swarm import Swarm


async def test_a_swarm_whose_server_goes_away_says_so_and_does_not_wait() -> None:
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
