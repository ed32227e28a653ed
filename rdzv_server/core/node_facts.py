"""Facts about nodes that no run records; beside them the journal has operators' actions, which runs record as well."""

from msgspec import Struct

from rdzv_server.core.events import Cordon, Life, NodeOperation, RunForgotten
from rdzv_server.core.node_history import Fault, Incident


class NodeBlamed(Struct, frozen=True, kw_only=True):
    """A node has cost a run something: see `node_history`. `wall_at` and `life`: as those of `RunCreated`."""

    node_id: str
    fault: Fault
    run_id: str
    reason: str
    wall_at: float | None = None
    life: Life = Life()


class CordonsKept(Struct, frozen=True):
    """Snapshot of all cordons, of the latest requests about nodes, and of what nodes were blamed for, which takes the
    place of the facts before it: see `nodes.state`."""

    cordons: tuple[Cordon, ...] = ()
    answers: dict[str, str] = {}
    life: Life = Life()
    history: dict[str, tuple[Incident, ...]] = {}
    lifted: dict[str, float] = {}


NodeFact = NodeOperation | RunForgotten | NodeBlamed | CordonsKept
