"""Pages that `--help` and `--help-all` of each program and of each of their commands show."""

import argparse
import os
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from unittest.mock import patch

from node_agent.cli.parser import Parser
from rdzv_server.cli import make_parser as server_parser
from rdzvctl.cli import make_parser as rdzvctl_parser

HELP_FILE = Path(__file__).parent / "help.txt"
COLUMNS = "120"


def help_text() -> str:
    """Return the text for `help.txt`."""
    with patch.dict(os.environ, COLUMNS=COLUMNS):
        parsers = [each for root in (Parser(), server_parser(), rdzvctl_parser()) for each in with_commands(root)]
        return "\n".join(f"# {title}\n\n{page}" for parser in parsers for title, page in _pages(parser))


def _pages(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Yield the command line and the text of each of a parser's pages."""
    for flag in ("--help", "--help-all"):
        if flag in parser._option_string_actions:
            with redirect_stdout(StringIO()) as page, suppress(SystemExit):
                parser.parse_args([flag])
            yield f"{parser.prog} {flag}", page.getvalue()


def with_commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser, and those of its commands that help shows."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for shown in action._choices_actions:
                yield from with_commands(action.choices[shown.dest])
