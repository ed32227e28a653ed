"""The server's metrics: what they show of runs and nodes, and that no run can make them large, wrong or slow."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from rdzv_protocol.actions import StopRequest
from rdzv_protocol.messages import Failure, LeaveRequest, PollRequest, ReportRequest
from rdzv_protocol.settings import RequestedSettings

from rdzv_server.http import metrics
from rdzv_server.http.metrics import LONGEST_LABEL, METRICS, MetricsView, label_of
from rdzv_server.server import RendezvousServer
from rdzv_server.service import operator_scheduler
from rdzv_server.service.interface import OperatorRequest
from tests.support.prometheus import Scrape, promtool
from tests.support.scenario import Connection, a_join


@pytest.fixture
async def server() -> AsyncIterator[RendezvousServer]:
    async with RendezvousServer() as server:
        yield server


async def join(
    server: RendezvousServer, run_id: str, *nodes: str, high: int = 1, after_round: int = 0, **settings: Any
) -> None:
    """Let the nodes join together. Nodes beyond the last seat get an answer after a second."""
    asked = RequestedSettings(min_nodes=high, max_nodes=high, **settings)
    again = {"run_id": run_id, "after_round": after_round, "settings": asked}
    joins = [a_join(f"{run_id}-{node}", node=node, **again) for node in nodes]
    await asyncio.gather(*(server.rendezvous.ask(each, Connection(each.agent_id)) for each in joins))


async def scrape(server: RendezvousServer, most_runs: int = 100) -> Scrape:
    return Scrape((await MetricsView(server.service, most_runs).body()).decode())


async def test_runs_and_nodes_are_counted_by_what_they_do(server):
    await join(server, "short", "a", "b", high=2)
    await join(server, "spare", "a", "b", high=1)
    said = await scrape(server)
    assert said("rdzv_runs", phase="running") == 2
    assert said("rdzv_runs", phase="failed") == 0
    assert [said("rdzv_nodes", state=state) for state in ("running", "standby", "waiting")] == [3, 1, 0]
    assert said("rdzv_run_nodes", run_id="spare", state="standby") == 1
    assert said("rdzv_run_world_size", run_id="short") == 2
    assert said("rdzv_run_time_seconds_total", run_id="short", phase="waiting") < 60
    assert set(said.all("rdzv_run_time_seconds_total", run_id="short", phase="restarting").values()) == {0.0}
    assert said("rdzv_server_ready") == said("rdzv_server_leader") == said("rdzv_shards_led") == 1


async def test_agents_that_the_server_does_not_hear_are_counted(server):
    await join(server, "run", "a", "b", high=2)
    (run,) = server.rendezvous.runs()
    counts = [(await scrape(server))("rdzv_nodes_disconnected")]
    run.leases.restart(["run-a", "run-b"], run.leases.renewed_at["run-a"])
    counts.append((await scrape(server))("rdzv_nodes_disconnected"))
    assert counts == [0, 2]


async def test_an_ended_run_counts_as_a_run_but_without_its_nodes(server):
    await join(server, "over", "a")
    await report(server, "over", "a", 1, failure())
    said = await scrape(server)
    assert said("rdzv_runs", phase="failed") == 1
    assert sum(said.all("rdzv_nodes").values()) == 0
    assert not said.all("rdzv_run_info")


def failure(node: str = "a") -> Failure:
    return Failure(node_id=node, rank=0, local_rank=0, pid=1, exit_code=1, cause="exit code 1")


async def report(server: RendezvousServer, run_id: str, node: str, round_: int, end: Failure | None = None) -> None:
    ended = ReportRequest(run_id=run_id, agent_id=f"{run_id}-{node}", round=round_, failure=end)
    await server.rendezvous.ask(ended, Connection(ended.agent_id))


async def test_events_of_a_run_are_counted_by_cause(server):
    await join(server, "run", "a", "b", high=2, max_restarts=1)
    await report(server, "run", "a", 1, failure())
    await join(server, "run", "a", "b", high=2, max_restarts=1, after_round=1)
    await server.rendezvous.ask(
        LeaveRequest(run_id="run", agent_id="run-b", reason="SIGTERM"), Connection("run-b")
    )  # fmt: skip
    third = join(server, "run", "a", high=2, max_restarts=1, after_round=2)
    await asyncio.gather(third, join(server, "run", "c", high=2, max_restarts=1))
    await report(server, "run", "a", 3)
    await report(server, "run", "c", 3)
    said = await scrape(server)
    assert said("rdzv_rounds_started_total", cause="first") == said("rdzv_time_to_form_seconds_count") == 1
    for cause, charged in (("worker_failure", "true"), ("node_left", "false")):
        assert said("rdzv_restarts_total", cause=cause, charged=charged) == 1
        assert said("rdzv_time_to_recover_seconds_count", cause=cause) == 1
        recovered_s = said("rdzv_time_to_recover_seconds_sum", cause=cause)
        assert said("rdzv_lost_seconds_total", cause=cause) == recovered_s > 0
    assert said("rdzv_restarts_total", cause="node_lost", charged="false") == 0
    names = ("runs_begun", "worker_failures", "nodes_joined", "nodes_left", "nodes_lost", "lease_expirations")
    assert [said(f"rdzv_{name}_total") for name in names] == [1, 1, 3, 1, 0, 0]
    assert [said("rdzv_runs_ended_total", phase=phase) for phase in ("succeeded", "failed")] == [1, 0]


async def test_a_run_that_an_operator_stops_has_not_failed(server):
    await join(server, "run", "a")
    await server.rendezvous.ask(OperatorRequest(StopRequest(run_id="run"), "admin"), Connection("operator"))
    said = await scrape(server)
    assert [said("rdzv_runs_ended_total", phase=phase) for phase in ("succeeded", "failed", "stopped")] == [0, 0, 1]
    assert said("rdzv_run_ended", run_id="run", phase="stopped") == 1
    assert not (await scrape(server, most_runs=0)).all("rdzv_run_ended")


async def test_an_expired_lease_is_distinguished_from_a_closed_connection(server):
    settings = RequestedSettings(
        min_nodes=2, max_nodes=2, lease_s=0.2, disconnect_grace_s=0.0, join_timeout_s=0.2
    )  # fmt: skip
    joins = [a_join(f"run-{node}", node=node, settings=settings) for node in "ab"]
    closing = Connection("run-a")
    await asyncio.gather(*map(server.rendezvous.ask, joins, [closing, Connection("run-b")]))
    with server.rendezvous.connections.parked(closing, (joins[0].run_id, joins[0].agent_id)):
        server.service.lost(closing)
    said = await scrape(server)
    while not said("rdzv_runs_ended_total", phase="failed"):
        said = await scrape(server)
    assert (said("rdzv_nodes_lost_total"), said("rdzv_lease_expirations_total")) == (2, 1)
    assert said("rdzv_lost_seconds_total", cause="node_lost") > 0  # although no round has started


async def test_the_longest_wait_for_a_round_is_one_metric_for_all_runs(server):
    forming = asyncio.create_task(join(server, "forming", "a", high=2, last_call_timeout_s=60.0))
    said = await scrape(server, most_runs=0)
    while not said("rdzv_long_polls"):
        said = await scrape(server, most_runs=0)
    assert said("rdzv_longest_forming_seconds") > 0
    assert said("rdzv_long_polls") == 1
    assert said("rdzv_runs_unlisted") == 1 and not said.all("rdzv_run_info")
    forming.cancel()


async def test_the_oldest_runs_have_series_of_their_own_even_if_others_begin_more(server):
    for number in range(12):
        await join(server, f"run-{number}", "a")
    said = await scrape(server, most_runs=10)
    assert {dict(key)["run_id"] for key in said.all("rdzv_run_info")} == {f"run-{number}" for number in range(10)}
    assert said("rdzv_runs_unlisted") == 2


HOSTILE = ['a"} 1\\n', "\\", '"', "{}", "💥" * 200, "x" * 256, "x" * 255 + "y", label_of("x" * 256), " ", "# HELP x"]


async def test_no_run_id_breaks_the_format_or_takes_anothers_name(server):
    for run_id in HOSTILE:
        await join(server, run_id, "a")
    said = await scrape(server)
    labels = [dict(key)["run_id"] for key in said.all("rdzv_run_info")]
    assert len(set(labels)) == len(labels) == len(HOSTILE) - 1  # two hostile names become the same when cut
    assert max(map(len, labels)) <= LONGEST_LABEL
    assert set(HOSTILE[:4]) <= set(labels)
    assert said("rdzv_runs_unlisted") == 1


class Untold(dict[str, Any]):
    """A dict that allows its length and single entries to be read, but not iteration."""

    def __iter__(self) -> Any:
        raise AssertionError("looked through")

    keys = values = items = __iter__


async def test_a_scrape_does_not_visit_the_nodes_of_runs(server):
    await join(server, "run", "a", "b", high=2)
    (run,) = server.service.runs()
    run.agents, run.node_ids = Untold(run.agents), Untold(run.node_ids)
    run.by_state = {state: Untold(agents) for state, agents in run.by_state.items()}
    assert (await scrape(server))("rdzv_run_nodes", run_id="run", state="running") == 2


async def test_scraping_many_runs_yields_to_other_requests(server, monkeypatch):
    monkeypatch.setattr(operator_scheduler, "SLICE_S", 0.0)
    for number in range(20):
        await join(server, f"run-{number}", "a")
    samples, turns = asyncio.create_task(MetricsView(server.service, 100)._samples()), 0
    while not samples.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 20


async def test_a_scrape_takes_turns_with_the_streams_of_its_own_peer(server, monkeypatch):
    """A scrape takes a slice for each run. If each slice waited for 50 streams, the scraper would time out."""
    monkeypatch.setattr(operator_scheduler, "SLICE_S", 0.0)
    for number in range(5):
        await join(server, f"run-{number}", "a")
    slices = 0

    async def stream() -> None:
        nonlocal slices
        while True:
            await operator_scheduler.checkpoint("peer")
            slices += 1

    async def scrape_beside_streams() -> None:
        await operator_scheduler.checkpoint("peer")
        await scrape(server)

    streams = [asyncio.create_task(stream()) for _ in range(50)]
    await scrape_beside_streams()
    for each in streams:
        each.cancel()
    assert slices < 50 * 5


async def test_promtool_finds_no_fault_with_any_metric(server):
    await join(server, "run", "a")
    server.service.measurements.answered("/v1/agent/join", 200, 0.001)
    server.service.measurements.written([1], 0.001)
    said = await scrape(server)
    checked = promtool("check", "metrics", text=said.text)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    names = {f"{family.name}_total" if family.type == "counter" else family.name for family in said.families}
    assert {metric.name for metric in METRICS} <= names and "process_resident_memory_bytes" in names


async def test_many_scrapes_are_one_and_a_later_one_is_another(server, monkeypatch):
    view = MetricsView(server.service, 100)
    first = await asyncio.gather(*(view.body() for _ in range(50)))
    assert all(each is first[0] for each in first)
    monkeypatch.setattr(metrics, "FRESH_S", 0.0)
    assert await view.body() is not first[0]
    view.close()


async def test_a_held_poll_is_not_a_slow_request(server):
    await join(server, "run", "a", lease_s=0.4)
    connection, held = Connection("run-a"), []
    object.__setattr__(connection, "held", held.append)
    began_at = time.monotonic()
    await server.rendezvous.ask(PollRequest(run_id="run", agent_id="run-a", revision=10), connection)
    assert held and 0 < held[0] <= time.monotonic() - began_at


async def test_the_event_loops_lag_is_sampled_while_there_are_scrapes(server, monkeypatch):
    monkeypatch.setattr(metrics, "LAG_EVERY_S", 0.001)
    monkeypatch.setattr(metrics, "FRESH_S", 0.0)
    view = MetricsView(server.service, 100)
    said = Scrape((await view.body()).decode())
    while not said("rdzv_event_loop_lag_seconds_count"):
        said = Scrape((await view.body()).decode())
    view.close()


def test_a_server_without_scrapes_does_not_load_prometheus_client():
    program = "import sys, rdzv_server.cli, rdzv_server.http.routes; print('prometheus_client' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "False\n"
