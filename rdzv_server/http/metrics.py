"""Metrics of the server for Prometheus: its current state, and what it has counted.

A scrape visits each run once, however many nodes the run has, and lets other tasks run in between. Only a limited
number of runs have series of their own, the oldest active runs first. So a user that begins many runs does not take
series from others.
"""

import asyncio
import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial

import rdzv_protocol
from rdzv_protocol.exposition import Histogram, Kind, Metric, Sample, exposition, of_process
from rdzv_protocol.states import PHASES

from rdzv_server.core.events import EXCLUDER
from rdzv_server.core.kernel import restart_budget
from rdzv_server.core.kernel.run import AgentState, Cause, Run
from rdzv_server.core.policies import POLICIES
from rdzv_server.core.views import health, run_view
from rdzv_server.http.listener import Listener
from rdzv_server.service.interface import Service
from rdzv_server.service.measurements import FIRST
from rdzv_server.service.operator_scheduler import checkpoint
from rdzv_server.service.reading import read
from rdzv_server.threads import in_thread_or_here

FRESH_S = 0.5
"""Seconds within which all scrapes get the same answer, so that many of them cost little."""
LONGEST_LABEL = 64
"""Most characters of a run id as a label. Longer ids are cut, and end with a hash."""
LAG_EVERY_S = 0.5
LAG_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

METRICS: list[Metric] = []
"""All metrics, in the order of the answer."""
RESTART_CAUSES = tuple(cause for cause in Cause if cause is not Cause.FIRST)


def _declare(kind: Kind, name: str, text: str, *labels: str) -> Metric:
    metric = Metric(f"rdzv_{name}", kind, text, labels)
    METRICS.append(metric)
    return metric


_gauge, _counter, _histogram = partial(_declare, "gauge"), partial(_declare, "counter"), partial(_declare, "histogram")

BUILD_INFO = _gauge("server_build_info", "1, with the versions as labels.", "version", "python")
READY = _gauge("server_ready", "1 while the server can decide about runs; if it is 0, GET /readyz gives the reason.")
LEADER = _gauge("server_leader", "1 while this server leads at least one shard; a single server always leads.")
SHARDS = _gauge("shards", "Shards into which the servers divide the runs.")
SHARDS_LED = _gauge("shards_led", "Shards that this server leads.")
ELECTIONS_WON = _counter("elections_won_total", "Elections that this server has won.")
EVENT_ERRORS = _counter(
    "event_errors_total",
    "Errors inside the server over an event that it passed to a stream, the page, the metrics, a file or a webhook.",
)

CERTIFICATE = _gauge(
    "certificate_expiry_timestamp_seconds",
    "Time at which the certificate in the file of this flag expires; of several authorities, the last one.",
    "flag",
)

RUNS = _gauge("runs", "Runs that the server remembers, by phase; each attempt counts.", "phase")
RUNS_UNLISTED = _gauge("runs_unlisted", "Active runs without series of their own: see --metrics-per-run.")
LONGEST_FORMING = _gauge("longest_forming_seconds", "Longest time for which a run has been forming its round.")
NODES = _gauge("nodes", "Agents of the runs that have not ended, by state.", "state")
NODES_DISCONNECTED = _gauge("nodes_disconnected", "Agents of these runs that the server does not hear now.")
NODES_CORDONED = _gauge(
    "nodes_cordoned", "Nodes that do not take part in new rounds, by the server's or an operator's decision.", "by"
)

RUNS_BEGUN = _counter("runs_begun_total", "Attempts of runs that have begun.")
RUNS_ENDED = _counter("runs_ended_total", "Attempts of runs that have ended, by result.", "phase")
ROUNDS_STARTED = _counter("rounds_started_total", "Rounds that have started, by the cause that opened them.", "cause")
RESTARTS = _counter(
    "restarts_total", "Rounds after the first one, by cause, and whether they were charged.", "cause", "charged"
)
TIME_TO_FORM = _histogram("time_to_form_seconds", "Time from the beginning of a run to the start of its first round.")
TIME_TO_RECOVER = _histogram("time_to_recover_seconds", "Time from the cause of a restart to the next round.", "cause")
LOST = _counter(
    "lost_seconds_total", "Time for which runs waited for a round, counted at the end of each wait.", "cause"
)
WORKERS_FAILED = _counter("worker_failures_total", "Worker failures that nodes have reported.")
NODES_JOINED = _counter("nodes_joined_total", "Agents that have newly joined a run.")
NODES_LOST = _counter("nodes_lost_total", "Agents that were lost without notice.")
LEASES_EXPIRED = _counter("lease_expirations_total", "Lost agents whose lease had expired.")
NODES_LEFT = _counter("nodes_left_total", "Agents that announced that they leave.")

