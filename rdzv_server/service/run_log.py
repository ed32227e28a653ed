"""Log of what happens in runs, with a limit for each run: a run that restarts without a pause must not fill a disk."""

import logging
from collections.abc import Mapping

from rdzv_protocol.events import EventKind, RunEvent
from rdzv_protocol.log_lines import Context

from rdzv_server.token_buckets import Rate, TokenBuckets
from rdzv_server.words import service as words

log = logging.getLogger("rdzv_server")

LEVELS: Mapping[EventKind, int] = {"run_failed": logging.ERROR, "warning": logging.WARNING}
"""Log levels of events that are more than information."""
UNLOGGED: frozenset[EventKind] = frozenset({"run_created", "node_joined"})
"""Events that are not logged: there are many, and the start of the round says the same."""
ENDS: frozenset[EventKind] = frozenset({"run_succeeded", "run_failed", "run_stopped"})
"""Events with a limit of their own: the end of a run is logged after any number of restarts."""
LINES = Rate(1, 20_000)
"""Limit of lines about a run: a run that loses 10,000 nodes at once is logged in full."""


class RunLog:
    """Log lines of one server about runs."""

    def __init__(self) -> None:
        self._lines, self._ends = TokenBuckets(LINES), TokenBuckets(LINES)
        self._left_out: dict[str, int] = {}
        """Number of lines that were left out since the last line, by run id."""

    def note(self, event: RunEvent, now: float) -> None:
        """Log an event, unless the log has too many of its run, or leaves out events of this level."""
        level = LEVELS.get(event.kind, logging.INFO)
        if event.kind in UNLOGGED or not log.isEnabledFor(level):
            return
        if not self.take(event.run_id, now, is_end=event.kind in ENDS):
            return
        about = Context(run_id=event.run_id, attempt=event.attempt, round=event.round, event=event.kind)
        about["node_id"], about["group_rank"] = event.node_id or "", event.group_rank
        text = words.happened(event.run_id, event.attempt, event.round, event.sentence)
        log.log(level, "%s", text, extra={"about": about})

    def take(self, run_id: str, now: float, *, is_end: bool = False) -> bool:
        """Count another line about the run. Return whether to log it; if so, log first how many lines were left out."""
        if not (self._ends if is_end else self._lines).take(run_id, now):
            self._left_out[run_id] = self._left_out.get(run_id, 0) + 1
            return False
        self._tell_left_out(run_id)
        return True

    def forget(self, run_id: str) -> None:
        """Log how many lines were left out about a run that the server forgets: no later line says so."""
        self._tell_left_out(run_id, has_events=False)

    def close(self) -> None:
        """Log how many lines were left out about each run: the server stops, or another server leads the runs."""
        for run_id in list(self._left_out):
            self._tell_left_out(run_id)

    def _tell_left_out(self, run_id: str, *, has_events: bool = True) -> None:
        if left_out := self._left_out.pop(run_id, 0):
            sentence = words.lines_left_out(left_out, LINES.per_s, has_events=has_events)
            log.warning("%s", words.of_run(run_id, sentence))
