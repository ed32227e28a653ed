"""What one agent was asked to do."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.settings import RequestedSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """The command line, checked. Durations are seconds."""

    command: tuple[str, ...]
    """What each worker executes."""
    nproc: int
    """Workers on this node."""
    run_id: str
    node_id: str
    explicit_run_id: bool = False
    rerun: bool = False
    role: str = "default"
    node_rank: int | None = None
    local_addr: str | None = None
    """Where other nodes reach this one; None: the address from which the agent reaches the server."""
    settings: RequestedSettings = field(default_factory=RequestedSettings)
    shutdown_timeout_s: float = 30.0
    """From SIGTERM to SIGKILL, torchrun's default."""
    connect_timeout_s: float = 300.0
    """How long the first answer of the server may take: it may be started after the agents."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What the workers inherit."""