LONG_POLLS = _gauge("long_polls", "Requests of agents that the server holds until there is something new.")
CONNECTIONS = _gauge("http_connections", "Open connections; authenticated: the server has accepted a request.", "state")
CONNECTIONS_CLOSED = _counter(
    "http_connections_closed_total", "Connections that the server closed because a limit was reached.", "reason"
)
REQUESTS = _histogram(
    "http_request_duration_seconds",
    "Time to answer a request, without the time for which the server held it.",
    "path",
    "status",
)
STORE_WRITES = _histogram("store_write_duration_seconds", "Time to write a batch of records.")
STORE_BATCHES = _histogram("store_write_records", "Records in a batch.")
STORE_FAILURES = _counter("store_write_failures_total", "Writes that the store rejected; the server retries each.")
STORE_OUTAGES = _counter("store_outages_total", "Number of times that the store began to reject writes.")
LAG = _histogram("event_loop_lag_seconds", "Delay of a timer, sampled twice a second after the first scrape.")

RUN_INFO = _gauge("run_info", "1, with the phase of the run as a label.", "run_id", "attempt", "phase")
RUN_NODES = _gauge("run_nodes", "Agents of the run, by state.", "run_id", "state")
RUN_ENDED = _gauge("run_ended", "1 for ten minutes after the end of the run, by result.", "run_id", "phase")
RUN_ROUND = _gauge("run_round", "Round that is forming or running.", "run_id")
RUN_WORLD_SIZE = _gauge("run_world_size", "Workers of the running round; 0 while it forms.", "run_id")
RUN_FORMING = _gauge("run_forming_seconds", "Time for which the run has been forming its round, or 0.", "run_id")
RUN_RESTARTS = _counter(
    "run_restarts_total", "Restarts of the run; only worker_failure and hang are charged.", "run_id", "cause"
)
RUN_FINISHING = _gauge(
    "run_finishing_seconds", "Time since a worker last finished while others still run, or 0.", "run_id"
)
RUN_UNHEARD = _gauge(
    "run_unheard_seconds", "Time since the server last heard an agent of the running round, or 0.", "run_id"
)
RUN_HEALTH = _gauge(
    "run_health", "1 for each state of health that the run is in; only ok if nothing is wrong.", "run_id", "state"
)
RUN_RESTARTS_LEFT = _gauge("run_restarts_left", "Restarts that may still be charged before the run fails.", "run_id")


OF_KIND = {
    RUNS_BEGUN: "run_created",
    NODES_JOINED: "node_joined",
    NODES_LOST: "node_lost",
    NODES_LEFT: "node_left",
    WORKERS_FAILED: "workers_failed",
    **{metric: kind for policy in POLICIES for metric, kind in policy.counters.items()},
}
"""Metrics that count all events of a kind, by kind."""
METRICS += [metric for policy in POLICIES for metric in (*policy.counters, *policy.metrics)]


LATELY_S = 600.0
"""Seconds for which the end of a run is reported."""


