"""The final report of a failed run: torchrun's box, extended by the history of the run.

Every node shows the same report, so each node's log has the whole story. Headings, fields and their order are
torchrun's where it has them, so that people find them in logs as before. No line repeats what another line says.
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from signal import Signals

from rdzv_protocol.messages import FAILURE_CAUSES, Failure, Finish
from rdzv_protocol.text import printable

from node_agent import words
from node_agent.kernel.config import AgentConfig
from node_agent.kernel.core.command import Command
from node_agent.kernel.output.console import ERR, Console

WIDEST = 60
"""Greatest width of the rules, as in torch."""
NOT_AVAILABLE = "<N/A>"
NO_TRACEBACK = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
"""Torch's text for a worker that left neither an error file nor a signal."""


class Mark(Enum):
    """Kind of a line. Its value is one of the terminal's own colours, which suit dark and light backgrounds."""

    RULE = "2"
    TITLE = "1;31"
    HEADING = "1"
    ERROR = "31"
    HINT = "36"
    TEXT = ""


Line = tuple[Mark, str]


def show(finish: Finish, config: AgentConfig, logs: str, console: Console) -> None:
    """Show the box on stderr, in one piece. `logs`: the folder of this node's log files."""
    advice = [words.failures.logs_of(config.join.node_id, logs)] if logs else []
    lines = report(finish, name_of(config.command), advice)
    text = "\n".join(text for _, text in lines)
    console.show(text, paint(lines, is_coloured=wants_colour(config.environment, ERR)), "failure_report")


def paint(lines: Sequence[Line], *, is_coloured: bool) -> bytes:
    """Return the lines as bytes, with colours for a terminal."""
    texts = (f"\x1b[{mark.value}m{text}\x1b[0m" if is_coloured and mark.value else text for mark, text in lines)
    return "".join(f"{text}\n" for text in texts).encode(errors="backslashreplace")


def wants_colour(environment: Mapping[str, str], descriptor: int) -> bool:
    """Return whether the descriptor is a terminal and the user has not disabled colour (https://no-color.org)."""
    return not environment.get("NO_COLOR") and environment.get("TERM", "dumb") != "dumb" and os.isatty(descriptor)


def name_of(command: Command) -> str:
    """Return the title of a command: the script or the module, not its interpreter."""
    interpreter, *rest = command.program or ("",)
    names = [part for part in rest if not part.startswith("-")]
    return next(iter(names["-c" in rest :]), interpreter)  # the word after -c is code


def local_time(at: float | None) -> str:
    """Return the time as torchrun writes it: 2026-08-01_12:00:00."""
    return NOT_AVAILABLE if at is None else time.strftime("%Y-%m-%d_%H:%M:%S", time.localtime(at))


def signal_name(exit_code: int) -> str:
    """Return the name of the signal, such as `SIGKILL`; `<N/A>` if there was none."""
    try:
        return Signals(-exit_code).name
    except ValueError:
        return NOT_AVAILABLE


def end_in_torchs_words(exit_code: int, pid: int) -> str:
    """Return torch's text for a worker that left no traceback."""
    return f"Signal {-exit_code} ({signal_name(exit_code)}) received by PID {pid}" if exit_code < 0 else NO_TRACEBACK


def report(
    finish: Finish,
    name: str,
    advice: Sequence[str] = (),
    *,
    rules: tuple[str, str] = ("=", "-"),
    all_in_full: bool = False,
) -> list[Line]:
    """Return the box about a run of `name`. `advice`: further places to look, one line each. `rules`: characters of its
    rules.

    `all_in_full`: whether the other failures have all of the root's fields, as in torch, instead of one line each.
    """
    sections = [section for section in _sections(finish, advice, all_in_full) if section]
    title = (Mark.TITLE, f"{name} FAILED")
    width = min(WIDEST, max(len(text) for section in [[title], *sections] for _, text in section))
    border, rule = ((Mark.RULE, character * width) for character in rules)
    lines = [border, title]
    for section in sections:
        lines += [rule, *section]
    return [(mark, printable(text)) for mark, text in [*lines, border]]


def _sections(finish: Finish, advice: Sequence[str], all_in_full: bool) -> Iterator[list[Line]]:
    root = finish.first_failure or finish.failure
    root_round = finish.first_round if finish.first_failure else finish.round
    if root is None:
        yield [(Mark.ERROR, finish.reason)]
    else:
        yield [(Mark.HEADING, "Failures:"), *_others(finish, root, all_in_full)]
        yield [(Mark.HEADING, "Root Cause (first observed failure):"), *_block(0, root, root_round)]
    yield [*_restarts(finish, root_round)]
    ended = [(Mark.TEXT, words.failures.ended(why))] if root and (why := _why_ended(finish, root)) else []
    yield [*ended, *((Mark.HINT, line) for line in advice)]


