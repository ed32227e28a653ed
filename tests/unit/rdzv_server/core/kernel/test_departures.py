"""Agents that are lost or leave, and what follows for the round. `test_restart_budget` has the costs of the restart."""

from rdzv_server.words import losses
from tests.support.stories import check, stories


@stories({
    "the others re-form at once when a node leaves": (
        "1:2", "join a b; leave b", {"stop": "a", "reason a": losses.left("b", "SIGTERM")}, "join a", {"ranks": "a"},
    ),
    "leaving twice is leaving once": ("1:2", "join a b; leave b; ignored leave b", {"stop": "a"}),
    "an unknown agent cannot leave": ("1", "join a; refused leave unknown", {"refused": "AgentFenced"}),
    "a standby that leaves disturbs no node": ("2", "join a b spare; leave spare", {"start": "a b"}),
    "a node that has finished may be lost": (
        "2", "join a b; succeed a; lose a", {"start": "b"}, "succeed b", {"stage": "succeeded"},
    ),
    "a node that has finished may leave": (
        "2", "join a b; succeed a; leave a", {"start": "b"}, "succeed b", {"stage": "succeeded"},
    ),
    "a node whose workers were told to end, and exited 0, has not finished": (
        "1:2", "join a b; succeed a; retract a", {"stop": "b", "stage": "forming"},
        "join b; succeed b", {"stage": "succeeded", "ledger": "node_left"},
    ),
    "also if all others have finished in the meantime": (
        "3", "join a b c; succeed a b; retract b", {"stop": "a c"},
    ),
    "a node whose workers run has no success to take back": ("2", "join a b; retract a", {"stop": "b"}),
    "nor does it take one back once the run has ended": ("1", "join a; succeed a; retract a", {"stage": "succeeded"}),
    "a loss restarts those that had finished": ("1:2", "join a b; succeed a; lose b", {"stop": "a"}),
})  # fmt: skip
def test_a_departure(story):
    check(story)
