"""Interface between the server's transports (HTTP, or the same process) and whoever answers: one server, or several."""

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from msgspec import Struct
from rdzv_protocol.messages import (
    Ack,
    AdmitRequest,
    JoinRequest,
    LeaderReply,
    LeaderRequest,
    LeaveRequest,
    PollRequest,
    Reply,
    ReportRequest,
    StopRequest,
)

from rdzv_server.core.run import Run

RunRequest = JoinRequest | PollRequest | ReportRequest | LeaveRequest | StopRequest | AdmitRequest
"""A request about one run, which the leader of that run answers."""
AnyRequest = RunRequest | LeaderRequest
Answer = Reply | Ack | LeaderReply


class Connection(Protocol):
    """One connection over which requests come; told apart by identity."""

    @property
    def server_addr(self) -> str:
        """The server's own address on this connection."""

    @property
    def is_closed(self) -> bool:
        """Whether nobody can be answered over it any more."""


class ShardView(Struct, frozen=True):
    """Leader of a shard, as one of the servers knows it; None while it knows of none."""

    shard: int
    leader: str | None
    leadership: int


class Service(Protocol):
    """Answers agents and operators, and shows what it knows."""

    def ask(self, request: AnyRequest, connection: Connection) -> Coroutine[Any, Any, Answer]:
        """The answer: a `Reply` to a join and a poll, a `LeaderReply` to a `LeaderRequest`, else an `Ack`.

        Raises the `ProtocolError` that refuses the request.
        """

    def lost(self, connection: Connection) -> None:
        """The connection has closed."""

    def runs(self) -> list[Run]: ...

    def now(self, run_id: str = "") -> float:
        """Seconds, by the clock that this run is measured with."""

    def close(self) -> None: ...

    @property
    def epoch(self) -> str: ...

    @property
    def started_at(self) -> float: ...

    @property
    def unhealthy_reason(self) -> str | None:
        """Why it is of no use to an agent at present; None as a rule."""

    @property
    def leads(self) -> bool:
        """Whether it decides: a server alone always does, of several one."""

    @property
    def leader(self) -> str | None:
        """HOST:PORT of the one that leads, of several servers, if it is known."""

    @property
    def leadership(self) -> int:
        """Number of the latest leadership that is known, of several servers. 0: a server alone."""

    @property
    def shards(self) -> Sequence[ShardView]:
        """Leaders of the shards that several servers share, one shard at least; none: a server alone."""
