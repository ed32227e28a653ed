"""The user's rules about failures, by patterns: `--fatal-rule`, `--retry-rule`.

The patterns are matched, line by line, with the worker's last output in the failure's evidence: some 70 lines of 512
bytes. Even so a regular expression may take forever (`(a+)+$`), and Python cannot interrupt it. So a separate process
matches them, in parallel with the agent's other work, and is killed after a while. The failure is then handled as if
there were no rules.
"""

import json
import os
import signal
import sys
from collections.abc import Mapping

from msgspec.structs import replace
from rdzv_protocol.messages import Failure
from rdzv_protocol.text import clip, one_line

from node_agent.features import rules
from node_agent.features.rules import words
from node_agent.kernel.core.effects import Level
from node_agent.kernel.feature import Feature, Kernel
from node_agent.kernel.processes.bounded_command import run_bounded
from node_agent.kernel.processes.system_calls import memfd_create

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
    """Verdicts about failures."""

    def __init__(self, kernel: Kernel, options: rules.FailureRules) -> None:
        super().__init__(kernel)
        self._options = options

    async def judged(self, failure: Failure) -> Failure:
        try:
            return await matched(self._options, failure, self.kernel.config.environment)
        except Unmatched as why:
            self.kernel.console.log(words.warning(words.unmatched(str(why))), Level.WARNING)
            return failure


class Unmatched(Exception):
    """The rules could not be applied. `str(error)` says why."""


async def matched(rules: rules.FailureRules, failure: Failure, environment: Mapping[str, str]) -> Failure:
    """Return the failure with the verdict of the first rule that matches it. Raises `Unmatched`."""
    lines = (failure.cause, failure.error, *failure.traceback, *failure.stderr_tail)
    asked = memfd_create("rules")
    try:
        os.write(asked, json.dumps(((*rules.fatal_rule, *rules.retry_rule), lines, CPU_S)).encode())
        os.lseek(asked, 0, os.SEEK_SET)
        command = (sys.executable, "-I", "-S", "-W", "ignore", "-c", _MATCH)
        exit_code, output = await run_bounded(command, environment, MATCHED_WITHIN_S, stdin=asked)
    except OSError as error:
        raise Unmatched(words.not_started(str(error))) from None
    finally:
        os.close(asked)
    wrote = output.splitlines()[-1:]
    if exit_code in _TOO_LONG:
        raise Unmatched(words.too_slow(CPU_S if exit_code else MATCHED_WITHIN_S))
    if exit_code or not wrote:
        raise Unmatched(words.ended(exit_code, one_line(wrote)))
    return _judged(rules, failure, int(wrote[0]))


def _judged(rules: rules.FailureRules, failure: Failure, at: int) -> Failure:
    """Return the failure with the verdict of the pattern at this position, -1 if no pattern matches."""
    if at < 0:
        return failure
    patterns = (*rules.fatal_rule, *rules.retry_rule)
    verdict = "fatal" if at < len(rules.fatal_rule) else "retry"
    return replace(failure, verdict=verdict, rule=clip(patterns[at], RULE_BYTES))
