"""How the console says whose lines they are."""

from dataclasses import dataclass

from rdzv_protocol.messages import Assignment

from node_agent.output.log_names import default_prefix, prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What stands before a worker's lines."""

    role: str
    node_id: str
    asked: str | None
    """The user's template for every line on the console; None: only teed lines have a mark."""
    teed: str | None
    """torchrun's template for teed lines; None: its default."""

    def of_any(self, assignment: Assignment, local_rank: int) -> str:
        """For a stream that goes to the console alone; empty: nothing."""
        return self._filled(self.asked, assignment, local_rank) if self.asked else ""

    def of_teed(self, assignment: Assignment, local_rank: int) -> str:
        """For a stream whose lines must be told from other workers'."""
        template = self.asked or self.teed
        return self._filled(template, assignment, local_rank) if template else default_prefix(self.role, local_rank)

    def _filled(self, template: str, assignment: Assignment, local_rank: int) -> str:
        return prefix(
            template,
            role_name=self.role,
            rank=assignment.first_rank + local_rank,
            local_rank=local_rank,
            node_id=self.node_id,
            group_rank=assignment.group_rank,
        )
