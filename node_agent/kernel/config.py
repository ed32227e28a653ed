"""Launch plan of one agent: what its workers run, where it meets the others, and as whom."""

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
"""Default of `--signals-to-handle`; torchrun's."""


class Options(Struct, frozen=True, kw_only=True):
    """Options of one feature. A field with a `Flag` is a flag: it is declared here, and nowhere else."""

    feature: ClassVar[str]
    """The feature, as `module:Class`. It is imported only if it is on."""
    after: ClassVar[str]
    """Argument after whose flag these stand in --help."""

    @property
    def is_on(self) -> bool:
        """Whether the agent has the feature."""
        return self != type(self)()

    @property
    def needs_pci_addresses(self) -> bool:
        """Whether the options cannot be completed without `LaunchPlan.pci_addresses`."""
        return False

    @property
    def answers(self) -> tuple[type[Query], ...]:
        """Kinds of the server's queries that the feature answers, even if it is not on: it is imported then."""
        return ()

    def descriptors(self, workers: int) -> int:
        """Descriptors that the agent needs for the feature beside so many workers."""
        return 0

    def run_instead(self, config: "AgentConfig") -> int | None:
        """Do what the user wants instead of a launch, and return the exit code; None: that is the launch."""
        return None

    def completed(self, plan: "LaunchPlan", source: Callable[[str], str]) -> Self:
        """Return the options with what follows from the plan, in which features are missing.

        `source`: gives the flag, variable or field that has given an argument. Raises `UsageError`.
        """
        return self

    def notes(self, plan: "LaunchPlan", source: Callable[[str], str]) -> Iterable[str]:
        """Lines for the user before anything happens."""
        return ()


O = TypeVar("O", bound=Options)  # noqa: E741


class AgentConfig(Struct, frozen=True, kw_only=True):
    """The command line, checked. Durations are seconds."""

    command: Command
    """Program and arguments of each worker."""
    join: JoinRequest
    """The agent's first request, but for what each agent and each round have of their own: id, secret and port; and
    for the address, unless one is given: then it is the one from which the agent reaches the server."""
    master_port: int | None = None
    """The MASTER_PORT of every round that this node leads; None: a free one, fresh each round."""
    logs: LogOptions = field(default_factory=LogOptions)
    virtual_local_rank: bool = False
    """Whether every worker sees its own GPU alone, as device 0, and LOCAL_RANK 0."""
    signals: tuple[str, ...] = SIGNALS
    """Signals that make the agent leave; the workers get the same one first."""
    shutdown_timeout_s: float = 30.0
    """Seconds from SIGTERM to SIGKILL when workers are stopped, also for a restart; torchrun's default."""
    connect_timeout_s: float = 300.0
    """Wait for the first answer of the server, which may be started after the agents."""
    server_lost_timeout_s: float = inf
    """Time to go on without a server that has answered once and is gone."""
    close_timeout_s: float = 2.0
    """Time in which an exiting agent tries to deliver its last report or its leave."""
    backend: str = "rdzv-server"
    """Name of the rendezvous back end in events; torchrun's for the same command line."""
    lines: LineFormat = LineFormat(PROGRAM)
    """Form of the agent's own lines."""
    exits_when_excluded: bool = False
    """Whether the agent exits, for another node to take its place, if the server keeps it out; else it stands by."""
    status_page: bool = True
    """Whether a server in this process shows the run's status page on loopback."""
    servers: tuple[Endpoint, ...] = ()
    """Servers of the run, for launchers that a worker starts; none: the server is in this process."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment that the workers inherit."""
    worker_variables: Mapping[str, str] = field(default_factory=dict)
    """Variables that each worker has besides, each with the torchrun variable whose value it gets."""
    features: tuple[Options, ...] = ()
    """Options of features. A feature that is left out has none of its flags."""

    def options(self, kind: type[O]) -> O:
        """The options of a feature."""
        return next((each for each in self.features if isinstance(each, kind)), None) or kind()


class Target(Struct, frozen=True):
    """Rendezvous target: the server at which the nodes meet, and this node's part there."""

    endpoint: Endpoint | None = None
    """Address of the server; None: it is in this agent, for this node alone."""
    others: tuple[Endpoint, ...] = ()
    """Addresses of further servers, of which one leads."""
    hosts: bool = False
    """Whether this node hosts the server at `endpoint`, unless something listens there already."""
    is_for_this_machine: bool = False
    """Whether the server that this node hosts listens at the endpoint's loopback address alone; else at every one."""
    is_on_a_node: bool = False
    """Whether a node of the run hosts the server: it may end with that node, so nobody waits for it for ever."""
    has_id_of_its_own: bool = False
    """Whether the run gets a fresh id and `--rdzv-id` counts for nothing, as under torchrun."""
    node_rank: int | None = None
    preferred_rank: int | None = None
    local_addr: str | None = None
    master_port: int | None = None


class LaunchPlan(Struct, frozen=True):
    """Launch plan of an agent, checked: how it runs, which server it goes to, and how it identifies itself."""

    config: AgentConfig
    target: Target
    credentials: "Credentials"
    notes: tuple[str, ...]
    """Lines for the user before anything happens."""
    has_torchruns_exit_codes: bool = False
    """Whether the command line is torchrun's: a script around it may know torchrun's exit codes alone."""
    pci_addresses: Callable[[str], Sequence[str]] | None = None
    """Gives the PCI addresses of the accelerators, by a worker's index of them; None if no options need them.

    Its argument is the advice in the error if there are no accelerators. Raises `DeviceError`.
    """


class UsageError(Exception):
    """A request that makes no sense, in one line: which flag, variable or field, why, and what to do."""
