"""Prefixes of the lines on the console: whose they are."""

import os
from dataclasses import dataclass

from rdzv_protocol.messages import Assignment

PREFIX_TEMPLATE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
"""The environment variable with torchrun's template of a teed line's prefix."""
PREFIX_NAMES = ("role_name", "rank", "local_rank", "hostname", "node_id", "group_rank")
"""Names that `${...}` may have in a template; the first four are torchrun's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePrefix:
    """Makes what stands before a worker's lines."""

    role: str
    node_id: str
    asked: str | None
    """The user's template for every line on the console; None: only teed lines have a prefix."""
    teed: str | None
    """torchrun's template for teed lines; None: its default."""

    def of_any(self, assignment: Assignment, local_rank: int) -> str:
        """Prefix in a stream that goes to the console alone; empty: none."""
        return self._filled(self.asked, assignment, local_rank) if self.asked else ""

    def of_teed(self, assignment: Assignment, local_rank: int) -> str:
        """Prefix in a stream whose lines must be told from other workers'."""
        template = self.asked or self.teed
        return self._filled(template, assignment, local_rank) if template else default_prefix(self.role, local_rank)

    def _filled(self, template: str, assignment: Assignment, local_rank: int) -> str:
        return prefix(
            template,
            role_name=self.role,
            rank=assignment.first_rank + local_rank,
            local_rank=local_rank,
            hostname=os.uname().nodename.partition(".")[0],
            node_id=self.node_id,
            group_rank=assignment.group_rank,
        )


def default_prefix(role: str, local_rank: int) -> str:
    """torchrun's prefix of a teed line."""
    return f"[{role}{local_rank}]:"


def prefix(template: str, **names: str | int) -> str:
    """The template filled in. As under torchrun, what is not known stays as it is."""
    from string import Template

    return Template(template).safe_substitute(names)
