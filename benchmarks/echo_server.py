"""A server that sends back what it receives, over many connections. Argument: the port."""

import asyncio
import sys

BACKLOG = 16_384


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._line = transport

    def data_received(self, data: bytes) -> None:
        self._line.write(data)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", int(sys.argv[1]), backlog=BACKLOG)
    await server.serve_forever()


asyncio.run(main())
