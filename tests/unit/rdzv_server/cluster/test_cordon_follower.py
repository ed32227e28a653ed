"""Facts by which the other shards follow the cordons of shard 0."""

from rdzv_server.cluster.cordon_follower import differences
from rdzv_server.core.events import EXCLUDER, Incarnation, NodeCordoned, NodeUncordoned
from rdzv_server.core.nodes.state import NodesState
from rdzv_server.words import nodes as words
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
