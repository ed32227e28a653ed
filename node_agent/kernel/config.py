"""Launch plan of one agent: what its workers run, where the nodes meet, and how the agent identifies itself."""

import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

from msgspec import Struct, field
from rdzv_protocol.log_lines import LineFormat
from rdzv_protocol.messages import JoinRequest
from rdzv_protocol.queries import Query

from node_agent.kernel.core.command import Command
from node_agent.kernel.core.log_options import LogOptions

if TYPE_CHECKING:
    from rdzv_protocol.credentials import Credentials

PROGRAM = "node-agent"
Endpoint = tuple[str, int]
"""Host and port."""
SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
"""Default of `--signals-to-handle`, as in torchrun."""
SIDE_BY_SIDE = 8
"""Most workers that are started at the same time: few enough for the processors of a small machine."""


class Options(Struct, frozen=True, kw_only=True):
    """Options of one feature. A field with a `Flag` declares a command-line flag, and is its only declaration."""

    feature: ClassVar[str]
    """Feature's class as `module:Class`. The agent imports it only if the feature is on."""
    after: ClassVar[str]
    """Argument after whose flag `--help` lists this feature's flags."""

    @property
    def is_on(self) -> bool:
        """Whether the feature is on."""
        return self != type(self)()

    @property
    def needs_pci_addresses(self) -> bool:
        """Whether `completed` needs `LaunchPlan.pci_addresses`.

        One process counts a node's accelerators and finds their addresses, so it must know before it counts.
        """
        return False

    @property
    def answers(self) -> tuple[type[Query], ...]:
        """Kinds of server queries that the feature answers. A query imports the feature even if it is off."""
        return ()

    @property
    def watches(self) -> tuple[str, ...]:
        """Sources by which the feature looks for hangs, by the names that the server knows."""
        return ()

    def descriptors(self, workers: int) -> int:
        """Return how many file descriptors the agent needs for the feature, given the number of workers."""
        return 0

    def run_instead(self, config: "AgentConfig") -> int | None:
        """Do what the user wants instead of a launch and return the exit code, or return None to launch."""
        return None

    def completed(self, plan: "LaunchPlan", source: Callable[[str], str]) -> Self:
        """Return the options with the values that follow from the plan, whose `features` are still empty.

        `source`: returns the flag, variable or field that has set an argument. Raises `UsageError`.
        """
        return self

    def notes(self, plan: "LaunchPlan", source: Callable[[str], str]) -> Iterable[str]:
        """Return lines for the user, which the agent shows before it does anything else."""
        return ()


OptionsT = TypeVar("OptionsT", bound=Options)


class AgentConfig(Struct, frozen=True, kw_only=True):
    """The checked command line. Durations are in seconds."""

    command: Command
    """Program and arguments of each worker."""
    stdin: int = -1
    """Descriptor of a file that each worker reads as stdin, from its beginning. -1 for the agent's own stdin."""
    join: JoinRequest
    """The agent's first request. Each agent sets its own id and secret, and each round a port. Without an address the
    agent uses the one from which it reaches the server."""
    master_port: int | None = None
    """MASTER_PORT of every round that this node leads. None means a free port, fresh each round."""
    logs: LogOptions = field(default_factory=LogOptions)
    virtual_local_rank: bool = False
    """Whether each worker sees only its own GPU, as device 0, and has LOCAL_RANK 0."""
    limits_threads: bool = True
    """Whether workers that share the node get OMP_NUM_THREADS=1, as under torchrun. torch's Python API leaves this to
    the program."""
    signals: tuple[str, ...] = SIGNALS
    """Signals that make the agent leave. The workers get the same signal first."""
    program_signals: tuple[str, ...] = ()
    """Signals that a program which uses the Python API handles in place of its agent."""
    shutdown_timeout_s: float = 30.0
    """Seconds from SIGTERM to SIGKILL when the agent stops workers, also for a restart; torchrun's default."""
    connect_timeout_s: float = 300.0
    """Seconds to wait for the server's first answer. The server may start after the agents."""
    server_lost_timeout_s: float = inf
    """Seconds to continue without a server that has answered before and is gone."""
    close_timeout_s: float = 2.0
    """Seconds in which an exiting agent tries to deliver its last report or its leave."""
    backend: str = "rdzv-server"
    """Name of the rendezvous backend in events, as in torchrun for the same command line."""
    lines: LineFormat = LineFormat(PROGRAM)
    """Format of the agent's own lines."""
    exits_when_excluded: bool = False
    """Whether the agent exits if the server excludes its node, so that another node can take its place. Otherwise it
    waits."""
    exits_with_run: bool = False
    """Whether exit code 0 means that the run is known to have succeeded. Otherwise it may also mean that all workers of
    this node have exited 0 and the outcome of the run is unknown."""
    status_page: bool = True
    """Whether a server in this process shows the run's status page on loopback."""
    servers: tuple[Endpoint, ...] = ()
    """Servers of the run, for launchers that a worker starts. Empty if the server is in this process."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment that the workers inherit."""
    worker_variables: Mapping[str, str] = field(default_factory=dict)
    """Further variables of each worker. Each maps to the torchrun variable from which it takes its value."""
    features: tuple[Options, ...] = ()
    """Options of features. The flags of a feature that is not listed do not exist."""

    @property
    def eviction_signals(self) -> frozenset[signal.Signals]:
        """Signals that a scheduler sends to every process of a node: those that are handled, and the defaults."""
        return frozenset(signal.Signals[name] for name in (*SIGNALS, *self.signals, *self.program_signals))

    def options(self, kind: type[OptionsT]) -> OptionsT:
        """Return the options of a feature."""
        return next((each for each in self.features if isinstance(each, kind)), None) or kind()


class Target(Struct, frozen=True):
    """Rendezvous target: the server at which the nodes meet, and this node's role there."""

    endpoint: Endpoint | None = None
    """Address of the server. None if it runs in this agent, for this node only."""
    others: tuple[Endpoint, ...] = ()
    """Addresses of further servers. One of all the servers leads."""
    hosts: bool = False
    """Whether this node hosts the server at `endpoint`, unless a program already listens there."""
    is_for_this_machine: bool = False
    """Whether the hosted server listens only on the endpoint's loopback address, instead of on all addresses."""
    is_on_a_node: bool = False
    """Whether a node of the run hosts the server. It may end with that node, so agents do not wait for it forever."""
    has_id_of_its_own: bool = False
    """Whether the run gets a fresh id and `--rdzv-id` is ignored, as under torchrun."""
    node_rank: int | None = None
    preferred_rank: int | None = None
    local_addr: str | None = None
    master_port: int | None = None


class LaunchPlan(Struct, frozen=True):
    """Checked launch plan of an agent: how it runs, which server it uses, and how it identifies itself."""

    config: AgentConfig
    target: Target
    credentials: "Credentials"
    notes: tuple[str, ...]
    """Lines for the user, shown before anything else happens."""
    has_torchruns_exit_codes: bool = False
    """Whether the command line is torchrun's. A script around it may know only torchrun's exit codes."""
    pci_addresses: Callable[[str], Sequence[str]] | None = None
    """Return the PCI addresses of the accelerators by device index. None if no options need them.

    Its argument is the advice to show if there are no accelerators. Raises `DeviceError`."""


class UsageError(Exception):
    """Error in the user's request. One line names the flag, variable or field, the reason, and what to do."""
