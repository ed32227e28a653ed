"""Ids of agents that have left: how many the server remembers, and which it forgets first."""

import pytest
from rdzv_protocol.errors import AgentFenced

from rdzv_server.core.events import RunForgotten, RunStopped
from rdzv_server.core.kernel.run import Run
from rdzv_server.core.runs.registry import Registry
from tests.support.scenario import RETENTION_S, ManyRuns, settings_of

MOST = 20
WAITING = settings_of("2")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> ManyRuns:
    monkeypatch.setattr("rdzv_server.core.runs.capacity.MOST_DEPARTED", MOST)
    server = ManyRuns()
    server.registry = Registry(RETENTION_S, max_agents=MOST)
    return server


def come_and_go(server: ManyRuns, run_id: str, times: int) -> None:
    server.join("stays", run_id, settings=WAITING)
    for number in range(times):
        name = f"{run_id} {number}"
        server.join(name, run_id, settings=WAITING)
        server.leaves(name, run_id)


def run_of(server: ManyRuns, run_id: str) -> Run:
    return server.registry.attempts_of(run_id)[-1]


def remembered(server: ManyRuns) -> dict[str, list[str]]:
    """Return the ids of each run, the earliest departures first."""
    runs = server.registry.runs()
    assert server.registry._capacity.departed == sum(len(run.departed_ids) for run in runs) <= MOST
    return {run.run_id: [*run.departed_ids] for run in runs}


def test_the_ids_of_all_runs_together_are_bounded_and_the_run_that_ended_first_forgets_its_own_first(
    server: ManyRuns,
) -> None:
    for run_id in ("one", "two"):
        come_and_go(server, run_id, 6)
        server.handle(run_id, RunStopped("enough", "admin"))
        server.passes(1.0)
    come_and_go(server, "three", 8)
    assert [len(ids) for ids in remembered(server).values()] == [6, 6, 8]
    come_and_go(server, "four", 1)
    left = remembered(server)
    assert [len(ids) for ids in left.values()] == [3, 6, 8, 1]
    assert left["one"] == ["one 3", "one 4", "one 5"], "the latest are remembered longest"
    come_and_go(server, "five", 6)
    assert {run_id: len(ids) for run_id, ids in remembered(server).items() if run_id in ("one", "three")} == {
        "one": 0, "three": 8,
    }  # fmt: skip


def test_if_no_run_has_ended_the_run_with_the_most_ids_forgets_at_most_half(server: ManyRuns) -> None:
    come_and_go(server, "small", 2)
    come_and_go(server, "large", 40)
    left = remembered(server)
    assert len(left["small"]) == 2 and left["large"][-1] == "large 39"


def test_a_forgotten_agent_is_refused_as_unknown(server: ManyRuns) -> None:
    come_and_go(server, "one", 40)
    with pytest.raises(AgentFenced):
        server.leaves("one 0", "one")
    with pytest.raises(AgentFenced):
        server.join("one 0", "one", settings=WAITING, after_round=1)
    with pytest.raises(AgentFenced):
        server.join("one 39", "one", settings=WAITING)


def test_a_restarted_server_does_not_remember_more(server: ManyRuns) -> None:
    for run_id in ("one", "two"):
        come_and_go(server, run_id, 15)
    again = Registry(RETENTION_S, max_agents=MOST)
    for record in server.records:
        again.replay(record)
    assert again._capacity.departed <= MOST
    assert again.attempts_of("two")[-1].departed_ids.keys() == run_of(server, "two").departed_ids.keys()


def test_a_run_that_is_forgotten_gives_its_room_back(server: ManyRuns) -> None:
    come_and_go(server, "one", 10)
    server.handle("one", RunStopped("enough", "admin"))
    server.handle("one", RunForgotten("enough", "admin", run_id="one"))
    server.passes(RETENTION_S)
    assert server.registry.runs() == [] and server.registry._capacity.departed == 0
