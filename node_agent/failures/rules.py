"""Rules of the user about what a worker's end means for the run, by patterns: `--fatal-rule`, `--retry-rule`.

They are matched with what the worker wrote last, line by line, as the failure's evidence has it: some 70 lines of 512
bytes. Even so a regular expression may take for ever (`(a+)+$`), and Python's cannot be interrupted: a process of its
own matches them, and is killed after a while. There the failure counts as any other.
"""

import json
import subprocess
import sys

from msgspec.structs import replace
from rdzv_protocol.messages import Failure
from rdzv_protocol.text import clip

from node_agent.config import FailureRules

MATCHED_WITHIN_S = 2.0
RULE_BYTES = 512
_MATCH = """
import json, re, sys
patterns, lines = json.load(sys.stdin)
print(next((at for at, pattern in enumerate(patterns) if any(map(re.compile(pattern).search, lines))), -1))
"""


class RulesNotMatched(Exception):
    """The patterns could not be matched, or not in time: one line that says why."""


def judged(failure: Failure, rules: FailureRules) -> Failure:
    """The failure with what the rules say of it. Raises `RulesNotMatched`."""
    patterns = (*rules.fatal, *rules.retry)
    at = _first_match(patterns, failure) if patterns else -1
    if at < 0:
        return failure
    verdict = "fatal" if at < len(rules.fatal) else "retry"
    return replace(failure, verdict=verdict, rule=clip(patterns[at], RULE_BYTES))


def _first_match(patterns: tuple[str, ...], failure: Failure) -> int:
    """Position of the first pattern that any line fits; -1 for none."""
    lines = (failure.cause, failure.error, *failure.traceback, *failure.stderr_tail)
    try:
        done = subprocess.run(
            (sys.executable, "-I", "-S", "-c", _MATCH), input=json.dumps((patterns, lines)), text=True,
            capture_output=True, timeout=MATCHED_WITHIN_S, check=True,
        )  # fmt: skip
        return int(done.stdout)
    except subprocess.TimeoutExpired:
        why = f"took longer than {MATCHED_WITHIN_S:g} s: nested repeats such as (a+)+ take for ever"
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        why = f"failed: {error}"
    raise RulesNotMatched(f"--fatal-rule and --retry-rule count for nothing here, matching them {why}")
