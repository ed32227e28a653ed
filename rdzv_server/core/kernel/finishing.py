"""Rounds that are about to finish: some workers have exited 0 and others still run.

That all workers of a node have exited 0 is a fact. Polls report, as a sign, which workers of a node have exited while
others of the same node still run. Both together show which workers have finished, how long ago, and which still run.

The server does not kill the remaining workers: they may have much to save. If no other worker finishes for
`WARNED_AFTER_S` seconds, the run warns once; when another node finishes, that time starts again.
"""

from itertools import islice

from msgspec import Struct
from rdzv_protocol.messages import FinishedWorkers
from rdzv_protocol.text import printable
from rdzv_protocol.text import ranks as ranks_as_text

from rdzv_server.core import events
from rdzv_server.core.kernel.protocols import Machine
from rdzv_server.core.kernel.run import FinishedSign, Run, Stage
from rdzv_server.words import finishing as words

WARNED_AFTER_S = 300.0
"""Seconds after the last worker finished until a warning names the workers that still run."""
NAMED = 4
"""Most nodes that a sentence names."""


class Finishing(Struct, frozen=True):
    """Workers of the running round that have finished, those that still run, and when the last one finished."""

    at: float
    """Time at which the last worker finished."""
    finished: str
    still_running: str

    @property
    def sentence(self) -> str:
        """Sentence without a time, so that it changes only when something happens."""
        return words.finishing(self.finished, self.still_running)

    def ago(self, now: float) -> str:
        """Return the sentence with the minutes since the last worker finished."""
        return words.still_run(self.finished, round((now - self.at) / 60), self.still_running)


def has_begun(run: Run) -> bool:
    """Return whether a worker of the running round has finished while others still run."""
    return run.stage is Stage.RUNNING and bool(run.succeeded or run.finished)


def finished_at(run: Run) -> float | None:
    """Return the time at which the last worker of a finishing round finished; None if none has."""
    if not has_begun(run):
        return None
    times = [next(reversed(run.succeeded_at.values()))] if run.succeeded_at else []
    times += [next(reversed(run.finished.values())).at] if run.finished else []
    return max(times, default=None)


def view(run: Run) -> Finishing | None:
    """Return what is known of a finishing round; None if no worker has finished, or if none still runs."""
    at = finished_at(run)
    return None if at is None or not run.running else Finishing(at, _finished(run), _still_running(run))


def finished(run: Run) -> str:
    """Return the workers of the running round that have finished: their ranks, or the number of their nodes. Empty if
    none has.
    """
    return _finished(run) if has_begun(run) else ""


def _finished(run: Run) -> str:
    nodes = len(run.succeeded) + len(run.finished)
    if nodes > NAMED:
        return words.workers_of(nodes, len(run.seats))
    ranks = [rank for agent_id in run.succeeded if (seat := run.seat_of(agent_id)) for rank in seat.ranks]
    return ranks_as_text(sorted([*ranks, *(rank for sign in run.finished.values() for rank in sign.ranks)]))


def _still_running(run: Run) -> str:
    nodes = len(run.running)
    named = [_of_node(run, agent_id, agent.node_id) for agent_id, agent in islice(run.running.items(), NAMED)]
    return words.on_nodes(named, max(0, nodes - NAMED))


def _of_node(run: Run, agent_id: str, node_id: str) -> str:
    seat, sign = run.seats[agent_id], run.finished.get(agent_id)
    finished = set(sign.ranks) if sign else set()
    return words.on_node(ranks_as_text([rank for rank in seat.ranks if rank not in finished]), printable(node_id))


# Signs.


def is_news(run: Run, agent_id: str, report: FinishedWorkers) -> bool:
    """Return whether the agent reports workers that have finished since its last poll, in the running round."""
    seat, known = run.seat_of(agent_id), run.finished.get(agent_id)
    is_current = run.stage is Stage.RUNNING and report.round == run.round and agent_id in run.running
    if seat is None or not is_current or (known is not None and known.ranks == report.ranks):
        return False
    return 0 < len(report.ranks) < len(seat.ranks) and set(report.ranks) <= set(seat.ranks)


def note(run: Run, agent_id: str, report: FinishedWorkers, now: float) -> None:
    """Keep an agent's report of finished workers. The worker that finished last is the last entry.

    All nodes of a large run may report at the same time, so this does not sort the entries.
    """
    if not is_news(run, agent_id, report):
        return
    run.finished.pop(agent_id, None)
    latest = next(reversed(run.finished), None)
    run.finished[agent_id] = sign = FinishedSign(tuple(sorted(set(report.ranks))), now - report.ago_s)
    if latest is not None and run.finished[latest].at > sign.at:
        run.finished[latest] = run.finished.pop(latest)


# The warning.


def deadline(run: Run) -> float | None:
    """Return the time at which the warning is due; None if it has been given, or if no worker has finished."""
    if run.still_running or (at := finished_at(run)) is None or not run.running:
        return None
    return at + WARNED_AFTER_S


def due(run: Run, now: float) -> events.WorkersStillRun | None:
    """Return the warning as a fact once it is due, else None."""
    at = deadline(run)
    if at is None or now < at or (found := view(run)) is None:
        return None
    return events.WorkersStillRun(found.ago(now))


def warned(machine: Machine, fact: events.WorkersStillRun, now: float) -> None:
    machine.run.still_running = fact.reason
    machine.record_event("warning", fact.reason, now)
