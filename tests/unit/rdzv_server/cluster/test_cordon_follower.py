"""Facts by which the other shards follow the cordons of shard 0."""

from rdzv_server.cluster.cordon_follower import differences
from rdzv_server.core.events import EXCLUDER, Incarnation, NodeCordoned, NodeUncordoned
from rdzv_server.core.nodes.state import NodesState
from rdzv_server.words import nodes as words
from rdzv_server.words import operations
from tests.support.scenario import WALL_AT


def test_other_shards_also_end_an_exclusion_whose_cause_was_shared() -> None:
    decided, other = NodesState(), NodesState()
    decided.apply(NodeCordoned("no GPU", EXCLUDER, node_id="a", for_s=600.0, wall_at=WALL_AT), 0.0)
    (followed,) = differences(decided, other, WALL_AT)
    other.apply(followed, 0.0)
    decided.apply(NodeUncordoned(words.SHARED, node_id="a", wall_at=WALL_AT + 5.0), 5.0)
    again = NodesState()
    again.apply(decided.snapshot(Incarnation()), 5.0)
    for each in (decided, again):
        (over,) = differences(each, other, WALL_AT + 5.0)
        assert over == NodeUncordoned(node_id="a")
    other.apply(over, 5.0)
    assert not other.cordons


def test_an_exclusion_ends_with_the_deciding_shards_even_if_this_servers_clock_differs() -> None:
    decided, other = NodesState(), NodesState()
    decided.apply(NodeCordoned("no GPU", EXCLUDER, node_id="a", for_s=600.0, wall_at=WALL_AT), 0.0)
    other.apply(NodeCordoned("lost", EXCLUDER, node_id="own", for_s=600.0, wall_at=WALL_AT), 0.0)
    behind = WALL_AT - 300.0
    (followed,) = differences(decided, other, behind)
    other.apply(followed, 0.0)
    assert other.cordons["a"].until == 900.0
    decided.apply(NodeUncordoned(operations.TIME_OVER, node_id="a"), 600.0)
    again = NodesState()
    again.apply(other.snapshot(Incarnation()), 600.0)
    for each in (other, again):
        assert differences(decided, each, behind + 600.0) == [NodeUncordoned(node_id="a")], "not the shard's own"
