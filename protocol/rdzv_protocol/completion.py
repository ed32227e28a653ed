"""Flag `--print-completion` of each program, as torchrun 2.15 has it: what makes a shell complete their flags."""

import argparse
from typing import Any


class PrintCompletion(argparse.Action):
    """Prints what `shtab`, an optional package, makes of the parser for a shell, and ends the program."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, spelling: str | None = None
    ) -> None:
        from importlib import import_module

        try:
            shtab = import_module("shtab")
        except ImportError:
            parser.exit(1, f"{parser.prog}: {spelling} needs the package shtab: pip install shtab\n")
        print(shtab.complete(parser, values))  # noqa: T201
        parser.exit()


def add_print_completion(parser: argparse.ArgumentParser) -> None:
    """Give a parser the flag."""
    parser.add_argument(
        "--print-completion", "--print_completion", action=PrintCompletion, metavar="SHELL",
        choices=("bash", "zsh", "tcsh"), default=argparse.SUPPRESS,
        help="print what makes a shell complete these flags: bash, zsh or tcsh",
    )  # fmt: skip
