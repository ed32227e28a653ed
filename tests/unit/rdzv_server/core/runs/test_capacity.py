"""Room on a server, and which runs make room for others."""

import pytest
from rdzv_protocol.errors import (
    ServerUnavailable,
)
from rdzv_protocol.messages import Start

from rdzv_server.core.kernel.run import END_DELIVERED_WITHIN_S
from rdzv_server.core.runs.registry import Registry
from rdzv_server.words import attempts as words
from tests.support.message_search import pattern
from tests.support.scenario import RETENTION_S, ManyRuns, settings_of


@pytest.fixture
def server():
    return ManyRuns()


def test_the_number_of_runs_is_limited_by_memory(server):
    server.registry = Registry(RETENTION_S, max_runs=2)
    server.join("a", "one")
    server.join("b", "two")
    with pytest.raises(ServerUnavailable, match=pattern(words.full_of_runs, most=2)):
        server.join("c", "three")
    assert [run_id for run_id, *_ in server.attempts()] == ["one", "two"]
    server.succeeds("a", "one")
    server.passes(RETENTION_S + 1)
    server.join("c", "three")


def test_the_number_of_agents_is_limited_by_memory(server):
    server.registry = Registry(RETENTION_S, max_agents=3)
    server.join("a", "one", settings=settings_of("2", **PATIENT))
    server.join("b", "one", settings=settings_of("2", **PATIENT))
    server.join("c", "two")
    for run_id, settings in (("one", settings_of("2", **PATIENT)), ("three", settings_of("1"))):
        before = server.attempts()
        with pytest.raises(ServerUnavailable, match=pattern(words.full_of_agents(3, 3))):
            server.join("d", run_id, settings=settings)
        assert server.attempts() == before
    server.succeeds("c", "two")
    server.passes(END_DELIVERED_WITHIN_S)
    server.join("d", "three")
    assert [run_id for run_id, *_ in server.attempts()] == ["one", "three"], "the run that has ended made room"


def test_a_run_can_replace_a_node_although_newcomers_fill_the_server(server):
    server.registry = Registry(RETENTION_S, max_agents=2)
    settings = settings_of("2", **PATIENT)
    server.join("a", "one", settings=settings)
    server.join("b", "one", settings=settings)
    server.leaves("b", "one")
    again = Registry(RETENTION_S, max_agents=2)
    for record in server.records:
        again.replay(record)
    for registry in (server.registry, again):
        server.registry = registry
        with pytest.raises(ServerUnavailable, match=pattern(words.full_of_agents(2, 2))):
            server.join("stranger", "two")
    server.join("c", "one", settings=settings)
    server.join("a", "one", settings=settings, after_round=1)
    assert isinstance(server.directive("c", "one"), Start)


PATIENT = {"lease_s": 10_000.0, "max_restarts": 3}


def test_a_full_server_first_forgets_runs_that_never_ran_and_then_the_earliest_ended(server):
    server.registry = Registry(RETENTION_S, max_runs=4)
    for name in ("first", "second"):
        server.join("a", name, settings=settings_of("1", lease_s=5))
        server.succeeds("a", name)
        server.passes(1)
    server.join("a", "never", settings=settings_of("2", join_timeout_s=1))
    server.passes(6)
    server.join("a", "live", settings=settings_of("2", join_timeout_s=1e6, lease_s=1e6))
    assert remembered(server) == {"first", "second", "never", "live"}
    for name, left in (("x", {"first", "second", "live"}), ("y", {"second", "live", "x"}), ("z", {"live", "x", "y"})):
        server.join("a", name, settings=settings_of("2", join_timeout_s=1e6, lease_s=1e6))
        assert remembered(server) == {*left, name}
    with pytest.raises(ServerUnavailable, match=pattern(words.full_of_runs, most=4)):
        server.join("a", "too many")
    server.passes(1)


def test_a_full_server_forgets_attempts_in_order_so_that_numbers_stay_unique(server):
    server.registry = Registry(RETENTION_S, max_runs=3)
    server.join("a", settings=settings_of("1", lease_s=5, max_restarts=0))
    server.fails("a")
    server.join("b", settings=settings_of("2", join_timeout_s=1))
    server.passes(6)
    for name in ("x", "y"):
        server.join("a", name, settings=settings_of("2", join_timeout_s=1e6, lease_s=1e6))
    assert [(run.run_id, run.attempt) for run in server.registry.runs()] == [("run", 2), ("x", 1), ("y", 1)]


def test_an_end_is_kept_until_its_agents_have_received_it(server):
    server.registry = Registry(RETENTION_S, max_runs=1)
    server.join("a", "ran", settings=settings_of("1", lease_s=5))
    server.succeeds("a", "ran")
    server.passes(4)
    with pytest.raises(ServerUnavailable):
        server.join("a", "next")
    server.passes(1)
    server.join("a", "next")
    assert remembered(server) == {"next"}


def test_a_run_may_take_the_room_of_its_own_last_attempt(server):
    server.registry = Registry(RETENTION_S, max_runs=1)
    server.join("a", "run", settings=settings_of("2", join_timeout_s=1))
    server.passes(1)
    server.join("b", "run", settings=settings_of("2"))
    assert [(run.run_id, run.attempt) for run in server.registry.runs()] == [("run", 2)]


def remembered(server) -> set[str]:
    return {run.run_id for run in server.registry.runs()}
