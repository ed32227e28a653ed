"""Hangs: detect workers that have stopped working. Off by default."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Annotated

from msgspec.structs import replace
from rdzv_protocol import hang_sources

from node_agent.flags import WATCH, Read, lines, number, ours, pattern, seconds, switch, text, whole
from node_agent.kernel.config import LaunchPlan, Options, UsageError

if TYPE_CHECKING:
    from node_agent.features.hangs.progress_source import ProgressLimits
    from node_agent.features.hangs.rule_source import LogRule
else:
    ProgressLimits = LogRule = object  # `typing` would compile a name in quotes, which takes a millisecond

SHORTEST_SILENCE_S = 1.0
UNINTERRUPTIBLE = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"
_LIMITS = {
    "start": "start_s",
    "step": "step_s",
    "checkpoint": "checkpoint_s",
    "unseen": "unseen_s",
    "factor": "factor",
}
_CONSEQUENCES = "on_hang", "max_hang_restarts"
"""Settings that say what follows a hang."""
_RULE = r"([a-z]+(?:=[^,:\s]+)?(?:,[a-z]+(?:=[^,:\s]+)?)*):\s*(\S.*)"
_RULE_KEYS: dict[str, tuple[str, Read]] = {
    "first": ("first_s", seconds(0.1)),
    "every": ("every_s", seconds(0.1)),
    "rank": ("rank", whole(0, 10**7)),
    "least": ("least", number(-inf, inf)),
    "most": ("most", number(-inf, inf)),
    "points": ("points", whole(1, 10**6)),
    "fault": ("is_fault", switch),
    "stop": ("is_stop", switch),
}
"""Keys of a log rule: the field that each one sets, and how its value is read. A switch has no value."""


def progress_limits(given: object) -> "ProgressLimits":
    """Parse seconds for every phase, `auto`, or some of start, step, checkpoint, unseen and factor."""
    from node_agent.features.hangs.progress_source import UNSEEN_S, ProgressLimits

    if given == "auto":
        return ProgressLimits()
    with suppress(ValueError):
        every = seconds(0.1)(given)
        preparation_s = max(every, UNSEEN_S)
        return ProgressLimits(start_s=every, step_s=every, checkpoint_s=every, preparation_s=preparation_s)
    found = {}
    for part in text(given).split(","):
        key, _, limit = part.partition("=")
        try:
            found[_LIMITS[key]] = number(1 if key == "factor" else 0.1, 10**6)(limit)
        except (KeyError, ValueError):
            from node_agent.features.hangs import words

            raise ValueError(words.not_progress_limits(part)) from None
    return ProgressLimits(**found)


def rules(given: object) -> "tuple[LogRule, ...]":
    """Parse rules, one a line: `first=600,every=60: step (\\d+)`."""
    return tuple(map(_log_rule, lines(given)))


def _log_rule(line: str) -> "LogRule":
    match = re.fullmatch(_RULE, line)
    if match is None:
        raise ValueError(_no_rule(line))
    found: dict[str, object] = {"pattern": pattern(match[2])}
    for part in match[1].split(","):
        key, _, value = part.partition("=")
        if key not in _RULE_KEYS or bool(value) == (key in ("fault", "stop")):
            from node_agent.features.hangs import words

            raise ValueError(words.not_a_part_of_a_rule(part))
        field, read = _RULE_KEYS[key]
        try:
            found[field] = read(value or "true")
        except ValueError as error:
            from node_agent.features.hangs import words

            raise ValueError(words.bad_value_in_rule(key, line, str(error))) from None
    from node_agent.features.hangs.rule_source import LogRule

    return LogRule(**found)  # type: ignore[arg-type]


def _no_rule(line: str) -> str:
    """Return advice on a line that is not a rule. If it begins with a key, only its pattern is missing."""
    from node_agent.features.hangs import words

    how = line.strip().rstrip(":")
    if how.partition("=")[0] in _RULE_KEYS and re.fullmatch(_RULE, f"{how}: x"):
        return words.no_pattern(line, how)
    return words.not_a_rule(line)


class Hangs(Options, frozen=True, kw_only=True):
    """Sources of hang detection."""

    feature = "node_agent.features.hangs.feature:Hangs"
    after = "rank_policy"

    # fmt: off
    progress_timeout: Annotated[ProgressLimits | None, ours(
        "S|auto|K=S,..", progress_limits, "treat workers as hung after S seconds without progress "
        "(node_agent.progress). start=S,step=S,checkpoint=S: one limit for each kind of phase. auto: twice the longest "
        "time of each kind (factor=2), and 600 s until a kind has been seen (unseen=S)", task=WATCH)] = None
    silence_timeout: Annotated[float | None, ours(
        "S", seconds(SHORTEST_SILENCE_S), "treat the run as hung after S seconds without output or progress "
        "(node_agent.progress) from any worker on any node")] = None
    log_rule: Annotated[tuple[LogRule, ...], ours(
        "HOW: PATTERN", rules, "watch for lines that match PATTERN; may be repeated. first=S,every=S: rank 0 must "
        "write such a line in time. most=X,least=X,points=N: limit the number in parentheses. fault: the line reports "
        "a fault. stop: the line reports that all work is done", repeats=True)] = ()
    # fmt: on
    uninterruptible_s: float | None = None
    """Seconds in uninterruptible sleep after which a worker counts as hung, from torch's variable."""

    @property
    def watches(self) -> tuple[str, ...]:
        sources = {
            hang_sources.PROGRESS: self.progress_timeout,
            hang_sources.SILENCE: self.silence_timeout,
            hang_sources.LOG_RULE: self.log_rule,
            hang_sources.UNINTERRUPTIBLE: self.uninterruptible_s,
        }
        return tuple(source for source, given in sources.items() if given)

    def completed(self, plan: LaunchPlan, source: Callable[[str], str]) -> "Hangs":
        """Turn off the source of torch's variable if its value is not a positive number, as under torchrun."""
        if self.progress_timeout and not os.path.exists("/proc/self"):
            from node_agent.features.hangs import words

            raise UsageError(words.no_proc(source("progress_timeout")))
        uninterruptible_s = 0.0
        with suppress(ValueError):
            uninterruptible_s = float(plan.config.environment.get(UNINTERRUPTIBLE, ""))
        return replace(self, uninterruptible_s=uninterruptible_s if 0 < uninterruptible_s < inf else None)

    def notes(self, plan: LaunchPlan, source: Callable[[str], str]) -> Iterator[str]:
        settings = plan.config.join.settings
        given = [source(each) for each in _CONSEQUENCES if getattr(settings, each) is not None]
        if given and not self.watches:
            from node_agent.features.hangs import words

            yield words.detects_no_hangs(given)
