"""Failure rules: patterns of failures that end the run (tried first), and of failures whose restart is free."""

from typing import Annotated

from node_agent.flags import ours, patterns
from node_agent.kernel.config import Options


class FailureRules(Options, frozen=True, kw_only=True):
    """Patterns about what a worker wrote last."""

    feature = "node_agent.features.rules.feature:FailureRules"
    after = "fatal_exit_codes"

    # fmt: off
    fatal_rule: Annotated[tuple[str, ...], ours(
        "PATTERN", patterns, "the same for workers whose error, traceback or last lines on stderr have a match of this "
        "regular expression, may be repeated", repeats=True)] = ()
    retry_rule: Annotated[tuple[str, ...], ours(
        "PATTERN", patterns, "likewise: a restart that costs nothing, however often, such as for a file system that is "
        "away for a while; --restart-backoff sets a pace", repeats=True)] = ()
    # fmt: on
