"""Feature: before workers start, waits until dead workers' GPU memory and contexts are gone.

A helper process asks the driver while the agent rejoins. It starts beside the workers and idles until they have ended.
So a restart does not wait for the helper's start. The agent kills a helper that hangs, and does not wait for its end.
"""

import asyncio
import json
import os
import sys
from contextlib import suppress
from typing import Any

from rdzv_protocol.messages import Assignment
from rdzv_protocol.text import printable

from node_agent.features import free_gpus
from node_agent.features.free_gpus import words
from node_agent.kernel.core.effects import WAITING, Level
from node_agent.kernel.feature import Feature, Kernel
from node_agent.kernel.processes.helper import Helper
from node_agent.kernel.processes.process import STDERR, CommandProcess, own_children

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gpus_helper.py")
NOTICE_S = 2.0
"""Seconds of waiting after which the agent logs which processes it waits for."""
CHUNK_BYTES = 1 << 16


class FreeGpus(Feature):
    """Wait before the start of workers.

    Each holder of a GPU delays workers at most once: after the limit, the agent does not wait for it again.
    """

    preparation = words.WAITS_FOR_GPUS

    def __init__(self, kernel: Kernel, options: free_gpus.FreeGpus) -> None:
        super().__init__(kernel)
        self._limit_s = options.gpu_free_timeout
        self._look: Look | None = None
        self._known: set[tuple[str, int]] = set()
        """GPUs and processes for which the agent does not wait."""
        self._has_started = False
        self._is_useless = False
        """Whether NVML does not work on this machine."""

    def joining(self) -> None:
        if self._look is None or self._look.has_ended_unasked:
            self._begin()
        if self._look and not self._look.is_ordered:
            environment = self.kernel.config.environment
            mark = self.kernel.orphans.mark if self.kernel.orphans else {}
            survivors = set(self.kernel.workers().values())  # of SIGKILL: all others of the last round have ended
            self._look.order(
                mark="".join(f"{name}={value}" for name, value in mark.items()),
                survivors=sorted(survivors),
                kept=sorted(own_children - survivors),
                known=sorted(self._known),
                is_first=not self._has_started,
                devices=environment.get("CUDA_VISIBLE_DEVICES"),
                order=environment.get("CUDA_DEVICE_ORDER", ""),
            )

    async def preparing(self, assignment: Assignment) -> None:
        if (look := self._look) is None or not look.is_ordered:
            return
        loop = asyncio.get_running_loop()
        began, log = loop.time(), self.kernel.console.log
        notice = loop.call_later(min(NOTICE_S, self._limit_s / 2), self._notify_of_wait, look)
        try:
            async with asyncio.timeout(self._limit_s):
                await look.done.wait()
        except TimeoutError:
            look.kill()
            if look.holders:
                log(words.not_free(_named(look), self._limit_s), Level.WARNING)
            else:
                log(words.driver_hangs(self._limit_s), Level.WARNING)
        else:
            if (took_s := loop.time() - began) >= NOTICE_S:
                log(words.free(took_s), Level.NOTICE, WAITING)
        finally:
            notice.cancel()
        if look.problem and not self._is_useless:
            self._is_useless = True
            log(words.cannot_ask(printable(look.problem)), Level.NOTICE)
        self._known |= {(holder["gpu"], holder["pid"]) for holder in look.holders}
        if not self._has_started:
            self._known |= look.before

    def started(self, assignment: Assignment, pids: object) -> None:
        self._has_started = True
        self._begin()

    async def close(self) -> None:
        if self._look:
            self._look.close()

    def _begin(self) -> None:
        if self._look:
            self._look.kill()
            self._look = None
        if self._is_useless:
            return
        with suppress(OSError):  # no process or descriptor is left: the workers' start will say so
            self._look = Look(dict(self.kernel.config.environment))

    def _notify_of_wait(self, look: "Look") -> None:
        if look.holders:
            self.kernel.console.log(words.waiting(_named(look), self._limit_s), Level.NOTICE, WAITING)


class Look:
    """One run of the helper. Raises `OSError` if it cannot be started."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.is_ordered = False
        self.done = asyncio.Event()
        """Set when no awaited process is left, or NVML cannot be used."""
        self.holders: list[dict[str, Any]] = []
        """Processes for which the helper waits, by its latest report."""
        self.before: set[tuple[str, int]] = set()
        self.problem = ""
        self._rest = b""

        def start(control: int) -> CommandProcess:
            command = (sys.executable, "-IS", PROGRAM, str(control))
            return CommandProcess(command, environment, STDERR, STDERR, pass_fds=[control])

        self._helper = Helper(start, self._ended)
        self._helper.socket.setblocking(False)
        self._helper.loop.add_reader(self._helper.socket, self._read)

    @property
    def has_ended_unasked(self) -> bool:
        """Whether somebody has killed the idle helper."""
        return self.done.is_set() and not self.is_ordered

    def order(self, **what: object) -> None:
        """Tell the helper to look at the GPUs now."""
        self.is_ordered = True
        if self._helper.exit_code is None:
            with suppress(OSError):  # it has just ended
                self._helper.socket.sendall(json.dumps(what).encode() + b"\n")

    def kill(self) -> None:
        """Kill the helper without waiting: it may be in uninterruptible sleep. The event loop reaps it."""
        if self._helper.exit_code is None:
            self._helper.kill()

    def close(self) -> None:
        """Kill the helper and stop watching it, because the event loop ends."""
        self._helper.abandon()

    def _read(self) -> None:
        with suppress(OSError):
            while chunk := self._helper.socket.recv(CHUNK_BYTES):
                *lines, self._rest = (self._rest + chunk).split(b"\n")
                for line in lines:
                    self._take(json.loads(line))

    def _take(self, told: dict[str, Any]) -> None:
        self.problem = told.get("problem", self.problem)
        self.holders = told.get("holders", self.holders)
        self.before |= {(uuid, pid) for uuid, pid in told.get("before", ())}

    def _ended(self, helper: Helper) -> None:
        self._read()
        self.done.set()


def _named(look: Look) -> list[str]:
    return [
        words.holder(holder["pid"], printable(holder["command"]), holder["mib"], holder["index"])
        for holder in look.holders
    ]
