"""A program's own log lines, as text for people or as JSON for collectors, and their lowest level.

Server and agent use the same format: as text `2026-08-01 12:00:00 node-agent: round 1 ...` in local time, as JSON one
`LogLine` a line. Workers' output is not affected.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TypedDict

from msgspec import Struct, json

from rdzv_protocol.text import printable

LEVEL_VARIABLE = "LOGLEVEL"
"""Environment variable of torchrun for the lowest level. Its default here is INFO, not WARNING."""


class LogLine(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One line of `--log-format json`. Empty fields are left out."""

    time: str
    """Time in UTC, with milliseconds: `2026-08-01T12:00:00.123Z`."""
    level: str
    """Level of the line: DEBUG, INFO, WARNING, ERROR or CRITICAL."""
    program: str
    """Name of the program: `node-agent` or `rdzv-server`."""
    message: str
    """Text of the line; a report of several lines is one message."""
    run_id: str = ""
    node_id: str = ""
    attempt: int = 0
    round: int = 0
    """Number of the round; 0 if none has begun yet."""
    group_rank: int | None = None
    event: str = ""
    """Kind of event, for a line that reports one: `round_started`, `workers_failed`, ..."""
    traceback: str = ""


class Context(TypedDict, total=False):
    """Subject of a line: run, node, round and event; fields of `LogLine`."""

    run_id: str
    node_id: str
    attempt: int
    round: int
    group_rank: int | None
    event: str
    traceback: str


class LineFormat(Struct, frozen=True):
    """Format of one program's lines, and the lowest level that it writes, as a number of `logging`."""

    program: str
    is_json: bool = False
    lowest: int = logging.INFO

    def line(self, text: str, level: int, at: float, context: Context, *, shows_level: bool = False) -> str:
        """Return a formatted line, without its line break, for the wall-clock time `at`, in seconds since 1970."""
        name = logging.getLevelName(level)
        if self.is_json:
            now = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(at))}.{int(at % 1 * 1000):03d}Z"
            fields = LogLine(time=now, level=name, program=self.program, message=encodable(text), **context)
            return json.encode(fields).decode()
        now = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
        trace = f"\n{context['traceback']}" if context.get("traceback") else ""
        return f"{now}{' ' + name if shows_level else ''} {self.program}: {text}{trace}"


def complaint(program: str, message: str, words: Sequence[str], variable: str = "") -> str:
    """Return the line of a program that ends because of a mistake in its command line.

    The words, which could not be parsed, or the variable for `--log-format` decide its format.
    """
    return early(program, f"error: {message}", words, variable, logging.ERROR)


def early(program: str, text: str, words: Sequence[str], variable: str, level: int) -> str:
    """Return a line that a program writes before it has parsed its command line: see `complaint`."""
    spelled = [word.replace("_", "-") for word in words]
    is_json = "--log-format=json" in spelled or ("--log-format", "json") in pairwise(spelled) or variable == "json"
    if not is_json:
        return f"{program}: {printable(text)}"
    return LineFormat(program, is_json=True).line(text, level, time.time(), Context())


def encodable(text: str) -> str:
    """Replace characters that UTF-8 cannot encode with escapes."""
    return text.encode(errors="backslashreplace").decode()


def lowest_level(environment: Mapping[str, str]) -> int:
    """Return the level in `LOGLEVEL`, as a name in any case or a number; INFO if it is not set. Raises `ValueError`."""
    word = environment.get(LEVEL_VARIABLE, "").strip().upper()
    known = logging.getLevelNamesMapping()
    if not word or word in known:
        return known[word or "INFO"]
    try:
        return int(word)
    except ValueError:
        from rdzv_protocol import words

        raise ValueError(words.flags.bad_level(LEVEL_VARIABLE, word)) from None
