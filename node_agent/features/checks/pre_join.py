"""Check of this node before it joins: built-in checks (`--check`), then the user's command (`--pre-join-check`).

Each check is a child in a session of its own, tied to the agent's life, with a time limit. Exit code 0 means that the
node is fit. 71 (`ExitCode.NODE_UNFIT`) means unfit. A check that exceeds the limit also makes the node unfit, because a
health check that hangs is a sign of a broken node. Any other code means that the check itself is broken: the agent
warns and the node joins.

`--check-only` runs the checks without a launch (`by_hand.py`).
"""

import asyncio
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.text import clip, last_lines, one_line, printable

from node_agent.features.checks import NodeChecks, words
from node_agent.features.checks.links import SEEN
from node_agent.kernel.core.effects import WAITING, Level
from node_agent.kernel.failures.diagnose import exit_status
from node_agent.kernel.processes.bounded_command import BoundedCommand

QUIET_S = 2.0
"""Seconds after which a check that still runs is logged."""
TAIL_LINES, EVIDENCE_BYTES = 8, 700
"""Most lines and bytes of a check's output that become evidence."""
SYSFS = "/sys"
"""Folder in which the kernel shows links."""
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "built_in_helper.py")


def commands(options: NodeChecks, *, is_brief: bool = True, seen: str = "") -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the commands of the check, each with its name for people. `is_brief`, `seen`: see `built_in`."""
    if options.check:
        names = [name if limit is None else f"{name}={_shown(limit)}" for name, limit in options.check.items()]
        yield f"--check {','.join(names)}", built_in(options, is_brief=is_brief, seen=seen)
    if command := options.pre_join_check:
        yield f"--pre-join-check {shlex.quote(clip(printable(command), 80))}", ("/bin/sh", "-c", command)


def _shown(limit: float | str) -> str:
    return limit if isinstance(limit, str) else f"{limit:.10g}"


def built_in(options: NodeChecks, *, is_brief: bool = False, seen: str = "") -> Sequence[str]:
    """Return the command of the built-in checks.

    `is_brief`: whether it prints only checks that do not pass. `seen`: what its last look has seen, as JSON.
    """
    further = {"is_brief": is_brief, "seen": msgspec.json.decode(seen or "{}"), "sysfs": SYSFS}
    asked = msgspec.json.encode({**msgspec.to_builtins(options), **further})
    return (sys.executable, "-IS", PROGRAM, asked.decode())


class PreJoinCheck:
    """Checks of one node, one at a time. `log` takes the agent's own lines."""

    def __init__(
        self, options: NodeChecks, node_id: str, environment: Mapping[str, str], log: Callable[[str, Level, str], None]
    ) -> None:
        self._options, self._node_id, self._environment, self._log = options, node_id, environment, log
        self._limit_s = options.pre_join_check_timeout
        self._loop = asyncio.get_running_loop()
        self._left: list[tuple[str, Sequence[str]]] = []
        self._child: BoundedCommand | None = None
        self._began_at = 0.0
        self._done: Callable[[str], None] = lambda unfit: None
        self._quiet: asyncio.TimerHandle | None = None
        self._seen = ""
        """What the last look at this node has seen, as JSON, for the next one."""

    def start(self, after_failure: bool, done: Callable[[str], None]) -> None:
        """Check the node. `done` is called with the reason why it is unfit, empty if it is fit."""
        self._done, self._began_at, self._left = done, self._loop.time(), list(commands(self._options, seen=self._seen))
        self._reason = "after_failure" if after_failure else "join"
        self._quiet = self._loop.call_later(QUIET_S, self._tell_of_wait)
        self._loop.call_soon(self._next)

    def close(self) -> None:
        """Kill the check that still runs."""
        self._left = []
        if self._quiet:
            self._quiet.cancel()
        if self._child:
            self._child.kill()

    def _next(self) -> None:
        if self._left:
            name, command = self._left.pop(0)
            own = {"NODE_AGENT_CHECK": self._reason, "NODE_AGENT_NODE_ID": self._node_id}
            try:
                ended = self._ended(name, is_ours=PROGRAM in command)
                self._child = BoundedCommand(command, {**self._environment, **own}, self._limit_s, ended)
            except OSError as error:
                self._warn(words.not_started(name, error.strerror or str(error), ExitCode.NODE_UNFIT.value))
                self._loop.call_soon(self._next)
        else:
            took_s = self._loop.time() - self._began_at
            if took_s >= QUIET_S:
                self._log(words.checked(took_s), Level.NOTICE, WAITING)
            self._end("")

    def _ended(self, name: str, *, is_ours: bool) -> Callable[[int | None, str], None]:
        def ended(exit_code: int | None, output: str) -> None:
            self._child = None
            wrote = evidence(self._without_seen(output))
            if exit_code is None:
                self._end(words.too_slow(self._node_id, name, self._limit_s, wrote))
            elif exit_code == ExitCode.NODE_UNFIT:
                self._end(words.rejected(self._node_id, name, wrote))
            else:
                if exit_code:
                    cause = exit_status(exit_code).cause
                    self._warn(words.broken(name, cause, wrote, ExitCode.NODE_UNFIT.value))
                elif wrote and is_ours:
                    self._warn(words.suspect(name, wrote))
                self._next()

        return ended

    def _without_seen(self, output: str) -> str:
        """Return the output without the line for the next look, which is kept."""
        text, mark, seen = output.partition(SEEN)
        if mark:
            self._seen = seen.strip()
        return text

    def _warn(self, text: str) -> None:
        self._log(text, Level.WARNING, "check_failed")

    def _tell_of_wait(self) -> None:
        running = [name for name, _ in commands(self._options)]
        name = running[len(running) - len(self._left) - 1]
        self._log(words.checking(name, self._limit_s), Level.NOTICE, WAITING)

    def _end(self, unfit: str) -> None:
        if self._quiet:
            self._quiet.cancel()
        self._left = []
        self._done(unfit)


def evidence(output: str) -> str:
    """Return the end of a check's output in one line, empty if there is none."""
    lines = [printable(line).strip() for line in output.splitlines() if one_line([line])]
    kept = last_lines(lines, TAIL_LINES, EVIDENCE_BYTES)
    return " | ".join(kept)