class MetricsView:
    """Metrics of one server, for any number of readers. `most_runs`: most runs with series of their own."""

    def __init__(self, service: Service, most_runs: int) -> None:
        self.listener: Listener | None = None
        """Listener whose connections are counted; None if the server does not listen."""
        self.expiries: Callable[[], Mapping[str, datetime]] = dict
        """Function that returns when each certificate expires, by flag."""
        self._service = service
        self._most_runs = most_runs
        self._turn = asyncio.Lock()
        self._body = b""
        self._made_at = float("-inf")
        self._lag = Histogram(LAG_BOUNDS_S)
        self._timer: asyncio.TimerHandle | None = None

    async def body(self) -> bytes:
        """Return all metrics in Prometheus' text format, made within the last `FRESH_S`."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            if self._timer is None:
                self._expect_timer()
            if loop.time() >= self._made_at + FRESH_S:
                await checkpoint("metrics")  # no peer has this name, so metrics do not wait for streams
                self._body = await self._written(await self._samples())
                self._made_at = loop.time()
            return self._body

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()

    async def _written(self, samples: list[Sample]) -> bytes:
        """Write the samples in slices. A thread would hold the interpreter for 5 ms at a time."""
        process = await in_thread_or_here(of_process)
        pieces = []
        await checkpoint()
        for piece in exposition(METRICS, samples):
            pieces.append(piece)
            await checkpoint()
        return b"".join([*pieces, process])

    async def _samples(self) -> list[Sample]:
        samples = [*self._of_server(), *self._of_events(), *self._of_requests(), *self._of_store()]
        survey = Survey()
        for run in self._service.runs():
            now = self._service.now(run.run_id)
            is_listed = len(survey.ended if run.has_ended else survey.listed) < self._most_runs
            samples += read(run, partial(survey.samples_of, run, now, is_listed=is_listed), lambda _: [])
            await checkpoint()
        return samples + survey.totals()

    def _of_server(self) -> Iterator[Sample]:
        state, load, counted = self._service.state(), self._service.load(), self._service.measurements
        yield Sample(BUILD_INFO, 1, (rdzv_protocol.VERSION, ".".join(map(str, sys.version_info[:3]))))
        yield Sample(READY, state.unhealthy_reason is None)
        yield Sample(LEADER, state.leads)
        yield Sample(SHARDS, load.shards)
        yield Sample(SHARDS_LED, load.shards_led)
        yield Sample(ELECTIONS_WON, counted.elections_won)
        yield Sample(EVENT_ERRORS, counted.event_errors)
        for flag, ends_at in self.expiries().items():
            yield Sample(CERTIFICATE, ends_at.timestamp(), (flag,))
        excluded = sum(cordon.by == EXCLUDER for cordon in state.cordons)
        yield Sample(NODES_CORDONED, excluded, ("server",))
        yield Sample(NODES_CORDONED, len(state.cordons) - excluded, ("operator",))
        yield Sample(LONG_POLLS, load.long_polls)
        yield Sample(LAG, self._lag.read())
        if self.listener:
            for name, connections in zip(("authenticated", "unauthenticated"), self.listener.connections, strict=True):
                yield Sample(CONNECTIONS, connections, (name,))
            for reason, count in self.listener.closed_for.items():
                yield Sample(CONNECTIONS_CLOSED, count, (reason,))

    def _of_events(self) -> Iterator[Sample]:
        counted = self._service.measurements
        for metric, kind in OF_KIND.items():
            yield Sample(metric, counted.happened[kind])
        stopped = counted.happened["run_stopped"]  # each of these runs counts as failed, too
        ended = {"succeeded": counted.happened["run_succeeded"], "failed": counted.happened["run_failed"] - stopped}
        for end, times in (ended | {"stopped": stopped}).items():
            yield Sample(RUNS_ENDED, times, (end,))
        yield Sample(LEASES_EXPIRED, counted.leases_expired)
        for cause, histogram in counted.rounds.items():
            durations = histogram.read()
            yield Sample(ROUNDS_STARTED, sum(durations.counts), (cause,))
            yield Sample(LOST, counted.lost_s[cause], (cause,))
            if cause == FIRST:
                yield Sample(TIME_TO_FORM, durations)
            else:
                charged = str(Cause(cause).is_charged).lower()
                yield Sample(RESTARTS, sum(durations.counts), (cause, charged))
                yield Sample(TIME_TO_RECOVER, durations, (cause,))

    def _of_requests(self) -> Iterator[Sample]:
        for (path, status), histogram in self._service.measurements.requests.items():
            yield Sample(REQUESTS, histogram.read(), (path, str(status)))

    def _of_store(self) -> Iterator[Sample]:
        counted = self._service.measurements
        yield Sample(STORE_WRITES, counted.store_writes.read())
        yield Sample(STORE_BATCHES, counted.store_batches.read())
        yield Sample(STORE_FAILURES, counted.store_failures)
        yield Sample(STORE_OUTAGES, counted.store_outages)

    def _expect_timer(self) -> None:
        """Set a timer whose lateness measures how busy the event loop is."""
        loop = asyncio.get_running_loop()
        due_at = loop.time() + LAG_EVERY_S
        self._timer = loop.call_at(due_at, self._timer_came, due_at)

    def _timer_came(self, due_at: float) -> None:
        self._lag.observe(max(0.0, asyncio.get_running_loop().time() - due_at))
        self._expect_timer()


class Survey:
    """Numbers of runs and nodes, counted run by run."""

    def __init__(self) -> None:
        self.listed: set[str] = set()
        """Labels of the runs that have series of their own: two shortened ids may be equal."""
        self.ended: set[tuple[str, str]] = set()
        """Labels and results of the runs that have ended recently."""
        self._phases = dict.fromkeys(PHASES, 0)
        self._nodes = dict.fromkeys((*map(str, AgentState), "standby"), 0)
        self._disconnected = self._unlisted = 0
        self._longest_forming_s = 0.0

    def samples_of(self, run: Run, now: float, *, is_listed: bool) -> list[Sample]:
        """Count the run. Return its own series if it `is_listed`, else nothing."""
        self.look_at(run, now)
        return list(self.series_of(run, now) if not run.has_ended else self.ended_of(run, now)) if is_listed else []

    def look_at(self, run: Run, now: float) -> None:
        """Count the run. More nodes do not take longer."""
        self._phases[run_view.phase(run)] += 1
        if run.has_ended:
            return
        self._unlisted += 1
        for state, count in run_view.states(run):
            self._nodes[state] += count
        self._disconnected += run.leases.disconnected
        self._longest_forming_s = max(self._longest_forming_s, run_view.forming_s(run, now))

    def ended_of(self, run: Run, now: float) -> Iterator[Sample]:
        """Yield the series of a run that has ended recently, unless an earlier attempt has the same series."""
        label = label_of(run.run_id)
        result = "stopped" if run.is_stopped else run.stage.value
        if run.ended_at is not None and now < run.ended_at + LATELY_S and (label, result) not in self.ended:
            self.ended.add((label, result))
            yield Sample(RUN_ENDED, 1, (label, result))

    def series_of(self, run: Run, now: float) -> Iterator[Sample]:
        """Yield the series of the run itself, unless another run has the same label."""
        label = label_of(run.run_id)
        if label in self.listed:
            return
        self.listed.add(label)
        self._unlisted -= 1
        yield Sample(RUN_INFO, 1, (label, str(run.attempt), run_view.phase(run)))
        yield from (Sample(RUN_NODES, count, (label, state)) for state, count in run_view.states(run))
        yield Sample(RUN_ROUND, run.round, (label,))
        yield Sample(RUN_WORLD_SIZE, run_view.world_size(run), (label,))
        yield Sample(RUN_FORMING, run_view.forming_s(run, now), (label,))
        yield Sample(RUN_RESTARTS_LEFT, restart_budget.left(run, now), (label,))
        yield Sample(RUN_FINISHING, run_view.finishing_s(run, now) or 0.0, (label,))
        yield Sample(RUN_UNHEARD, run_view.unheard_s(run, now) or 0.0, (label,))
        for found in health.of(run, now):
            yield Sample(RUN_HEALTH, 1, (label, found.state))
        for cause in RESTART_CAUSES:
            yield Sample(RUN_RESTARTS, run.restarts.get(cause, 0), (label, cause.value))
        for policy in POLICIES:
            yield from policy.samples(run, now, label)

    def totals(self) -> list[Sample]:
        return [
            *(Sample(RUNS, count, (name,)) for name, count in self._phases.items()),
            *(Sample(NODES, count, (state,)) for state, count in self._nodes.items()),
            Sample(NODES_DISCONNECTED, self._disconnected),
            Sample(RUNS_UNLISTED, self._unlisted),
            Sample(LONGEST_FORMING, self._longest_forming_s),
        ]


def label_of(run_id: str) -> str:
    """Return the label's value for a run id: all of it, or its beginning and a hash."""
    if len(run_id) <= LONGEST_LABEL:
        return run_id
    digest = hashlib.sha256(run_id.encode()).hexdigest()[:16]
    return f"{run_id[: LONGEST_LABEL - len(digest) - 1]}~{digest}"
