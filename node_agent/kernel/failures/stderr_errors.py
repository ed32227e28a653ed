"""The error in what a process wrote last: the end of a Python traceback, or of what Python and C++ say in its place."""

import re
from collections.abc import Sequence

from msgspec import Struct

_RANK = re.compile(r"\[rank\d+\]: ?")
"""Mark at the beginning of the lines of an uncaught exception, by torch."""
_HEADER = re.compile(r"(?:  \+ Exception Group )?Traceback \(most recent call last\):$")
_FRAME = re.compile(r'\s+(?:\| +)?File ".*", line \d+')
_GROUP_MARGIN = re.compile(r"  [|+] ?")
_SYNTAX = re.compile(r"(?:SyntaxError|IndentationError|TabError): ")
_FATAL = re.compile(r"Fatal Python error: ")
_CXX = re.compile(r"terminate called after throwing an instance of '(.+)'")
_CXX_WHAT = re.compile(r"\s+what\(\):\s+(.*)")


class LastWords(Struct, frozen=True):
    """Error and traceback that a process wrote last; both empty where there is no error to be seen."""

    error: str = ""
    """The exception, as Python says it: "ValueError: boom"."""
    traceback: tuple[str, ...] = ()
    """Lines of the traceback: from its first one, or the first that is left, to the last that belongs to it."""
    is_uncaught: bool = False
    """Whether the exception has ended the script: torch marks the lines of one that nothing caught."""


def last_words(lines: Sequence[str]) -> LastWords:
    """The last error in these lines: of chained exceptions the last, which is the one that ended the process."""
    plain = [_RANK.sub("", line, count=1) if _RANK.match(line) else line for line in lines]
    for look in (_fatal, _traceback, _cxx):
        if found := look(plain, lines):
            return found
    return LastWords()


def _traceback(plain: Sequence[str], lines: Sequence[str]) -> LastWords | None:
    """A traceback, also one whose beginning is lost, or the frame alone with which a syntax error comes."""
    frame = _last(plain, _FRAME)
    end = next((at for at in range(frame + 1, len(plain)) if _ends_frames(plain[at])), None) if frame >= 0 else None
    if end is None:
        return None
    error = _GROUP_MARGIN.sub("", plain[end], count=1).strip()
    header = _last(plain[:frame], _HEADER)
    if header < 0 and any(not line[:1].isspace() for line in plain[:frame]):
        if not _SYNTAX.match(error):
            return None  # a frame, and lines that are none before it: somebody prints stacks
        header = frame
    last = len(lines)  # a message may have any lines, so those that come after it are taken along...
    if _RANK.match(lines[end]):  # ... but where torch marks them, the next one without a mark is no part of it
        last = next((at for at in range(end + 1, last) if not _RANK.match(lines[at])), last)
    return LastWords(error, tuple(plain[max(header, 0) : last]), bool(_RANK.match(lines[end])))


def _ends_frames(line: str) -> bool:
    """Whether the exception itself stands here: flush left, or at the margin of an exception group."""
    inner = _GROUP_MARGIN.sub("", line, count=1) if _GROUP_MARGIN.match(line) else line
    return bool(inner.strip()) and not inner[0].isspace()


def _fatal(plain: Sequence[str], lines: Sequence[str]) -> LastWords | None:
    """Error as Python's fault handler writes it, which torch's `@record` switches on."""
    at = _last(plain, _FATAL)
    return LastWords(plain[at].strip(), tuple(plain[at:])) if at >= 0 else None


def _cxx(plain: Sequence[str], lines: Sequence[str]) -> LastWords | None:
    at = _last(plain, _CXX)
    if at < 0:
        return None
    kind = _CXX.match(plain[at])
    what = _CXX_WHAT.match(plain[at + 1]) if at + 1 < len(plain) else None
    assert kind
    return LastWords(f"{kind[1]}: {what[1]}" if what else kind[1], tuple(plain[at:]))


def _last(lines: Sequence[str], pattern: re.Pattern[str]) -> int:
    """Position of the pattern's last match; -1 for none."""
    return next((at for at in range(len(lines) - 1, -1, -1) if pattern.match(lines[at])), -1)
