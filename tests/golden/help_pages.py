"""What `--help` of each program and of each of their commands shows."""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from node_agent.cli.parser import Parser
from rdzv_server.cli import make_parser as server_parser
from rdzvctl.cli import make_parser as rdzvctl_parser

HELP_FILE = Path(__file__).parent / "help.txt"
COLUMNS = "120"


def help_text() -> str:
    """Return what belongs in `help.txt`."""
    with patch.dict(os.environ, COLUMNS=COLUMNS):
        parsers = [each for root in (Parser(), server_parser(), rdzvctl_parser()) for each in _with_commands(root)]
        return "\n".join(f"# {parser.prog} --help\n\n{parser.format_help()}" for parser in parsers)


def _with_commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Return a parser, and those of its commands that people are shown."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for shown in action._choices_actions:
                yield from _with_commands(action.choices[shown.dest])
