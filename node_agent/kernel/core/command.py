"""Command of the workers, and what differs from one worker to the next."""

import re
from collections.abc import Sequence
from zlib import crc32

from msgspec import Struct

LOCAL_RANK = "${local_rank}"
"""Placeholder of the worker's local rank in the script's arguments, as under torchrun."""

_OF_NODE = re.compile(r"(?i)rank|node|host|machine|addr")
"""Names of arguments whose values legitimately differ."""


class Command(Struct, frozen=True):
    """A program and its arguments. In the `arguments` alone, `${local_rank}` is the worker's local rank.

    So is `$local_rank`, `$$` is a dollar sign, and everything else stands for itself: torchrun's rules.
    """

    program: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    name: str = ""
    """Name of the script, module or program without its folder, by which runs are told apart; empty: unknown."""

    @property
    def title(self) -> str:
        """The program, for a person."""
        return self.program[0] if self.program else ""

    @property
    def fingerprint(self) -> str:
        """A short hash by which nodes of one run know each other's command; empty for none.

        Left out is what differs from node to node: the folders of programs and scripts, and the values of arguments
        whose name says so, such as `--node-rank 1` or `machine_rank=1`.
        """
        words: list[str] = []
        is_value = False
        for word in (*self.program, *self.arguments):
            if not is_value or word.startswith("-"):
                name, equals, _ = word.partition("=")
                is_of_node = bool(equals or word.startswith("-")) and _OF_NODE.search(name) is not None
                words.append(name if is_of_node else word.rpartition("/")[2])
                is_value = is_of_node and not equals
            else:
                is_value = False
        return f"{crc32(repr(words).encode()):08x}" if words else ""

    def for_worker(self, local_rank: int) -> Sequence[str]:
        """Words that the worker with this local rank executes."""
        return [*self.program, *(_substitute(argument, local_rank) for argument in self.arguments)]


def _substitute(argument: str, local_rank: int) -> str:
    if "$" not in argument:
        return argument
    from string import Template

    return Template(argument).safe_substitute(local_rank=local_rank)
