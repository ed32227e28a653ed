"""Flag `--print-completion` of each program, as in torchrun 2.15: a script with which a shell completes its flags."""

import argparse
from collections.abc import Mapping
from typing import Any

from rdzv_protocol import words
from rdzv_protocol.standard_output import show

SHELLS = ("bash", "zsh", "tcsh", "fish")


class PrintCompletion(argparse.Action):
    """Argument action that prints the completion script of `shtab`, an optional package, and ends the program."""

    preamble: Mapping[str, str] = {}

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, spelling: str | None = None
    ) -> None:
        from importlib import import_module

        try:
            shtab = import_module("shtab")
        except ImportError:
            parser.exit(1, words.flags.needs_shtab(parser.prog, spelling) + "\n")
        _without_colons(parser)
        show(parser, f"{shtab.complete(parser, values, preamble=dict(self.preamble))}\n")


def _without_colons(parser: argparse.ArgumentParser) -> None:
    """Remove the colons from names of values, as in HOST:PORT: for zsh, `shtab` would make each part a field."""
    for action in parser._actions:
        if isinstance(action.metavar, str):
            action.metavar = action.metavar.replace(":", " ")
        for each in action.choices.values() if isinstance(action.choices, dict) else ():
            _without_colons(each)


def add_print_completion(parser: argparse.ArgumentParser, preamble: Mapping[str, str] | None = None) -> None:
    """Add the flag to a parser. `preamble`: functions, by shell, that the `complete` attribute of arguments names."""
    action = parser.add_argument(
        "--print-completion", "--print_completion", action=PrintCompletion, metavar="SHELL",
        choices=SHELLS, default=argparse.SUPPRESS,
        help="print a completion script for this shell: bash, zsh, tcsh or fish",
    )  # fmt: skip
    assert isinstance(action, PrintCompletion)
    action.preamble = preamble or {}
