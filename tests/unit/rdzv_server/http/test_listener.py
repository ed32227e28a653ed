"""The listener while the system has no room for another connection."""

import asyncio
import errno
import os
import socket

import pytest
from aiohttp import ClientSession

from rdzv_server.http import listener
from rdzv_server.server import RendezvousServer, bind

PATIENCE_S = 20.0


class CrowdedSocket(socket.socket):
    """Listening socket of a process that may open no more files, for so many tries."""

    refusals = 3

    def accept(self) -> tuple[socket.socket, object]:
        self.refusals -= 1
        if self.refusals >= 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


async def test_that_there_is_no_room_is_logged_once_however_often_it_is_tried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "PAUSE_S", 0.01)
    caplog.set_level("INFO", "rdzv_server")
    bound = CrowdedSocket(fileno=bind("127.0.0.1", 0).detach())
    url = f"http://127.0.0.1:{bound.getsockname()[1]}/healthz"
    async with RendezvousServer() as server, ClientSession() as session, asyncio.timeout(PATIENCE_S):
        await server.listen(bound)
        assert (await session.get(url)).status == 200
    assert caplog.messages == [
        "cannot take connections (Too many open files); trying again", "connections are taken again",
    ]  # fmt: skip
