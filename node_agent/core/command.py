"""What the workers execute, and what differs from one to the next."""

from collections.abc import Sequence

from msgspec import Struct

LOCAL_RANK = "${local_rank}"
"""Stands for the worker's local rank in the script's arguments, as under torchrun."""


class Command(Struct, frozen=True):
    """A program and its arguments. In the `arguments` alone, `${local_rank}` is the worker's local rank.

    So is `$local_rank`, `$$` is a dollar sign, and everything else stands for itself: torchrun's rules.
    """

    program: tuple[str, ...]
    arguments: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The program, for a person."""
        return self.program[0] if self.program else ""

    def for_worker(self, local_rank: int) -> Sequence[str]:
        """What the worker with this local rank executes."""
        return [*self.program, *(_substitute(argument, local_rank) for argument in self.arguments)]


def _substitute(argument: str, local_rank: int) -> str:
    if "$" not in argument:
        return argument
    from string import Template

    return Template(argument).safe_substitute(local_rank=local_rank)
