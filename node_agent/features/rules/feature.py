"""Rules of the user about what a worker's end means for the run, by patterns: `--fatal-rule`, `--retry-rule`.

They are matched with what the worker wrote last, line by line, as the failure's evidence has it: some 70 lines of 512
bytes. Even so a regular expression may take for ever (`(a+)+$`), and Python's cannot be interrupted: a process of its
own matches them, beside whatever else the agent does, and is killed after a while. There the failure counts as any
other.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping

from msgspec.structs import replace
from rdzv_protocol.messages import Failure
from rdzv_protocol.text import clip, one_line

from node_agent.features import rules
from node_agent.features.rules import words
from node_agent.kernel.core.effects import Level
from node_agent.kernel.feature import Feature, Kernel
from node_agent.kernel.workers.bounded_command import BoundedCommand

CPU_S = 2
"""Processor time that the patterns of all rules may take together."""
MATCHED_WITHIN_S = 5.0
"""Longest time until the verdict, also on a machine that is busy with other things."""
RULE_BYTES = 512
_MATCH = """
import json, re, resource, sys
patterns, lines, cpu_s = json.load(sys.stdin)
resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
print(next((at for at, pattern in enumerate(patterns) if any(map(re.compile(pattern).search, lines))), -1))
"""
_TOO_LONG = (None, -signal.SIGXCPU)


class FailureRules(Feature):
    """Verdicts about failures, one at a time."""

    def __init__(self, kernel: Kernel, options: rules.FailureRules) -> None:
        super().__init__(kernel)
        self._options = options

    async def judged(self, failure: Failure) -> Failure:
        told: asyncio.Future[tuple[Failure, str]] = asyncio.get_running_loop().create_future()
        environment = self.kernel.config.environment

        def tell(judged: Failure, problem: str) -> None:
            if not told.done():  # not cancelled in this moment
                told.set_result((judged, problem))

        try:
            match = RuleMatch(self._options, failure, environment, tell)
        except OSError as error:
            tell(failure, words.unmatched(words.not_started(str(error))))
        try:
            judged, problem = await told
        except asyncio.CancelledError:
            match.close()
            raise
        if problem:
            self.kernel.console.log(words.warning(problem), Level.WARNING)
        return judged


class RuleMatch:
    """One failure that is being compared with the rules, for `MATCHED_WITHIN_S` at most.

    `matched` is told the failure with what they say of it, and why they count for nothing if they could not be matched,
    or not in time; empty: they have been.
    """

    def __init__(
        self,
        rules: rules.FailureRules,
        failure: Failure,
        environment: Mapping[str, str],
        matched: Callable[[Failure, str], None],
    ) -> None:
        """Start the match. Raises `OSError` if no process can be started."""
        self._rules, self._failure, self._matched = rules, failure, matched
        lines = (failure.cause, failure.error, *failure.traceback, *failure.stderr_tail)
        asked = os.memfd_create("rules")
        try:
            with open(asked, "w", closefd=False) as file:
                json.dump(((*rules.fatal_rule, *rules.retry_rule), lines, CPU_S), file)
            os.lseek(asked, 0, os.SEEK_SET)
            command = (sys.executable, "-I", "-S", "-W", "ignore", "-c", _MATCH)
            self._command = BoundedCommand(command, environment, MATCHED_WITHIN_S, self._ended, stdin=asked)
        finally:
            os.close(asked)

    def close(self) -> None:
        """Give the match up."""
        self._command.kill()

    def _ended(self, exit_code: int | None, output: str) -> None:
        wrote = output.splitlines()[-1:]
        if exit_code in _TOO_LONG:
            limit_s = CPU_S if exit_code else MATCHED_WITHIN_S
            self._matched(self._failure, words.unmatched(words.too_slow(limit_s)))
        elif exit_code or not wrote:
            self._matched(self._failure, words.unmatched(words.ended(exit_code, one_line(wrote))))
        else:
            self._matched(self._judged(int(wrote[0])), "")

    def _judged(self, at: int) -> Failure:
        """The failure that the pattern at this position fits; -1: none does."""
        if at < 0:
            return self._failure
        patterns = (*self._rules.fatal_rule, *self._rules.retry_rule)
        verdict = "fatal" if at < len(self._rules.fatal_rule) else "retry"
        return replace(self._failure, verdict=verdict, rule=clip(patterns[at], RULE_BYTES))
