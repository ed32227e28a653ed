"""Effects: instructions of the core to the shell, to be followed in order. It records first, then acts."""

from msgspec import Struct
from rdzv_protocol.events import RunEvent
from rdzv_protocol.queries import QueryAnswer

from rdzv_server.core.events import CordonsKept, Fact, NodeBlamed, RunCreated, SnapshotPart
from rdzv_server.core.stack_summary import StackSummary


class Record(Struct, frozen=True):
    """Write the fact down; act on nothing that follows until it is."""

    run_id: str
    attempt: int
    at: float
    fact: Fact | RunCreated | SnapshotPart | CordonsKept | NodeBlamed


class WakeAgents(Struct, frozen=True):
    """These agents have a new directive: answer their polls."""

    run_id: str
    agent_ids: tuple[str, ...]


class Happened(Struct, frozen=True):
    """Write the event down together with the records before it, then tell the log and whoever observes the run."""

    event: RunEvent


class ForgetRun(Struct, frozen=True):
    """The attempt ended `retention_s` ago: drop its records."""

    run_id: str
    attempt: int


class QueryClosed(Struct, frozen=True):
    """An operator's question, named by its `token`, is answered for good by the node, or by a summary of what all nodes
    answered; None: its time is over."""

    token: str
    node_id: str
    round: int
    answer: QueryAnswer | StackSummary | None


Effect = Record | WakeAgents | Happened | ForgetRun | QueryClosed
