"""Limits of the evidence that is kept: for one failure, and for the failures of all attempts together.

The limits of one failure are no lower than an agent's own, so they cut only what other programs report. If all failures
exceed their total, the attempt that ended first drops its evidence first. If none has ended, the attempt that keeps
most drops its evidence. The attempt still keeps what a final report shows of the failures that it is blamed on, and a
summary of a few others. Only people read evidence, no rule does, so a drop is not a fact. After a restart the server
reads all evidence again, and drops as much.
"""

from collections.abc import Iterable
from itertools import chain
from sys import getsizeof

from msgspec.structs import replace
from rdzv_protocol.messages import Failure
from rdzv_protocol.text import clip, last_lines

from rdzv_server.core.kernel import final_report
from rdzv_server.core.kernel.run import FailureRecord, Run

LINES, LINES_BYTES = 40, 8_192
"""Most lines and bytes of a failure's traceback, and of the last lines that its worker wrote."""
TEXT_BYTES = 1_024
"""Most bytes of each other text of a failure."""
MOST_BYTES = 128 << 20
"""Most memory for the failures of all attempts, beside `LEAST_BYTES` for each."""
LEAST_BYTES = 64 << 10
"""Bytes of an attempt's failures below which it does not drop evidence. After a drop, an attempt takes less."""
SUMMARIES = 8
"""Number of latest failures that an attempt keeps, at least as summaries, when it drops its evidence."""
ROOM = 10
"""Part of the total that is dropped at once, as a divisor: a tenth, since finding the oldest takes time."""
_TEXTS, _LINES = ("cause", "error", "hint", "error_file", "rule"), ("traceback", "stderr_tail")


def bounded(failure: Failure) -> Failure:
    """Clip a failure that an agent has reported."""
    texts = {name: clip(getattr(failure, name), TEXT_BYTES) for name in _TEXTS}
    lines = {name: last_lines(getattr(failure, name), LINES, LINES_BYTES) for name in _LINES}
    return replace(failure, **texts, **lines)


def size_of(failure: Failure) -> int:
    """Return the memory that the texts of a failure take, in bytes."""
    lines = chain.from_iterable(getattr(failure, name) for name in _LINES)
    return sum(map(getsizeof, chain((getattr(failure, name) for name in _TEXTS), lines)))


def size(run: Run) -> int:
    """Return the memory that the texts of the run's failures take, in bytes."""
    kept = {id(record): record.failure for record in (*run.failures, *_roots(run))}
    return sum(map(size_of, kept.values()))


def exchange(run: Run, old: FailureRecord, new: FailureRecord) -> None:
    """Put the new record of a failure in place of the old one. No restart has been charged for it yet."""
    run.failures = [new if each == old else each for each in run.failures]
    run.first_failure = new if run.first_failure == old else run.first_failure
    run.first_of_round = new if run.first_of_round == old else run.first_of_round


def drop_evidence(run: Run) -> None:
    """Keep what a final report shows of the failures that the run is blamed on, and summaries of the latest others."""
    roots, latest = _roots(run), run.failures[-SUMMARIES:]
    kept = [record for record in run.failures if record in latest or record in roots]
    run.failures = [_details(each) if each in roots else _summary(each) for each in kept]
    run.first_failure = run.first_failure and _details(run.first_failure)
    run.first_charged = run.first_charged and _details(run.first_charged)
    run.first_of_round = run.first_of_round and _details(run.first_of_round)
    run.end_failure = run.end_failure and final_report.details(run.end_failure)


def to_drop(keeping: Iterable[tuple[Run, int]], kept: int, most: int) -> list[Run]:
    """Return the runs that drop their evidence if all failures take `kept` bytes and may take `most`.

    `keeping`: runs that have evidence to drop, each with the bytes that its failures take.
    """

    def order(each: tuple[Run, int]) -> tuple[bool, float, str]:
        run, own = each
        return run.ended_at is None, -own if run.ended_at is None else run.ended_at, run.run_id

    dropped: list[Run] = []
    for run, own in sorted(keeping, key=order):
        if kept <= most - most // ROOM:
            break
        kept -= own
        dropped.append(run)
    return dropped


def _roots(run: Run) -> list[FailureRecord]:
    return [record for record in (run.first_failure, run.first_charged, run.first_of_round) if record]


def _details(record: FailureRecord) -> FailureRecord:
    return replace(record, failure=final_report.details(record.failure))


def _summary(record: FailureRecord) -> FailureRecord:
    return replace(record, failure=final_report.summary(record.failure))
