"""Reads the command line: from words and variables to `Arguments`.

Most users spell flags out. The parser, which takes as long to create as an agent takes to join, is then not needed.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from node_agent.cli.arguments import ALIASES, FLAGS, Arguments, Given, from_variables, make
from node_agent.flags import Flag


def read(argv: Sequence[str], environment: Mapping[str, str]) -> Arguments:
    """Return the arguments of a command line. Raises `UsageError`, or `SystemExit` after --help and the like."""
    given, command = plain(argv) or parsed(argv)
    script, args = (command[0], command[1:]) if command else ("", ())
    return make({**from_variables(environment, FLAGS), **given}, script, args)


def parsed(argv: Sequence[str]) -> tuple[Given, Sequence[str]]:
    """Return the given flags, each with its spelling and text, and SCRIPT with all that follows."""
    from node_agent.cli.parser import Parser

    return Parser().read(argv)


def plain(argv: Sequence[str]) -> tuple[Given, Sequence[str]] | None:
    """Return the same as `parsed`, None if a flag is shortened, its value looks like a flag, or SCRIPT is missing."""
    given: dict[str, tuple[str, object]] = {}
    left = iter(argv)
    for word in left:
        if not word.startswith("-"):
            rest = [*left]
            return (given, [word, *(rest[1:] if rest[:1] == ["--"] else rest)]) if word else None
        spelling, is_joined, text = word.partition("=")
        flag = _spelled_out(spelling)
        value = _value(flag, is_joined, text, left) if flag else ""
        if flag is None or not value:
            return None
        before = cast(list[str], given.get(flag.argument, ("", []))[1])
        given[flag.argument] = (spelling, [*before, value] if flag.repeats else value)
    return None


def up_to_script(argv: Sequence[str]) -> Sequence[str]:
    """Return the words of a command line without the arguments of SCRIPT, all of them if `plain` returns None."""
    found = plain(argv)
    return argv[: len(argv) - len(found[1][1:])] if found else argv


def _spelled_out(spelling: str) -> Flag | None:
    name = spelling.removeprefix("--")
    if len(spelling) == 2:
        return next((flag for flag in FLAGS.values() if flag.short == spelling), None)
    if name == spelling or ("-" in name and "_" in name):
        return None
    argument = name.replace("-", "_")
    return FLAGS.get(argument) or ALIASES.get(argument)


def _value(flag: Flag, is_joined: str, text: str, left: Iterator[str]) -> str:
    """Return the text of a flag, perhaps the next word, or "true" for a switch. Empty if it is missing or may be a
    flag.
    """
    if not flag.metavar:
        return "" if is_joined else "true"
    value = text if is_joined else next(left, "")
    return value if is_joined or not value.startswith("-") else ""
