"""Interface between the server's transports (HTTP, or the same process) and the service: one server, or several."""

from __future__ import annotations  # `Annotated` takes time at every start of `node-agent --standalone`

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeAlias, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import replace
from rdzv_protocol.constraints import Id, Revision
from rdzv_protocol.messages import Ack, LeaderReply, LeaderRequest, Reply, Request

from rdzv_server.core.kernel.run import Run
from rdzv_server.core.node_history import Incident
from rdzv_server.core.nodes.cordons import CordonStatus, known_to
from rdzv_server.service.driver import Driver
from rdzv_server.service.measurements import Measurements
from rdzv_server.service.observers import Observer

if TYPE_CHECKING:
    from rdzv_protocol.actions import (
        ActionRequest,
        AgentDescription,
        DescribeRequest,
        Done,
        LogsRequest,
        StacksRequest,
        WorkerLog,
        WorkerStacks,
    )

Answered = TypeVar("Answered")
Shows = Callable[[str], bool]
"""Function that returns whether the caller may know of the run with this id."""


class OperatorRequest(Struct, frozen=True):
    """Request of an operator, for an action or for data that agents have.

    `by`: the token's role, if any, and the address. `idle`: why the action changes nothing, if several shards had to be
    asked for that.
    """

    message: ActionRequest | LogsRequest | StacksRequest | DescribeRequest
    by: str
    idle: str = ""

    @property
    def run_id(self) -> str | None:
        """Id of the run that the request is about; None for an action on a node, which is about all runs."""
        run_id: str | None = getattr(self.message, "run_id", None)
        return run_id


AnyRequest = Request | OperatorRequest | LeaderRequest
"""Any request. The leader of the run, or of the nodes, answers all requests except `LeaderRequest`."""
Answer: TypeAlias = "Reply | Ack | Done | WorkerLog | WorkerStacks | AgentDescription | LeaderReply"


class Connection(Protocol):
    """One connection over which requests come. Connections are distinguished by identity."""

    @property
    def server_addr(self) -> str:
        """The server's own address on this connection."""

    @property
    def is_scoped(self) -> bool:
        """Whether its token is valid for some runs only."""

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed, so that no answer can be sent."""

    def held(self, seconds: float) -> None:
        """Note that the current request was held for this many seconds because there was no news."""


class ShardView(Struct, frozen=True):
    """Leader of a shard, as one of the servers knows it; None if it knows none."""

    shard: int
    leader: str | None
    leadership: int


class ServerState(Struct, frozen=True, kw_only=True):
    """Current state of a server: whether it can decide, and which server leads. A single server always leads."""

    epoch: Annotated[Id, Meta(description="id of this start of the server process")]
    unhealthy_reason: Annotated[str | None, Meta(description="reason why the server cannot decide now; null: it can")]
    leads: Annotated[bool, Meta(description="this server leads at least one shard")] = True
    leader: Annotated[str | None, Meta(description="address of the leader of several servers, if known")] = None
    leadership: Annotated[Revision, Meta(description="number of the latest known leadership")] = 0
    shards: Annotated[list[ShardView], Meta(description="leader of each shard; empty: a single server")] = []
    peers: Annotated[list[str], Meta(description="last known addresses of the other servers of the cluster")] = []
    uptime_s: Annotated[float, Meta(description="seconds")]
    set_apart: Annotated[
        list[Id], Meta(description="ids of runs that the server has set apart after an error of its own")
    ] = []
    event_errors: Annotated[
        list[Id],
        Meta(
            description="ids of runs with events that the page, the metrics, a file or a webhook may lack after an"
            " error of the server"
        ),
    ] = []
    cordons: Annotated[list[CordonStatus], Meta(description="cordons for all current and future runs")] = []


class Load(Struct, frozen=True):
    """Current load of a server."""

    long_polls: int
    """Number of agents' requests that are held until there is news."""
    shards: int = 1
    """Number of shards of the cluster."""
    shards_led: int = 1
    """Number of shards that this server leads."""


class Service(Protocol):
    """Service that answers agents and operators, and shows its runs."""

    measurements: Measurements

    def ask(self, request: AnyRequest, connection: Connection) -> Coroutine[Any, Any, Answer]:
        """Answer a request. Raises the `ProtocolError` that refuses it.

        The answer to a join or a poll is a `Reply`, to an action `Done`, and to a `LeaderRequest` a `LeaderReply`. A
        request for a `WorkerLog`, `WorkerStacks` or `AgentDescription` gets that. All others get an `Ack`.
        """

    def lost(self, connection: Connection) -> None:
        """Note that the connection has closed."""

    def runs(self) -> list[Run]: ...

    def incidents_of(self, node_id: str) -> list[Incident]:
        """Return the incidents for which the runs that this server leads have blamed a node."""

    def observe(self, observer: Observer) -> None:
        """Call `observer` with what happens to the runs that this server leads at the time."""

    def with_driver(self, run_id: str, work: Callable[[Driver], Awaitable[Answered]]) -> Coroutine[Any, Any, Answered]:
        """Run some work with the run's driver, such as reading events.

        Raises what the work raises, or `NotLeader` if this server does not lead the run.
        """

    def now(self, run_id: str = "") -> float:
        """Return the time in seconds by the clock of this run."""

    def close(self) -> None: ...

    def state(self) -> ServerState: ...

    def load(self) -> Load: ...


def state_for(service: Service, shows: Shows | None) -> ServerState:
    """Return the server's state for a caller that may know only the runs that `shows` accepts; None for all runs."""
    state = service.state()
    if shows is None:
        return state
    runs = [run for run in service.runs() if run.cordons and shows(run.run_id)] if state.cordons else []
    return naming_only(replace(state, cordons=known_to(runs, state.cordons)), shows)


def naming_only(state: ServerState, shows: Shows) -> ServerState:
    """Return the state without the names of other runs than those that `shows` accepts."""
    set_apart, event_errors = (list(filter(shows, runs)) for runs in (state.set_apart, state.event_errors))
    return replace(state, set_apart=set_apart, event_errors=event_errors)


def latest_runs(service: Service, shows: Shows | None = None) -> dict[str, Run]:
    """Return the latest attempt of each run that `shows` accepts, by run id. If `shows` is None: of all runs."""
    return {run.run_id: run for run in service.runs() if shows is None or shows(run.run_id)}