def _others(finish: Finish, root: Failure, all_in_full: bool) -> Iterator[Line]:
    others = list(finish.others)
    if finish.first_failure and finish.failure:
        yield from _block(1, finish.failure, finish.round, root)
    elif not others:
        yield Mark.TEXT, "  <NO_OTHER_FAILURES>"
    for index, failure in enumerate(others, start=2 if finish.first_failure else 1):
        yield from _block(index, failure, 0) if all_in_full else _summary(index, failure)
    if finish.more_failures:
        yield Mark.TEXT, f"  {words.failures.more_failures(finish.more_failures)}"


def _summary(index: int, failure: Failure) -> Iterator[Line]:
    yield Mark.TEXT, f"[{index}]:"
    yield from _who(failure)
    note = f" ({words.failures.FOLLOWS})" if failure.consequence else ""
    yield Mark.TEXT, f"  cause     : {failure.error or failure.cause}{note}"


def _block(index: int, failure: Failure, round_: int, root: Failure | None = None) -> Iterator[Line]:
    """Yield the lines of one failed worker, in torch's fields and some of ours. `root`: first failure, shown below."""
    yield Mark.TEXT, f"[{index}]:"
    yield from _who(failure)
    if round_:
        yield Mark.TEXT, f"  round     : {words.failures.round_that_ended_the_run(round_) if root else round_}"
    is_like_root = root is not None and _what(failure) == _what(root)
    if not is_like_root:
        yield from _why(failure)
    yield Mark.TEXT, f"  error_file: {failure.error_file or NOT_AVAILABLE}"
    if is_like_root:
        yield Mark.TEXT, f"  traceback : {words.failures.LIKE_ROOT}"
    elif failure.traceback:
        yield from _indented("traceback :", failure.traceback, failure.error)
    else:
        missing = failure.error or end_in_torchs_words(failure.exit_code, failure.pid)
        yield Mark.ERROR if failure.error else Mark.TEXT, f"  traceback : {missing}"
        yield from _indented("output    :" if failure.both_streams else "stderr    :", failure.stderr_tail)


def _what(failure: Failure) -> tuple[object, ...]:
    return failure.cause, failure.error, failure.traceback, failure.stderr_tail, failure.hint


def _who(failure: Failure) -> Iterator[Line]:
    name = signal_name(failure.exit_code)
    signal = f"  ({name})" if name != NOT_AVAILABLE else ""
    yield Mark.TEXT, f"  time      : {local_time(failure.failed_at)}"
    if failure.singled_out:
        yield Mark.TEXT, f"  host      : {failure.node_id}"
        yield Mark.TEXT, f"  rank      : {failure.rank} (local_rank: {failure.local_rank})"
    else:
        yield Mark.TEXT, f"  rank      : {NOT_AVAILABLE} ({words.failures.NO_SINGLE_RANK})"
    yield Mark.TEXT, f"  exitcode  : {failure.exit_code} (pid: {failure.pid}){signal}"


def _why(failure: Failure) -> Iterator[Line]:
    if failure.cause != words.failures.exit_code(failure.exit_code):
        yield Mark.ERROR, f"  cause     : {failure.cause}"
    elif not failure.error:
        yield Mark.ERROR, f"  cause     : {words.failures.no_exception(failure.cause)}"
    if failure.error and failure.traceback and failure.error not in map(str.strip, failure.traceback):
        yield Mark.ERROR, f"  error     : {failure.error}"
    if failure.hint:
        yield Mark.HINT, f"  what to do: {failure.hint}"


def _indented(label: str, lines: Iterable[str], error: str = "") -> Iterator[Line]:
    """Yield the lines of a text after a label, indented as in torch."""
    for index, line in enumerate(lines):
        mark = Mark.ERROR if error and line.strip() == error else Mark.TEXT
        yield mark, f"  {label} {line}" if index == 0 else f"  {line}"


def _restarts(finish: Finish, root_round: int) -> Iterator[Line]:
    """Yield the lines of the restarts. A failure that the box already shows is not repeated."""
    if not finish.restarts:
        return
    total = max(finish.restart_total, len(finish.restarts))  # the last one may not have completed
    yield Mark.HEADING, f"Restarts: {words.progress.restarts_charged(total, finish.charged_restarts)}"
    if total > len(finish.restarts):
        yield Mark.TEXT, f"  {words.failures.last_restarts(len(finish.restarts))}"
    seen: dict[str, str] = {}
    for entry in finish.restarts:
        is_roots = entry.cause in FAILURE_CAUSES and entry.round == root_round + 1
        reason = "[0]" if is_roots else seen.get(entry.reason, entry.reason)
        like_this = words.failures.LIKE_ROOT if is_roots else words.failures.like_reason_before(entry.round)
        seen.setdefault(entry.reason, like_this)
        at = f"{local_time(entry.at)}  " if entry.at is not None else ""
        yield Mark.TEXT, f"  {at}round {entry.round}, {'charged' if entry.charged else 'free'}: {reason}"


def _why_ended(finish: Finish, root: Failure) -> str:
    """Return the run's reason without the failure, which the box already shows; empty if nothing is left."""
    for failure in (finish.failure, root):
        if failure and finish.reason.startswith(failure.sentence):
            return finish.reason.removeprefix(failure.sentence).removeprefix("; ")
    return finish.reason
