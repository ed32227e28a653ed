"""The final report of a failed run: torchrun's box, with the root cause first and what the run went through.

Every node shows the same one, so that any node's log tells the whole story. Lines come with a mark that says what they
are; how that looks is the console's business. Headings and fields are torchrun's where it has them, so that whoever
searches logs for them finds them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum

from rdzv_protocol.messages import Failure, Finish
from rdzv_protocol.text import printable

from node_agent.core.wording import restarts

WIDEST = 60
"""Of the rules; torch's."""
NOT_AVAILABLE = "<N/A>"


class Mark(Enum):
    """What a line is."""

    RULE = "rule"
    TITLE = "title"
    HEADING = "heading"
    ERROR = "error"
    HINT = "hint"
    TEXT = "text"


Line = tuple[Mark, str]
Clock = Callable[[float], str]
"""Writes seconds since 1970 as people read them here."""


def report(finish: Finish, name: str, clock: Clock, advice: Sequence[str] = ()) -> list[Line]:
    """The box about a run of `name`. `advice`: where to look further, one line each."""
    sections = [section for section in _sections(finish, clock, advice) if section]
    title = (Mark.TITLE, f"{name} FAILED")
    width = min(WIDEST, max(len(text) for section in [[title], *sections] for _, text in section))
    lines = [(Mark.RULE, "=" * width), title]
    for section in sections:
        lines += [(Mark.RULE, "-" * width), *section]
    return [(mark, printable(text)) for mark, text in [*lines, (Mark.RULE, "=" * width)]]


def _sections(finish: Finish, clock: Clock, advice: Sequence[str]) -> Iterator[list[Line]]:
    first, last, root = finish.first_failure, finish.failure, "Root Cause (first observed failure):"
    if not (first or last):
        yield [(Mark.ERROR, finish.reason)]
    if first:
        yield [(Mark.HEADING, root), *_block(0, first, finish.first_round, clock)]
    if last:
        heading = "Failure that ended the run:" if first else root
        yield [(Mark.HEADING, heading), *_block(int(first is not None), last, finish.round, clock, first)]
    yield [*_others(finish, clock)]
    yield [*_restarts(finish, clock)]
    yield [*_end(finish, advice)]


def _block(index: int, failure: Failure, round_: int, clock: Clock, above: Failure | None = None) -> Iterator[Line]:
    """One failed worker, in torch's fields and some of ours. What it shares with the one `above` is not told twice."""
    yield Mark.TEXT, f"[{index}]:"
    yield from _who(failure, clock)
    if round_:
        yield Mark.TEXT, f"  round     : {round_}"
    if failure.cause != f"exit code {failure.exit_code}":
        yield Mark.ERROR, f"  cause     : {failure.cause}"
    if failure.error:
        yield Mark.ERROR, f"  error     : {failure.error}"
    if failure.hint:
        yield Mark.HINT, f"  what to do: {failure.hint}"
    yield Mark.TEXT, f"  error_file: {failure.error_file or NOT_AVAILABLE}"
    if above and failure.traceback and failure.traceback == above.traceback:
        yield Mark.TEXT, "  traceback : the same as above"
    elif failure.traceback or not failure.stderr_tail:
        yield from _indented("traceback :", failure.traceback or (NOT_AVAILABLE,))
    else:
        yield from _indented("stderr    :", failure.stderr_tail)


def _who(failure: Failure, clock: Clock) -> Iterator[Line]:
    yield Mark.TEXT, f"  time      : {NOT_AVAILABLE if failure.failed_at is None else clock(failure.failed_at)}"
    yield Mark.TEXT, f"  host      : {failure.node_id}"
    yield Mark.TEXT, f"  rank      : {failure.rank} (local_rank: {failure.local_rank})"
    yield Mark.TEXT, f"  exitcode  : {failure.exit_code} (pid: {failure.pid})"


def _indented(label: str, lines: Iterable[str]) -> Iterator[Line]:
    """The lines of a text behind a label, as torch indents them."""
    for index, line in enumerate(lines):
        yield Mark.TEXT, f"  {label} {line}" if index == 0 else f"  {line}"


def _others(finish: Finish, clock: Clock) -> Iterator[Line]:
    if not finish.failure:
        return
    yield Mark.HEADING, "Failures:"
    if not finish.others:
        yield Mark.TEXT, "  <NO_OTHER_FAILURES>"
    for index, failure in enumerate(finish.others, start=2 if finish.first_failure else 1):
        yield Mark.TEXT, f"[{index}]:"
        yield from _who(failure, clock)
        yield Mark.TEXT, f"  cause     : {failure.error or failure.cause}{_remark(failure)}"
    if finish.more_failures:
        yield Mark.TEXT, f"  and {finish.more_failures} more"


def _remark(failure: Failure) -> str:
    return " (follows from another worker's end)" if failure.consequence else ""


def _restarts(finish: Finish, clock: Clock) -> Iterator[Line]:
    if not finish.restarts:
        return
    yield Mark.HEADING, f"Restarts: {restarts(finish)}"
    if finish.restart_total > len(finish.restarts):
        yield Mark.TEXT, f"  the last {len(finish.restarts)}:"
    for entry in finish.restarts:
        at = f"{clock(entry.at)}  " if entry.at is not None else ""
        yield Mark.TEXT, f"  {at}round {entry.round}, {'charged' if entry.charged else 'free'}: {entry.reason}"


def _end(finish: Finish, advice: Sequence[str]) -> Iterator[Line]:
    if finish.failure or finish.first_failure:
        yield Mark.TEXT, f"Ended: {finish.reason}"
    for line in advice:
        yield Mark.HINT, line
