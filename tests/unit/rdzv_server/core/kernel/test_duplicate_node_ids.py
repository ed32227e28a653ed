"""Machines that join under one node id."""

from rdzv_server.core.kernel import duplicate_node_ids
from rdzv_server.words import duplicate_node_ids as words
from tests.support.scenario import Scenario

SHARED = words.shared("gpu", 2, "10.0.0.1, 10.0.0.2")


def two(*addresses: str) -> Scenario:
    run = Scenario("2:3", max_restarts=3, last_call_timeout_s=0.0)
    for name, addr in zip("ab", addresses, strict=True):
        run.join(name, node="gpu", addr=addr)
    return run


def test_every_namesake_gets_the_warning_and_the_run_gets_it_once() -> None:
    run = two("10.0.0.1", "10.0.0.2")
    assert [duplicate_node_ids.warning(run.run, name) for name in "ab"] == [SHARED, SHARED]
    assert run.reasons("warning") == [SHARED]
    run.fails("a")
    run.join("a", node="gpu", addr="10.0.0.1")
    run.join("b", node="gpu", addr="10.0.0.2")
    assert run.run.round == 2 and run.reasons("warning") == [SHARED]


def test_agents_of_one_machine_share_its_name() -> None:
    run = two("10.0.0.1", "10.0.0.1")
    assert duplicate_node_ids.warning(run.run, "a") == "" and run.reasons("warning") == []


def test_agents_without_a_duplicate_node_id_and_gone_agents_are_not_warned() -> None:
    run = two("10.0.0.1", "10.0.0.2")
    run.join("c")
    assert duplicate_node_ids.warning(run.run, "c") == ""
    assert duplicate_node_ids.warning(run.run, "unknown") == ""


def test_a_restarted_server_does_not_warn_again() -> None:
    run = two("10.0.0.1", "10.0.0.2")
    run.restarts()
    assert run.reasons("warning") == [SHARED]
