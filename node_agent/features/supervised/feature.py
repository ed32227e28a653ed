"""Feature: takes the signals that the supervisor forwards, and tells the supervisor the agent's part in the run."""

import asyncio
import os
import signal
from contextlib import suppress

from msgspec import json
from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.messages import Reply

from node_agent.features import supervised
from node_agent.features.supervised import Part
from node_agent.kernel.feature import Feature, Kernel

_MOST_READ = 4_096


class Supervised(Feature):
    """The link. If the agent dies, the supervisor may have to leave in its place, or find out how its attempt ends."""

    def __init__(self, kernel: Kernel, options: supervised.Supervised) -> None:
        super().__init__(kernel)
        self._link, self._part = options.link, Part()

    async def open(self) -> None:
        os.set_blocking(self._link, False)  # the supervisor reads only when this process is dead
        asyncio.get_running_loop().add_reader(self._link, self._read)

    def answered(self, answer: Reply | ProtocolError) -> None:
        if not isinstance(answer, Reply):
            return
        part = Part(answer.attempt, **self.kernel.machine.identity)
        if part != self._part:
            with suppress(OSError):  # the supervisor is gone, and the kernel ends this process; or there is no room now
                os.write(self._link, json.encode(part) + b"\n")
                self._part = part

    async def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._link)

    def _read(self) -> None:
        try:
            numbers = os.read(self._link, _MOST_READ)
        except ConnectionError:  # the supervisor died without having read the agent's part
            numbers = b""
        if not numbers:  # the supervisor is gone, and the kernel ends this process
            asyncio.get_running_loop().remove_reader(self._link)
        for number in numbers:
            self.kernel.forwarded(signal.Signals(number).name)
