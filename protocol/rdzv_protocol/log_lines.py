"""A program's own log lines, as text for people or as JSON for collectors, and the least weight of those it writes.

Server and agent write the same: as text `2026-08-01 12:00:00 node-agent: round 1 ...` in local time, as JSON one
`LogLine` a line. Neither has anything to do with what workers write.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TypedDict

from msgspec import Struct, json

LEVEL_VARIABLE = "LOGLEVEL"
"""torchrun's variable; without it torchrun writes what is a warning or worse, these programs all that they have."""


class LogLine(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One line of `--log-format json`. What is empty is left out."""

    time: str
    """UTC, with milliseconds: `2026-08-01T12:00:00.123Z`."""
    level: str
    """DEBUG, INFO, WARNING, ERROR or CRITICAL."""
    program: str
    """`node-agent` or `rdzv-server`."""
    message: str
    """The sentence that the text has; a report of several lines holds them all."""
    run_id: str = ""
    node_id: str = ""
    attempt: int = 0
    round: int = 0
    """0: there was none yet."""
    group_rank: int | None = None
    event: str = ""
    """Kind of what happened, for a line that is about something that did: `round_started`, `workers_failed`, ..."""
    traceback: str = ""


class Context(TypedDict, total=False):
    """What a line is about."""

    run_id: str
    node_id: str
    attempt: int
    round: int
    group_rank: int | None
    event: str
    traceback: str


class LineFormat(Struct, frozen=True):
    """Form of one program's lines, and the least weight of those it writes, as a number of `logging`."""

    program: str
    is_json: bool = False
    lowest: int = logging.INFO

    def line(self, text: str, level: int, at: float, context: Context, *, shows_level: bool = False) -> str:
        """The line, without its end, of something said `at` this wall-clock time."""
        name = logging.getLevelName(level)
        if self.is_json:
            now = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(at))}.{int(at % 1 * 1000):03d}Z"
            fields = LogLine(time=now, level=name, program=self.program, message=encodable(text), **context)
            return json.encode(fields).decode()
        now = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
        trace = f"\n{context['traceback']}" if context.get("traceback") else ""
        return f"{now}{' ' + name if shows_level else ''} {self.program}: {text}{trace}"


def complaint(program: str, message: str, words: Sequence[str], variable: str = "") -> str:
    """Line of a program that ends because of its command line, in the form that these words, or a variable's value, ask
    for: they may be wrong otherwise."""
    spelled = [word.replace("_", "-") for word in words]
    is_json = "--log-format=json" in spelled or ("--log-format", "json") in pairwise(spelled) or variable == "json"
    text = f"error: {message}"
    if not is_json:
        return f"{program}: {text}"
    return LineFormat(program, is_json=True).line(text, logging.ERROR, time.time(), Context())


def encodable(text: str) -> str:
    """The text with escapes in the place of what UTF-8 cannot hold."""
    return text.encode(errors="backslashreplace").decode()


def lowest_level(environment: Mapping[str, str]) -> int:
    """The level that `LOGLEVEL` names, in capitals or not, or as a number; INFO without it. Raises `ValueError`."""
    word = environment.get(LEVEL_VARIABLE, "").strip().upper()
    known = logging.getLevelNamesMapping()
    if not word or word in known:
        return known[word or "INFO"]
    try:
        return int(word)
    except ValueError:
        raise ValueError(
            f"{LEVEL_VARIABLE}: DEBUG, INFO, WARNING, ERROR or CRITICAL, not {word!r:.60}; INFO is used"
        ) from None
