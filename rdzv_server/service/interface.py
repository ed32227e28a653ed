"""What HTTP needs of that which it stands in front of: a server alone, or one of several."""

from collections.abc import Hashable, Sequence
from typing import Protocol

from rdzv_protocol.classes import dataclass
from rdzv_protocol.messages import (
    Ack,
    AdmitRequest,
    JoinRequest,
    LeaveRequest,
    PollRequest,
    Reply,
    ReportRequest,
    StopRequest,
)

from rdzv_server.core.run import Run


@dataclass(frozen=True, slots=True)
class ShardView:
    """Who leads a shard, as one of the servers knows it. `leader`: None while it knows of none."""

    shard: int
    leader: str | None
    leadership: int


class Carried(Protocol):
    def lost(self, connection: Hashable) -> None:
        """The connection closed."""


class Service(Protocol):
    """What agents and operators ask for. Every request raises the `ProtocolError` that refuses it."""

    async def join(self, request: JoinRequest, server_addr: str, connection: Hashable) -> Reply: ...

    async def poll(self, request: PollRequest, connection: Hashable) -> Reply: ...

    async def report(self, request: ReportRequest) -> Ack: ...

    async def leave(self, request: LeaveRequest) -> Ack: ...

    async def stop(self, request: StopRequest) -> Ack: ...

    async def admit(self, request: AdmitRequest) -> Ack: ...

    def runs(self) -> list[Run]: ...

    def now(self, run_id: str = "") -> float:
        """Seconds, by the clock that this run is measured with."""

    def close(self) -> None: ...

    @property
    def connections(self) -> Carried: ...

    @property
    def epoch(self) -> str: ...

    @property
    def started_at(self) -> float: ...

    @property
    def trouble(self) -> str | None:
        """Why it is of no use to an agent at present; None as a rule."""

    @property
    def leads(self) -> bool:
        """Whether it decides: a server alone always does, of several one."""

    @property
    def leader(self) -> str | None:
        """Of several: HOST:PORT of the one that leads, if it is known."""

    @property
    def leadership(self) -> int:
        """Of several: the number of the latest leadership that is known. 0: a server alone."""

    @property
    def shards(self) -> Sequence[ShardView]:
        """Who leads each of the shards that several servers share; none: there are no shards."""
