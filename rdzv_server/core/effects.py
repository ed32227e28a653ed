"""What the shell must do for the core, in this order: record first, then act."""

from rdzv_protocol.classes import dataclass

from rdzv_server.core.events import Fact, RunFounded
from rdzv_server.core.snapshot import Kept


@dataclass(frozen=True, slots=True)
class Record:
    """Write the fact down; act on nothing that follows until it is."""

    run_id: str
    attempt: int
    at: float
    fact: Fact | RunFounded | Kept


@dataclass(frozen=True, slots=True)
class WakeAgents:
    """These agents have a new directive: answer their polls."""

    run_id: str
    agent_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell the log; `reason` is the sentence that status and agents show too."""

    run_id: str
    round: int
    reason: str


@dataclass(frozen=True, slots=True)
class ForgetRun:
    """The attempt ended `retention_s` ago: drop its records."""

    run_id: str
    attempt: int


Effect = Record | WakeAgents | Announce | ForgetRun
