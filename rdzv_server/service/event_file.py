"""Event log in a file, for `--event-log FILE`: every event of the runs that this server leads, as a line of JSON.

If the file cannot be written, no run is affected: the lines wait in memory, up to a limit, and are tried again.
"""

import asyncio
import logging
import os
from functools import partial

import msgspec

from rdzv_server.core.effects import Effect, EmitEvent
from rdzv_server.storage.outage import Outage
from rdzv_server.threads import NoThread, in_thread
from rdzv_server.words import service as words

log = logging.getLogger("rdzv_server")

RETRY_S = 1.0
CLOSE_S = 5.0
"""Most seconds for which a stopping server waits for the file's disk."""
MOST_WAITING_BYTES = 16 << 20
"""Most bytes of lines that wait while the file cannot be written; the server drops further lines."""


class EventFile:
    """Event log that appends to the file at `path`. `run` writes the events that `observe` gets."""

    def __init__(self, path: str) -> None:
        """Open the file. Raises `OSError`."""
        self._path = path
        self._descriptor = _open(path)
        self._waiting = bytearray()
        self._left_out = 0
        self._outage = Outage(lambda: words.EVENTS_WAIT, lambda: words.event_log_is_back(path))
        self._must_reopen = False
        self._called = asyncio.Event()
        self._turn = asyncio.Lock()
        """Held by the only write that is in progress."""

    def observe(self, effect: Effect) -> None:
        """Note an event."""
        if isinstance(effect, EmitEvent):
            self._add(msgspec.json.encode(effect.event) + b"\n")

    def reopen(self) -> None:
        """Open the path again, because a log rotation has moved the file away."""
        self._must_reopen = True
        self._called.set()

    async def run(self) -> None:
        """Write the events as they come, forever."""
        while True:
            await self._called.wait()
            self._called.clear()
            await asyncio.shield(self.flush())  # a thread keeps writing even if this is cancelled
            if self._waiting:
                await asyncio.sleep(RETRY_S)
                self._called.set()

    async def flush(self) -> None:
        """Write the waiting lines. Lines that cannot be written keep waiting."""
        async with self._turn:
            batch, must_reopen = bytes(self._waiting), self._must_reopen
            self._must_reopen = False
            try:
                written, error = await in_thread(partial(self._write, batch, must_reopen))
            except NoThread as no_thread:
                written, error, self._must_reopen = 0, no_thread, must_reopen
            del self._waiting[:written]
            self._note(error)

    async def close(self) -> None:
        """Try once to write the waiting lines, and close the file. Stop waiting for a disk after `CLOSE_S`."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.flush()
        except TimeoutError:
            log.error("%s", words.event_log_failed(self._path, words.disk_hangs(CLOSE_S)))
        else:
            os.close(self._descriptor)

    def _add(self, line: bytes) -> None:
        if len(self._waiting) + len(line) > MOST_WAITING_BYTES:
            self._left_out += 1
            return
        self._waiting += line
        self._called.set()

    def _write(self, batch: bytes, must_reopen: bool) -> tuple[int, OSError | None]:
        """Write a batch; return the bytes written, and the error that stopped it.

        Runs in a thread, as a disk may hang.
        """
        written = 0
        try:
            if must_reopen:
                descriptor = _open(self._path)
                os.close(self._descriptor)
                self._descriptor = descriptor
            while written < len(batch):
                written += os.write(self._descriptor, batch[written:])
        except OSError as error:
            return written, error
        return written, None

    def _note(self, error: OSError | None) -> None:
        if error:
            self._outage.begin(words.event_log_failed(self._path, error.strerror or error))
            return
        self._outage.end()
        if self._left_out:
            log.warning("%s", words.events_left_out(self._path, self._left_out))
            self._left_out = 0


def _open(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
