"""Which runs are shown, and in which order."""

from typing import Any

import pytest
from msgspec import json

from rdzv_server.core.events import RunStopped
from rdzv_server.core.views import status_view
from rdzvctl import words
from rdzvctl.answers import Fields, decoded
from rdzvctl.views import state
from tests.support.scenario import RUN_ID, ManyRuns, running
from tests.support.stories import check
from tests.unit.rdzvctl.views.reported import told


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (state.Wanted("t*"), ["train", "tiny"]),
        (state.Wanted(phase="failed"), ["broken"]),
        (state.Wanted(health="slow"), ["train"]),
        (state.Wanted(health="trouble"), ["train"]),
        (state.Wanted(health="ok"), ["tiny"]),
        (state.Wanted(node="[bc]"), ["train"]),
        (state.Wanted("t*", phase="failed"), []),
    ],
)
def test_runs_are_chosen_by_id_phase_health_and_node(wanted: state.Wanted, found: list[str]) -> None:
    train, tiny, broken = (told(running(str(len(names)), *names)) for names in ("abc", "a", "a"))
    train |= {"run_id": "train", "health": {"state": "slow", "others": ["below_size"], "is_trouble": True}}
    broken |= {"run_id": "broken", "phase": "failed", "health": None, "nodes": []}
    tiny |= {"run_id": "tiny"}
    assert [run["run_id"] for run in (train, tiny, broken) if wanted.covers(decoded(json.encode(run)))] == found


def test_a_screen_shows_troubled_and_failed_runs_first() -> None:
    well, hung, failed, stopped = (told(running("1", "a")) for _ in range(4))
    hung |= {"run_id": "hung", "health": Fields(state="hung", is_trouble=True, others=[])}
    failed |= {"run_id": "failed", "phase": "failed", "health": None}
    stopped |= {"run_id": "stopped", "phase": "failed", "health": None, "is_stopped": True}
    assert [run["run_id"] for run in state.first_to_see([well, stopped, failed, hung])] == [
        "hung", "failed", "run", "stopped",
    ]  # fmt: skip


def test_a_run_in_which_nothing_happens_stays_the_same() -> None:
    run = check(("3", "join a; 5s"))
    before = state.without_times(told(run))
    run.passes(3)
    assert state.without_times(told(run)) == before
    run.join("b")
    assert state.without_times(told(run)) != before


def test_servers_of_a_cluster_are_named_by_the_addresses_that_other_machines_reach() -> None:
    shards = [{"shard": number, "leader": leader} for number, leader in enumerate(("gpu1:29400", None))]
    servers = [Fields(shards=shards, peers=["gpu2:29400", "gpu1:29400", "localhost:29400"])]
    assert state.advertised(servers) == ["gpu1:29400", "gpu2:29400"]
    assert state.advertised([Fields(shards=[], peers=[])]) == [], "a single server"


@pytest.mark.parametrize(
    ("given", "servers", "endpoint"),
    [
        ("head:29400", [], "head:29400"),
        ("localhost:29400", [{"agents_endpoint": "head:29400"}], "head:29400"),
        ("localhost:29400", [{"agents_endpoint": "127.0.0.1:29400"}], "localhost:29400"),
        ("localhost:29400", [{"agents_endpoint": None}], words.servers.SOME_ENDPOINT),
        ("localhost:29400", [{}], words.servers.SOME_ENDPOINT),
        ("127.0.0.1:7", [{"agents_endpoint": "head:29400", "peers": ["gpu1:29400"]}], "gpu1:29400"),
    ],
    ids=["not local", "remote agents", "local agents", "no agents yet", "older server", "cluster"],
)
def test_an_agent_on_any_machine_can_use_the_endpoint_of_a_step(
    given: str, servers: list[dict[str, Any]], endpoint: str
) -> None:
    reported = [Fields({"shards": [], "peers": []} | server) for server in servers]
    assert state.endpoint_of_agents([given], reported) == endpoint


def test_troubled_runs_are_counted_by_their_health() -> None:
    well, silent = told(check(("1", "join a"))), told(check(("2 lease_s=10", "join a b; 42s")))
    assert state.phases([well, silent, silent]) == words.runs.by_phase({"silent": 2, "running": 1})


def test_stopped_runs_are_not_counted_as_failed() -> None:
    stopped, failed = told(check(("1", "join a; stop"))), told(check(("1", "join a; fail a")))
    assert state.phases([stopped, failed, stopped]) == words.runs.by_phase({"stopped": 2, "failed": 1})


def test_the_attempt_after_a_stop_does_not_count_as_stopped() -> None:
    runs = ManyRuns()
    runs.join("a")
    runs.handle(RUN_ID, RunStopped("", "admin"))
    runs.join("a2", rerun=True)
    shown = [decoded(json.encode(status_view.view(run, runs.now))) for run in runs.registry.runs()]
    assert state.phases(shown) == words.runs.by_phase({"stopped": 1, "running": 1})
