"""Prefixes of the lines on the console: whose they are."""

import os

from rdzv_protocol.messages import Assignment

from node_agent.config import AgentConfig

PREFIX_TEMPLATE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
"""The environment variable with torchrun's template of a teed line's prefix."""
PREFIX_NAMES = ("role_name", "rank", "local_rank", "hostname", "node_id", "group_rank")
"""Names that `${...}` may have in a template; the first four are torchrun's."""


def line_prefix(config: AgentConfig, assignment: Assignment, local_rank: int, teed: bool) -> str:
    """Text before a worker's lines; empty for none.

    The user's own template marks every line. Without one, teed lines alone are marked, by torchrun's template.
    """
    template = config.logs.prefix or (teed and config.environment.get(PREFIX_TEMPLATE))
    if not template:
        return default_prefix(config.join.role, local_rank) if teed else ""
    from string import Template

    return Template(template).safe_substitute(
        role_name=config.join.role,
        rank=assignment.first_rank + local_rank,
        local_rank=local_rank,
        hostname=os.uname().nodename.partition(".")[0],
        node_id=config.join.node_id,
        group_rank=assignment.group_rank,
    )


def default_prefix(role: str, local_rank: int) -> str:
    """torchrun's prefix of a teed line."""
    return f"[{role}{local_rank}]:"
