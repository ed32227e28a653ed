"""Effects: instructions of the core to the shell, which carries them out in order: it records first, then acts."""

from msgspec import Struct
from rdzv_protocol.events import RunEvent

from rdzv_server.core.events import Fact, NumbersUsed, RunCreated, SnapshotPart
from rdzv_server.core.node_facts import CordonsKept, NodeBlamed


class Record(Struct, frozen=True):
    """Write a fact down; no later effect is carried out before that is done."""

    run_id: str
    attempt: int
    at: float
    fact: Fact | RunCreated | SnapshotPart | CordonsKept | NodeBlamed | NumbersUsed


class WakeAgents(Struct, frozen=True):
    """Answer the polls of these agents, which have a new directive."""

    run_id: str
    agent_ids: tuple[str, ...]


class Happened(Struct, frozen=True):
    """Write the event down together with the records before it, then tell the log and whoever observes the run."""

    event: RunEvent


class ForgetRun(Struct, frozen=True):
    """Drop an ended attempt's records and events. Its number is not used again, so nothing follows that is about it."""

    run_id: str
    attempt: int


class QueryClosed(Struct, frozen=True):
    """Answer an operator's question, named by its `token`, with the node's or a policy's; None: its time is over."""

    token: str
    node_id: str
    round: int
    answer: Struct | None


class Answered(Struct, frozen=True):
    """Answer an operator's action, with the sentence about what it has done, or had done before.

    `is_untold`: it has done something of which no event tells. `has_changed`: there was something to do.
    """

    sentence: str
    is_untold: bool
    has_changed: bool = True


Effect = Record | WakeAgents | Happened | ForgetRun | QueryClosed | Answered
