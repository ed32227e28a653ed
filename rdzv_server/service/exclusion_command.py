"""Command that runs for each node that the server excludes, for `--on-exclude CMD`.

It runs once for each exclusion, after the exclusion has been written: one command at a time, with a time limit. If it
fails, the server logs an error with the end of its output, and does not try again: the node stays excluded.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Iterable
from contextlib import suppress

from rdzv_protocol.node_conditions import condition
from rdzv_protocol.text import clip, printable

from rdzv_server.core import journals
from rdzv_server.core.effects import Effect, Record
from rdzv_server.core.events import EXCLUDER, NodeCordoned
from rdzv_server.words import service as words

log = logging.getLogger("rdzv_server")

LIMIT_S = 60.0
KILLED_S = 5.0
"""Seconds for a killed command to exit before the next one begins."""
MOST_WAITING = 1_000
TAIL_BYTES, SHOWN_BYTES = 4_096, 512


class ExclusionCommand:
    """Runner of a shell command for each exclusion that it observes. `run` runs the commands."""

    def __init__(self, command: str, limit_s: float = LIMIT_S) -> None:
        self._command, self._limit_s = command, limit_s
        self._waiting = asyncio.Queue[NodeCordoned]()

    def observe(self, effects: Iterable[Effect]) -> None:
        """Note new exclusions. The leader of another shard handles those that it has decided itself."""
        for effect in effects:
            if isinstance(effect, Record) and isinstance(effect.fact, NodeCordoned):
                if (effect.run_id, effect.attempt) != journals.NODES:
                    continue
                fact = effect.fact
                is_own = fact.by == EXCLUDER and fact.wall_until is None
                if is_own and self._waiting.qsize() < MOST_WAITING:
                    self._waiting.put_nowait(fact)

    async def run(self) -> None:
        """Run the commands, forever."""
        while True:
            await self._carry_out(await self._waiting.get())

    async def _carry_out(self, fact: NodeCordoned) -> None:
        name, kind = condition(fact.reason)
        about = {
            "RDZV_NODE": fact.node_id, "RDZV_REASON": printable(fact.reason), "RDZV_SECONDS": f"{fact.for_s or 0:.0f}",
            "RDZV_CONDITION": name, "RDZV_CLASS": kind,
        }  # fmt: skip
        try:
            process = await asyncio.create_subprocess_exec(
                "/bin/sh", "-c", self._command, env={**os.environ, **about}, start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
        except OSError as error:
            log.error("%s", words.on_exclude_not_started(fact.node_id, error.strerror or error))
            return
        output = bytearray()
        try:
            async with asyncio.timeout(self._limit_s):
                await _read(process, output)
                code = await process.wait()
            if code == 0:
                log.info("%s", words.on_exclude_done(fact.node_id))
                return
            how = words.fails_with(code)
        except TimeoutError:
            how = words.was_killed_after(self._limit_s)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        with suppress(TimeoutError):  # a process in uninterruptible sleep may outlast this
            async with asyncio.timeout(KILLED_S):
                await process.wait()
        lines = (printable(line) for line in output.decode(errors="replace").split("\n") if line)
        wrote = clip(" | ".join(lines), SHOWN_BYTES) or words.WROTE_NOTHING
        log.error("%s", words.on_exclude_failed(fact.node_id, how, wrote))


async def _read(process: asyncio.subprocess.Process, output: bytearray) -> None:
    """Read the command's output, and keep its end."""
    assert process.stdout
    while chunk := await process.stdout.read(TAIL_BYTES):
        output += chunk
        del output[:-TAIL_BYTES]
