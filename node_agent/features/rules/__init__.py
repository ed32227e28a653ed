"""Failure rules: patterns of failures that end the run (tried first), and of failures whose restart is free."""

from typing import Annotated

from node_agent.flags import ours, patterns
from node_agent.kernel.config import Options


class FailureRules(Options, frozen=True, kw_only=True):
    """Patterns for a worker's last output."""

    feature = "node_agent.features.rules.feature:FailureRules"
    after = "fatal_exit_codes"

    # fmt: off
    fatal_rule: Annotated[tuple[str, ...], ours(
        "PATTERN", patterns, "fail the run at once if a worker's error, traceback or last lines on stderr match this "
        "regular expression; may be repeated", repeats=True)] = ()
    retry_rule: Annotated[tuple[str, ...], ours(
        "PATTERN", patterns, "restart without charging --max-restarts if a worker's error matches, for example while a "
        "file system is away; may be repeated. --restart-backoff sets the pace", repeats=True)] = ()
    # fmt: on
