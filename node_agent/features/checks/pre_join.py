"""Check of this node before it joins: built-in checks (`--check`), then the user's command (`--pre-join-check`).

Each check is a child in a session of its own, tied to the agent's life, with a time limit. Exit code 0 means that the
node is fit. 71 (`ExitCode.NODE_UNFIT`) means unfit. A check that exceeds the limit also makes the node unfit, because a
health check that hangs is a sign of a broken node. Any other code means that the check itself is broken: the agent
warns and the node joins.

`--check-only` runs the checks without a launch (`check_only.py`).
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
from node_agent.kernel.processes.bounded_command import run_bounded

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
    """Checks of one node. `log` takes the agent's own lines."""

    def __init__(
        self, options: NodeChecks, node_id: str, environment: Mapping[str, str], log: Callable[[str, Level, str], None]
    ) -> None:
        self._options, self._node_id, self._environment, self._log = options, node_id, environment, log
        self._limit_s = options.pre_join_check_timeout
        self._running = ""
        """Name of the check that runs."""
        self._seen = ""
        """Findings of the last look at this node, as JSON, for the next one."""

    async def unfit(self, after_failure: bool) -> str:
        """Check the node. Return the reason why it is unfit, empty if it is fit."""
        loop = asyncio.get_running_loop()
        began_at, quiet = loop.time(), loop.call_later(QUIET_S, self._tell_of_wait)
        reason = "after_failure" if after_failure else "join"
        environment = {**self._environment, "NODE_AGENT_CHECK": reason, "NODE_AGENT_NODE_ID": self._node_id}
        try:
            for name, command in commands(self._options, seen=self._seen):
                self._running = name
                if unfit := await self._finding(name, command, environment):
                    return unfit
        finally:
            quiet.cancel()
        if (took_s := loop.time() - began_at) >= QUIET_S:
            self._log(words.checked(took_s), Level.NOTICE, WAITING)
        return ""

    async def _finding(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> str:
        """Run one check. Return why it finds the node unfit, empty if it does not."""
        try:
            exit_code, output = await run_bounded(command, environment, self._limit_s)
        except OSError as error:
            self._warn(words.not_started(name, error.strerror or str(error), ExitCode.NODE_UNFIT.value))
            return ""
        wrote = evidence(self._without_seen(output))
        if exit_code is None:
            return words.too_slow(self._node_id, name, self._limit_s, wrote)
        if exit_code == ExitCode.NODE_UNFIT:
            return words.rejected(self._node_id, name, wrote)
        if exit_code:
            self._warn(words.broken(name, exit_status(exit_code).cause, wrote, ExitCode.NODE_UNFIT.value))
        elif wrote and PROGRAM in command:
            self._warn(words.suspect(name, wrote))
        return ""

    def _without_seen(self, output: str) -> str:
        """Return the output without the line for the next look, which is kept."""
        text, mark, seen = output.partition(SEEN)
        if mark:
            self._seen = seen.strip()
        return text

    def _warn(self, text: str) -> None:
        self._log(text, Level.WARNING, "check_failed")

    def _tell_of_wait(self) -> None:
        self._log(words.checking(self._running, self._limit_s), Level.NOTICE, WAITING)


def evidence(output: str) -> str:
    """Return the end of a check's output in one line, empty if there is none."""
    lines = [printable(line).strip() for line in output.splitlines() if one_line([line])]
    kept = last_lines(lines, TAIL_LINES, EVIDENCE_BYTES)
    return " | ".join(kept)
