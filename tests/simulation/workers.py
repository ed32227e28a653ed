"""The worker group of one round on one node, modelled: it trains until it finishes, fails or is stopped."""

from collections.abc import Callable
from math import inf
from random import Random

from rdzv_protocol.messages import Assignment, Blame, Failure

from node_agent.kernel.core.events import Event, WorkerFailed, WorkersStopped, WorkersSucceeded
from node_agent.kernel.failures.diagnose import exit_status
from simulation.network import Host

KILL_TAKES_S = 0.05


class Workers:
    """A worker group. `feed` is called once when it ends, unless stopped before, and once when it has stopped."""

    def __init__(
        self, host: Host, rng: Random, assignment: Assignment, attempt: int, feed: Callable[[Event], None]
    ) -> None:
        self.assignment, self.attempt = assignment, attempt
        self.started_at = host.now
        self.hung: int | None = None
        """Rank of the worker that hangs, for which all others wait."""
        self.hung_since: float | None = None
        """Time since which these workers do not make progress, because one worker of any node hangs."""
        self.resumed_at = -inf
        """Time at which these workers last made progress again."""
        self.live = assignment.local_world_size
        """Processes that still run, including those that are stopping."""
        self._host, self._rng, self._feed = host, rng, feed
        self._is_settled = False
        self._stops = 0

    @property
    def round(self) -> int:
        return self.assignment.round

    @property
    def are_training(self) -> bool:
        return not self._is_settled

    def finish(self, *, interrupted: bool = False) -> None:
        """Every worker exits 0. `interrupted`: because they were told that the round ends."""
        assert self.are_training
        self._is_settled, self.live = True, 0
        self._host.later(0.0, lambda: self._feed(WorkersSucceeded(self.round, interrupted)))

    def fail(self, exit_code: int, *, is_consequence: bool = False, blame: Blame = "unknown") -> Failure:
        """One worker fails, as its agent will report. The rest of the group waits for it forever."""
        assert self.are_training
        self._is_settled = True
        self.live -= 1
        local_rank = self._rng.randrange(self.assignment.local_world_size)
        failure = Failure(
            node_id=self._host.name,
            rank=self.assignment.first_rank + local_rank,
            local_rank=local_rank,
            pid=self._rng.randrange(1_000, 9_999),
            exit_code=exit_code,
            cause=exit_status(exit_code).cause,
            consequence=is_consequence,
            blame=blame,
        )
        self._host.later(0.0, lambda: self._feed(WorkerFailed(self.round, failure)))
        return failure

    def stop(self, *, kill: bool) -> None:
        self._is_settled = True
        self._stops += 1
        this, takes_s = self._stops, self._rng.uniform(*self._host.stop_takes_s)
        if kill or self.live == 0:
            takes_s = KILL_TAKES_S if self.live else 0.0
        self._host.later(takes_s, lambda: self._stopped(this))

    def die(self) -> None:
        """End all workers with their agent. None outlives it."""
        self._is_settled, self.live = True, 0

    def _stopped(self, this: int) -> None:
        if this == self._stops:
            self.live = 0
            self._feed(WorkersStopped(self.round))
