"""Launch plan of one agent: what its workers run, where it meets the others, and as whom."""

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

from msgspec import Struct, field
from rdzv_protocol.log_lines import LineFormat
from rdzv_protocol.messages import JoinRequest

from node_agent.core.command import Command
from node_agent.core.hang import HangOptions
from node_agent.core.log_options import LogOptions

if TYPE_CHECKING:
    from rdzv_protocol.credentials import Credentials

PROGRAM = "node-agent"
Endpoint = tuple[str, int]
"""Host and port."""
SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
"""Default of `--signals-to-handle`; torchrun's."""
LEAST_MB_PER_S = 10.0
"""Limit of the network test where the user gives none: less is a broken link, or one of 100 Mbit/s at most."""


class NodeCheck(Struct, frozen=True, kw_only=True):
    """Checks of this node before it joins; see `node_agent.checks`. Durations are seconds."""

    built_in: Mapping[str, float | None] = {}
    """Built-in checks by name, each with its limit; None: the check's own."""
    command: str = ""
    """The user's own check, for a shell; empty: none."""
    limit_s: float = 60.0
    """Longest time of the built-in checks, and of the user's own."""
    server: Endpoint | None = None
    """Server whose clock is compared with this node's."""
    tls: tuple[str, str | None, str | None] | None = None
    """Files for a server that speaks TLS: its authorities ("system": those that the system trusts), this node's
    certificate, and its key."""
    folder: str = ""
    """Folder of the workers' log files; empty: a temporary one."""

    @property
    def least_mb_per_s(self) -> float | None:
        """Bandwidth to another node, below which the network test fails; None: there is no test."""
        if "network" not in self.built_in:
            return None
        limit = self.built_in["network"]
        return LEAST_MB_PER_S if limit is None else limit


class FailureRules(Struct, frozen=True):
    """Patterns of failures that end the run (tried first), and of failures whose restart is free."""

    fatal: tuple[str, ...] = ()
    retry: tuple[str, ...] = ()


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
    preload: tuple[str, ...] = ()
    """Modules that workers need not import: they are forked from a process that has."""
    master_port: int | None = None
    """The MASTER_PORT of every round that this node leads; None: a free one, fresh each round."""
    logs: LogOptions = field(default_factory=LogOptions)
    virtual_local_rank: bool = False
    """Whether every worker sees its own GPU alone, as device 0, and LOCAL_RANK 0."""
    hangs: HangOptions = HangOptions()
    """Ways in which hangs of workers are noticed; none by default."""
    failure_rules: FailureRules = FailureRules()
    """Rules about what a worker's failure means for the run, by what the worker wrote last."""
    cpus: tuple[frozenset[int], ...] = ()
    """The CPUs that each worker may use, by local rank; none: all."""
    signals: tuple[str, ...] = SIGNALS
    """Signals that make the agent leave; the workers get the same one first."""
    shutdown_timeout_s: float = 30.0
    """Seconds from SIGTERM to SIGKILL when workers are stopped, also for a restart; torchrun's default."""
    notice_s: float | None = None
    """Time for which this agent, told to leave, waits until the workers of all nodes have saved; None: it does not."""
    notice_signal: str | None = None
    """Signal to each worker with a notice."""
    gives_notices: bool = False
    """Whether workers are given the files of notices."""
    connect_timeout_s: float = 300.0
    """Wait for the first answer of the server, which may be started after the agents."""
    server_lost_timeout_s: float = inf
    """Time to go on without a server that has answered once and is gone."""
    close_timeout_s: float = 2.0
    """Time in which an exiting agent tries to deliver its last report or its leave."""
    backend: str = "rdzv-server"
    """Name of the rendezvous back end in events; torchrun's for the same command line."""
    event_log: str = "null"
    """Destination of events, as torchrun's `--event-log-handler`: null or console."""
    lines: LineFormat = LineFormat(PROGRAM)
    """Form of the agent's own lines."""
    metrics_port: tuple[str, int] | None = None
    """Host and port at which the agent shows its metrics; None: nowhere. Port 0: a free one."""
    traces: bool = False
    """Whether OpenTelemetry spans of this node's way into each round are exported."""
    node_check: NodeCheck | None = None
    """Checks of this node before it joins; None: it is not checked."""
    exits_when_excluded: bool = False
    """Whether the agent exits, for another node to take its place, if the server keeps it out; else it stands by."""
    ready_file: str | None = None
    """File that exists, with the agent's process id, while the agent is part of the run."""
    allow_log_reads: bool = False
    """Whether operators who ask the server are shown the end of workers' log files."""
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


class UsageError(Exception):
    """A request that makes no sense, in one line: which flag, variable or field, why, and what to do."""
