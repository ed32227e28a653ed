"""Runs a `torchrun.logs_specs` class in a process of its own, because the class needs torch and the agent does not.

The process starts with the agent, so that it imports torch during the join. The agent asks it once a round.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from node_agent import words
from node_agent.kernel.core.log_options import LogOptions
from node_agent.kernel.output.routing import PluginFailed, Routing, by_plugin
from node_agent.kernel.processes.helper import Helper
from node_agent.kernel.processes.process import STDERR, CommandProcess

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "logs_specs_helper.py")
END_TIMEOUT_S = 2.0
"""Seconds that the process has to exit by itself."""
LONGEST_MESSAGE = 1 << 28


class LogsPlugin:
    """A `torchrun.logs_specs` class in its process. Raises `OSError` if the process cannot be started.

    `on_error` is called with one line if the plug-in cannot work at all.
    """

    def __init__(self, options: LogOptions, environment: Mapping[str, str], on_error: Callable[[str], None]) -> None:
        self._name = options.plugin or ""
        self._on_error = on_error
        self._serial = 0
        self._reading = asyncio.Lock()
        self._writer: asyncio.StreamWriter | None = None
        command = [sys.executable, "-P", PROGRAM]
        self._helper = Helper(
            lambda line: CommandProcess(command, environment, STDERR, STDERR, stdin=line),
            ended=lambda helper: None,  # `_ask` detects its end
        )
        self._opening = asyncio.create_task(self._open(options))
        self._opening.add_done_callback(self._opened)

    async def reify(self, environments: Sequence[Mapping[str, str]]) -> Routing:
        """Return the routes of the output of the workers with these environments. Raises `PluginFailed`."""
        await asyncio.shield(self._opening)
        answer = await self._ask(environments=list(map(dict, environments)))
        return by_plugin(SimpleNamespace(**answer), answer["environments"])

    async def close(self) -> None:
        """End the process. If it is up, it has time to exit by itself."""
        is_up = self._opening.done() and not self._opening.exception()
        self._opening.cancel()
        if self._writer and is_up:
            self._writer.write_eof()
            with suppress(OSError):  # a timeout, too
                async with asyncio.timeout(END_TIMEOUT_S):
                    await self._reader.read()  # until the process has closed its end
        if self._writer:
            self._writer.close()
        self._helper.close()

    async def _open(self, options: LogOptions) -> None:
        line = self._helper.socket.dup()
        self._reader, self._writer = await asyncio.open_unix_connection(sock=line, limit=LONGEST_MESSAGE)
        await self._ask(
            name=options.plugin,
            path=sys.path,
            log_dir=options.log_dir,
            redirects=options.redirects,
            tee=options.tee,
            local_ranks_filter=sorted(options.local_ranks) if options.local_ranks else None,
        )

    def _opened(self, opening: "asyncio.Task[None]") -> None:
        if not opening.cancelled() and (error := opening.exception()):
            self._on_error(str(error))

    async def _ask(self, **asked: Any) -> dict[str, Any]:
        assert self._writer
        self._serial = serial = self._serial + 1
        self._writer.write(json.dumps({"serial": serial, "asked": asked}).encode() + b"\n")
        answer: dict[str, Any] = {}
        async with self._reading:  # a cancelled caller may not have left yet
            while answer.get("serial") != serial:  # abandoned questions are answered, too
                if not (line := await self._reader.readline()):
                    raise PluginFailed(words.output.plugin_ended(self._name))
                answer = json.loads(line)
        if "error" in answer:
            raise PluginFailed(words.output.plugin_failed(self._name, answer["error"]))
        return answer
