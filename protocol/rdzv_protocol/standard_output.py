"""Texts on stdout for people, such as help, also if their reader has ended or the disk is full."""

import argparse
import os
import signal
import sys
from typing import NoReturn

from rdzv_protocol import words
from rdzv_protocol.exit_codes import ExitCode

PIPE_CLOSED = 128 + signal.SIGPIPE
"""Exit code of a program whose reader has ended, as a shell returns it for this signal."""


def show(parser: argparse.ArgumentParser, text: str) -> NoReturn:
    """Print the text and end the program: with 0, `PIPE_CLOSED`, or FAILED and a message if it cannot be written."""
    if sys.stdout is not None:  # it is None if the program was started without stdout (>&-)
        try:
            print(text, end="", flush=True)  # noqa: T201
        except BrokenPipeError:
            discard()
            parser.exit(PIPE_CLOSED)
        except OSError as error:
            discard()
            why = words.flags.cannot_write(str(error.strerror))
            parser.exit(ExitCode.FAILED, f"{parser.prog}: error: {why}\n")
    parser.exit()


def say(line: str, program: str) -> None:
    """Print a line. If stdout accepts none, as on a full disk, stderr gets the reason, and the program continues."""
    try:
        print(line, flush=True)  # noqa: T201
    except OSError as error:
        discard()
        print(f"{program}: error: {words.flags.cannot_write(str(error.strerror))}", file=sys.stderr)  # noqa: T201


def discard() -> None:
    """Send what stdout has not written yet to /dev/null: Python would write it at the exit, and fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
