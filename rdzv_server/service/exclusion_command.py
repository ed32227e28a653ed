"""Command that runs for each node that the server excludes, for `--on-exclude CMD`.

The server runs it once for each exclusion, after it has recorded the exclusion: one at a time, with a time limit. If
the command fails, the server logs an error with the end of its output, and does not try again: the node stays excluded.

If a check has found the node unfit, or it was lost, other nodes may still show a common cause, which would end the
exclusion. The server waits until none can. If an exclusion has ended before its time, the command does not run. A
server that crashed in this time runs the command after its restart, if the time is not over then.
"""

import asyncio
import logging
import os
import signal
import time
from contextlib import suppress

from rdzv_protocol.node_conditions import condition
from rdzv_protocol.text import clip, printable

from rdzv_server.core import journals
from rdzv_server.core.effects import Effect, NotifyReplayed, Record
from rdzv_server.core.events import EXCLUDER, Fact, NodeCordoned, NodeUncordoned
from rdzv_server.core.nodes.exclusion import TOGETHER_S
from rdzv_server.words import operations
from rdzv_server.words import service as words

log = logging.getLogger("rdzv_server")

LIMIT_S = 60.0
KILLED_S = 5.0
"""Seconds for a killed command to exit before the next one begins."""
MOST_WAITING = 1_000
TAIL_BYTES, SHOWN_BYTES = 4_096, 512


class ExclusionCommand:
    """Runner of a shell command for each exclusion that it observes. `run` runs the commands.

    `together_s`: seconds in which the server may find out that several nodes share what a check has found.
    """

    def __init__(self, command: str, limit_s: float = LIMIT_S, together_s: float = TOGETHER_S) -> None:
        self._command, self._limit_s, self._together_s = command, limit_s, together_s
        self._waiting: dict[str, NodeCordoned] = {}
        """Exclusions whose command has not begun, by node."""
        self._due = asyncio.Queue[NodeCordoned]()
        """Exclusions whose command may begin, unless they have ended."""

    def observe(self, effect: Effect) -> None:
        """Note a new exclusion, or one that ends. The leader of another shard handles those that it has decided."""
        if isinstance(effect, NotifyReplayed):
            wait_s = self._left_s(effect.fact)
        elif isinstance(effect, Record) and effect.key == journals.NODES:
            wait_s = self._together_s if isinstance(effect.fact, NodeCordoned) and effect.fact.condition else 0.0
        else:
            return
        fact = effect.fact
        if isinstance(fact, NodeCordoned):
            is_own = fact.by == EXCLUDER and fact.wall_until is None
            if is_own and wait_s is not None and len(self._waiting) < MOST_WAITING:
                self._waiting[fact.node_id] = fact
                asyncio.get_running_loop().call_later(wait_s, self._due.put_nowait, fact)
        elif isinstance(fact, NodeUncordoned) and fact.reason != operations.TIME_OVER:
            self._drop(fact)

    def _left_s(self, fact: Fact) -> float | None:
        """Return how long the command for an earlier exclusion still waits; None if it may have run already."""
        if not isinstance(fact, NodeCordoned) or not fact.condition or fact.wall_at is None:
            return None
        left_s = fact.wall_at + self._together_s - time.time()
        return min(left_s, self._together_s) if left_s > 0 else None

    def _drop(self, fact: NodeUncordoned) -> None:
        if self._waiting.pop(fact.node_id, None):
            log.info("%s", words.on_exclude_not_needed(fact.node_id, fact.reason))

    async def run(self) -> None:
        """Run the commands, forever. If the server ends before, it names the nodes that are left."""
        try:
            while True:
                fact = await self._due.get()
                if self._waiting.get(fact.node_id) is fact:
                    del self._waiting[fact.node_id]
                    await self._carry_out(fact)
        except asyncio.CancelledError:
            for node_id in self._waiting:
                log.error("%s", words.on_exclude_left(node_id))
            raise

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
        except RuntimeError:  # asyncio waits for a child in a thread, up to Python 3.11
            log.error("%s", words.on_exclude_not_started(fact.node_id, words.NO_THREAD))
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
