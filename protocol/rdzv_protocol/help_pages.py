"""Pages of help, and the version. `--help` shows the flags of a first day, grouped by task; `--help-all` every flag."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import rdzv_protocol
from rdzv_protocol.standard_output import show

Tasks = Mapping[str, Sequence[str]]
"""Names of flags' destinations, by the heading under which the short page shows them."""
_GENERAL = ("help", "help_all", "version")


def add_help(parser: argparse.ArgumentParser, tasks: Tasks, examples: str) -> None:
    """Add both help pages to a parser that has none. `examples`: text at the end of the short page."""
    parser.add_argument(
        "-h", "--help", action=_Page, page=lambda: short_page(parser, tasks, examples),
        help="show the most used flags",
    )  # fmt: skip
    parser.add_argument("--help-all", action=_Page, page=parser.format_help, help="show every flag and the exit codes")


def add_version(parser: argparse.ArgumentParser) -> None:
    version = f"{parser.prog} {rdzv_protocol.VERSION}\n"
    parser.add_argument("-V", "--version", action=_Page, page=lambda: version, help="show the version")


def short_page(parser: argparse.ArgumentParser, tasks: Tasks, examples: str) -> str:
    """Return the page that `--help` shows."""
    by_name = {action.dest: action for action in parser._actions}
    page = parser._get_formatter()
    page.add_usage(parser.usage, parser._actions, [])
    page.add_text(parser.description)
    for heading, names in {**tasks, "help": _GENERAL}.items():
        page.start_section(heading)
        page.add_arguments(by_name[name] for name in names)
        page.end_section()
    page.add_text(examples)
    return page.format_help()


class _Page(argparse.Action):
    """Argument action that prints a page and ends the program."""

    def __init__(self, option_strings: Sequence[str], dest: str, page: Callable[[], str], **more: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **{**more, "default": argparse.SUPPRESS})
        self._page = page

    def __call__(self, parser: argparse.ArgumentParser, *given: Any) -> None:
        show(parser, self._page())
