"""Facts about nodes that no run records.

The nodes' journal also holds operators' actions, which runs record as well.
"""

from msgspec import Struct, field

from rdzv_server.core.events import Cordon, Incarnation, NodeOperation, RunForgotten
from rdzv_server.core.node_history import Incident


class NodeBlamed(Struct, frozen=True, kw_only=True):
    """A node has cost a run something: see `node_history`. `RunCreated` explains `wall_at` and `incarnation`."""

    node_id: str
    fault: str
    run_id: str
    reason: str
    wall_at: float | None = None
    condition: str = ""
    incarnation: Incarnation = field(default=Incarnation(), name="life")


class CordonsKept(Struct, frozen=True):
    """Snapshot of all cordons, of the latest requests about nodes, and of the blame on nodes.

    It replaces all earlier facts: see `nodes.state`.
    """

    cordons: tuple[Cordon, ...] = ()
    answers: dict[str, str] = {}
    incarnation: Incarnation = field(default=Incarnation(), name="life")
    history: dict[str, tuple[Incident, ...]] = {}
    lifted: dict[str, float] = {}
    idle: tuple[str, ...] = ()


NodeFact = NodeOperation | RunForgotten | NodeBlamed | CordonsKept
