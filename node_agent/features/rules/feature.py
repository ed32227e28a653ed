"""The user's rules about failures, by patterns: `--fatal-rule`, `--retry-rule`.

The patterns are matched, line by line, with the worker's last output in the failure's evidence: some 70 lines of 512
bytes. Even so a regular expression may take forever (`(a+)+$`), and Python cannot interrupt it. So a separate process
matches them, in parallel with the agent's other work, and is killed after a while. The failure is then handled as if
there were no rules.
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
from node_agent.kernel.processes.bounded_command import BoundedCommand

CPU_S = 2
"""Seconds of processor time that the patterns of all rules may take together."""
MATCHED_WITHIN_S = 5.0
"""Most seconds until the verdict, even on a busy machine."""
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
        future: asyncio.Future[tuple[Failure, str]] = asyncio.get_running_loop().create_future()
        environment = self.kernel.config.environment

        def tell(judged: Failure, problem: str) -> None:
            if not future.done():  # unless cancelled at the same time
                future.set_result((judged, problem))

        try:
            match = RuleMatch(self._options, failure, environment, tell)
        except OSError as error:
            tell(failure, words.unmatched(words.not_started(str(error))))
        try:
            judged, problem = await future
        except asyncio.CancelledError:
            match.close()
            raise
        if problem:
            self.kernel.console.log(words.warning(problem), Level.WARNING)
        return judged


class RuleMatch:
    """One failure that is being compared with the rules, for at most `MATCHED_WITHIN_S`.

    `matched` is called with the failure and its verdict. Its second argument says why the rules could not be applied,
    empty if they were.
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
        """Stop the match."""
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
        """Return the failure with the verdict of the pattern at this position, -1 if no pattern matches."""
        if at < 0:
            return self._failure
        patterns = (*self._rules.fatal_rule, *self._rules.retry_rule)
        verdict = "fatal" if at < len(self._rules.fatal_rule) else "retry"
        return replace(self._failure, verdict=verdict, rule=clip(patterns[at], RULE_BYTES))
