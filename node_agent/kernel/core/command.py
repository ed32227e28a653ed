"""Command of the workers, and how it differs between workers."""

from collections.abc import Sequence
from zlib import crc32

from msgspec import Struct

LOCAL_RANK = "${local_rank}"
"""Placeholder for the worker's local rank in the script's arguments, as under torchrun."""

_OF_NODE = ("rank", "node", "host", "machine", "addr")
"""Parts of the names of arguments whose values may differ between nodes."""


class Command(Struct, frozen=True):
    """A program and its arguments. In `arguments`, and only there, `${local_rank}` is the worker's local rank.

    `$local_rank` means the same, `$$` is a dollar sign, and all other text is kept: torchrun's rules.
    """

    program: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    name: str = ""
    """Name of the script, module or program without its folder, by which people tell runs apart; empty if unknown."""
    compared: tuple[str, ...] = ()
    """Program that the fingerprint is made of, the same in all versions of the agent; empty if it is `program`."""

    @property
    def title(self) -> str:
        """Name of the program, for people."""
        return self.program[0] if self.program else ""

    @property
    def is_python(self) -> bool:
        """Whether the program is an interpreter of Python, by its name."""
        return self.title.rpartition("/")[2].startswith(("python", "pypy"))

    @property
    def fingerprint(self) -> str:
        """Short hash by which the nodes of a run compare their commands; empty if there is none.

        It leaves out what may differ between nodes: the folders of programs and scripts, and the values of arguments
        such as `--node-rank 1` or `machine_rank=1`.
        """
        words: list[str] = []
        is_value = False
        for word in (*(self.compared or self.program), *self.arguments):
            if not is_value or word.startswith("-"):
                name, equals, _ = word.partition("=")
                is_of_node = bool(equals or word.startswith("-")) and any(part in name.lower() for part in _OF_NODE)
                words.append(name if is_of_node else word.rpartition("/")[2])
                is_value = is_of_node and not equals
            else:
                is_value = False
        return f"{crc32(repr(words).encode()):08x}" if words else ""

    def for_worker(self, local_rank: int) -> Sequence[str]:
        """Return the words of the command that the worker with this local rank executes."""
        return [*self.program, *(_substitute(argument, local_rank) for argument in self.arguments)]


def _substitute(argument: str, local_rank: int) -> str:
    if "$" not in argument:
        return argument
    from string import Template

    return Template(argument).safe_substitute(local_rank=local_rank)
