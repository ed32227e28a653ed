"""Costs of a node for a run: its failures and losses, and the time of the rounds that they ended."""

from rdzv_server.core.node_history import Incident
from rdzv_server.core.views import node_costs
from rdzv_server.core.views.node_costs import NodeCost
from tests.support.stories import check

BLAME = Incident(at=1.0, fault="failed", run_id="mine-1", reason="it said this", wall_at=9.0)


def cost(*story: str, node: str) -> NodeCost | None:
    run = check(story)
    return node_costs.of_run(run.run, node, run.now)


def test_a_failure_costs_the_work_since_the_checkpoint_and_the_time_until_the_next_round() -> None:
    worked = "60s; tell a highest_step=55 step_s=1 telling_s=60 checkpoint_step=40 checkpoint_s=5"
    found = cost("2 max_restarts=3", f"join a b; {worked}; fail a; 7s; rejoin", node="a")
    assert found is not None
    assert (found.failures, found.losses, found.rounds, found.takes_part) == (1, 0, 1, True)
    assert (found.lost_s, found.formed_s) == (15.0, 7.0)
    other = cost("2 max_restarts=3", f"join a b; {worked}; fail a; 7s; rejoin", node="b")
    assert other is not None
    assert (other.failures, other.rounds, other.lost_s, other.formed_s) == (0, 0, 0.0, 0.0)


def test_a_node_that_is_gone_stays_known_to_its_run() -> None:
    found = cost("2:3", "join a b c; lose c; 3s; rejoin", node="c")
    assert found is not None
    assert (found.failures, found.losses, found.rounds, found.takes_part) == (0, 1, 1, False)
    assert found.formed_s > 0
    for gone in ("leave c", "drain c; leave c"):
        left = cost("2:3", f"join a b c; {gone}; rejoin", node="c")
        assert left is not None
        assert (left.failures, left.losses, left.rounds, left.takes_part) == (0, 0, 0, False), "it is not blamed"
    assert cost("1", "join a", node="z") is None


def test_a_failure_that_follows_from_another_nodes_does_not_blame_this_node() -> None:
    found = cost("2 max_restarts=3", "join a b; fail a; fail b; rejoin", node="b")
    assert found is not None
    assert found.rounds == 0


def test_a_client_without_access_to_the_run_reads_only_the_kind_of_the_blame() -> None:
    shown = node_costs.incident(BLAME, None)
    assert (shown.at, shown.fault, shown.run_id, shown.reason) == (9.0, "failed", "mine-1", "it said this")
    assert node_costs.incident(BLAME, lambda run_id: run_id == "mine-1") == shown
    hidden = node_costs.incident(BLAME, lambda run_id: run_id != "mine-1")
    assert (hidden.at, hidden.fault, hidden.run_id, hidden.reason) == (9.0, "failed", "", "")
    excluded = Incident(at=1.0, fault="excluded", run_id="", reason="blamed 3 times", wall_at=9.0)
    assert node_costs.incident(excluded, lambda run_id: True).reason == "", "its reason may quote any run"
