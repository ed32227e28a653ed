"""Effects: instructions of the core to the shell, which carries them out in order. It records first, then acts."""

from msgspec import Struct
from rdzv_protocol.events import RunEvent

from rdzv_server.core.events import Fact, NumbersUsed, RunCreated, SnapshotPart
from rdzv_server.core.journals import Key
from rdzv_server.core.node_facts import CordonsKept, NodeBlamed


class Record(Struct, frozen=True):
    """Write a fact to the store, before any later effect is carried out."""

    run_id: str
    attempt: int
    at: float
    fact: Fact | RunCreated | SnapshotPart | CordonsKept | NodeBlamed | NumbersUsed

    @property
    def key(self) -> Key:
        return self.run_id, self.attempt


class NotifyReplayed(Struct, frozen=True):
    """Tell observers of a fact about nodes that an earlier incarnation of the server recorded.

    So they can continue what was left undone.
    """

    fact: Fact


class WakeAgents(Struct, frozen=True):
    """Answer the polls of these agents, which have a new directive."""

    run_id: str
    agent_ids: tuple[str, ...]


class EmitEvent(Struct, frozen=True):
    """Write the event to the store together with the records before it, then log it and pass it to its observers."""

    event: RunEvent


class ForgetRun(Struct, frozen=True):
    """Drop an ended attempt's records and events.

    No later event can refer to it, since its number is not used again.
    """

    run_id: str
    attempt: int

    @property
    def key(self) -> Key:
        return self.run_id, self.attempt


class CloseQuery(Struct, frozen=True):
    """Answer an operator's query, named by `token`, with the answer of the node or policy, or None if it is late."""

    token: str
    node_id: str
    round: int
    answer: Struct | None


class AnswerOperator(Struct, frozen=True):
    """Answer an operator's action with a sentence about what it does, or what an earlier copy of the request did.

    `is_unreported`: whether the action did something that no event reports. `has_changed`: whether there was something
    to do.
    """

    sentence: str
    is_unreported: bool
    has_changed: bool = True


Effect = Record | NotifyReplayed | WakeAgents | EmitEvent | ForgetRun | CloseQuery | AnswerOperator
