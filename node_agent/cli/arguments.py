"""Arguments of one agent: each of them once, with its flag, its `--rdzv-conf` key, its reader and its default.

The command line, a program's `LaunchConfig` and torchrun's parameters all fill `Arguments`, through `make`. A flag's
first name is torchrun's where torchrun has the flag; names that follow are ours. Each `--a-b` may be written `--a_b`,
and falls back to the variable `PET_A_B`.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, cast

from rdzv_protocol.settings import ScaleUp

from node_agent.cli.values import (
    BACKENDS,
    PLACES,
    Read,
    codes,
    filters,
    modules,
    name,
    name_or_none,
    node_counts,
    one_of,
    pairs,
    ranks,
    seconds,
    signals,
    streams,
    switch,
    template,
    text,
    whole,
)
from node_agent.config import SIGNALS, UsageError
from node_agent.core.log_options import Std

Given = Mapping[str, tuple[str, object]]
"""By an argument's name: who gave it, for messages, and its text or value."""
SHORTEST_LEASE_S, LONGEST_LEASE_S = 0.1, 86_400


class Flag(NamedTuple):
    """How an argument is given."""

    names: tuple[str, ...]
    """None of what only `--rdzv-conf` has."""
    metavar: str
    """Word for its value; empty: it takes none, it is a switch."""
    read: Read
    help: str
    ours: bool = False
    """torchrun has no such flag, or not yet."""
    is_setting: bool = False
    """It may be a key of `--rdzv-conf`."""
    has_variable: bool = True
    """It falls back to `PET_...`, as under torchrun."""
    variable: str = ""
    """Another variable to fall back to, of torch's."""

    @property
    def variables(self) -> list[str]:
        """Variables that it falls back to, the first one first."""
        pet = [f"PET_{_word(each).upper()}" for each in self.names if each.startswith("--") and self.has_variable]
        return [*pet, self.variable] if self.variable else pet

    @property
    def spellings(self) -> list[str]:
        """Each name with dashes and with underscores."""
        return _both(self.names)

    @property
    def torchruns(self) -> list[str]:
        """The spellings that torchrun has, too."""
        long = [each for each in self.names if each.startswith("--")]
        return [] if self.ours else _both([*(each for each in self.names if not each.startswith("--")), *long[:1]])


def _word(spelling: str) -> str:
    return spelling.removeprefix("--").replace("-", "_")


def _both(names: Sequence[str]) -> list[str]:
    underscored = {each: "--" + _word(each) if each.startswith("--") else each for each in names}
    return list(dict.fromkeys(spelling for each in names for spelling in (each, underscored[each])))


def _flag(names: str, metavar: str, read: Read, help: str, **more: Any) -> Flag:
    return Flag(tuple(names.split()), metavar, read, help, **more)


def _own(names: str, metavar: str, read: Read, help: str, **more: Any) -> Flag:
    return _flag(names, metavar, read, help, ours=True, **more)


def _switch(names: str, help: str, *, ours: bool = False) -> Flag:
    return Flag(tuple(names.split()), "", switch, help, ours=ours)


def _setting(read: Read) -> Flag:
    return Flag((), "", read, "", ours=True, is_setting=True)


class Arguments(NamedTuple):
    """All that may be asked of an agent, each value checked by itself. None: nobody said anything. Seconds."""

    # fmt: off
    rdzv_endpoint: Annotated[str, _flag(
        "--rdzv-endpoint --endpoint", "HOST:PORT", text, "--endpoint: where rdzv-server listens, also as a URL; "
        "HOST:PORT,HOST:PORT,HOST:PORT for several servers, of which one leads. --rdzv-endpoint: as in torchrun, the "
        "place where --rdzv-backend hosts or finds a server")] = ""
    standalone: Annotated[bool, _switch(
        "--standalone", "this node alone, with a server in the agent. This is also what happens without an endpoint "
        "and without several nodes")] = False
    rdzv_backend: Annotated[str | None, _flag(
        "--rdzv-backend", "NAME", one_of(*BACKENDS), "where the server is. c10d: the node that the endpoint names "
        "hosts it, unless something listens there already. static: rank 0 hosts it at --master-addr, --master-port. "
        "etcd, etcd-v2, rdzv-server: it runs at the endpoint already (default: rdzv-server with --endpoint, else "
        "static)")] = None
    master_addr: Annotated[str, _flag(
        "--master-addr", "ADDR", name_or_none, "node of rank 0, with --rdzv-backend static (default: 127.0.0.1)")] = ""
    master_port: Annotated[int | None, _flag(
        "--master-port", "PORT", whole(0, 65_535), "port there (default: 29500). With one node: the workers' "
        "MASTER_PORT, 0 for a free one")] = None
    rdzv_id: Annotated[str, _flag(
        "--rdzv-id --run-id", "ID", name_or_none, "names the run; agents with one id are one run (default: none)")] = ""
    nnodes: Annotated[tuple[int, int] | None, _flag(
        "--nnodes", "N|MIN:MAX", node_counts, "nodes of the run (default: the run's, or 1)")] = None
    rdzv_conf: Annotated[Mapping[str, object], _flag(
        "--rdzv-conf", "K=V,K=V", pairs, "torchrun's settings: join_timeout, last_call_timeout, close_timeout, "
        "keep_alive_interval, keep_alive_max_attempt, timeout, read_timeout, is_host")] = {}
    connect_timeout: Annotated[float | None, _own(
        "--connect-timeout", "S", seconds(), "how long the server's first answer may take; it may start after the "
        "agents (default: 300)", is_setting=True)] = None
    server_lost_timeout: Annotated[float | None, _own(
        "--server-lost-timeout", "S", seconds(), "how long to go on without a server that is gone (default: for ever "
        "while workers run, and without any as long as --connect-timeout; always that long with c10d and static, where "
        "a node of the run hosts it)", is_setting=True)] = None

    token_file: Annotated[str | None, _own(
        "--token-file", "FILE", text, "bear the token in this file, as rdzv-server asks; read again when the server "
        "does not know it any more", is_setting=True)] = None
    tls_ca: Annotated[str | None, _own(
        "--tls-ca", "FILE|system", text, "speak TLS to rdzv-server, whose certificate one of these authorities (PEM), "
        "or of those that the system trusts, must vouch for", is_setting=True)] = None
    tls_cert: Annotated[str | None, _own(
        "--tls-cert", "FILE", text, "show this certificate (PEM), as rdzv-server --tls-client-ca asks",
        is_setting=True)] = None
    tls_key: Annotated[str | None, _own("--tls-key", "FILE", text, "its key (PEM, not encrypted)",
                                        is_setting=True)] = None
    no_status_page: Annotated[bool, _switch(
        "--no-status-page", "no page on this machine's loopback that shows the run's status, with --standalone; every "
        "user of the machine could look at it", ours=True)] = False

    nproc_per_node: Annotated[int | str, _flag(
        "--nproc-per-node --nproc", "N", whole(1, 4096, PLACES), "workers on this node, or one for each of its CPUs "
        "(cpu), GPUs (gpu) or XPUs (xpu); auto: GPUs, else XPUs, else CPUs (default: 1)")] = 1
    node_id: Annotated[str | None, _own(
        "--node-id", "NAME", name, "this node's name (default: the host name)", is_setting=True)] = None
    node_rank: Annotated[int | None, _flag(
        "--node-rank", "R", whole(0, 10**7), "ask for this group rank (default with static: 0). With c10d it is a "
        "wish: another rank is given if it is taken")] = None
    local_addr: Annotated[str, _flag(
        "--local-addr", "ADDR", name_or_none, "where other nodes reach this one (default: the address from which it "
        "reaches the server)")] = ""
    role: Annotated[str, _flag(
        "--role", "NAME", name_or_none, "name of the workers' role (default: default)")] = "default"
    virtual_local_rank: Annotated[bool, _switch(
        "--virtual-local-rank", "each worker has LOCAL_RANK 0 and sees its own GPU alone, as device 0")] = False
    numa_binding: Annotated[str | None, _flag(
        "--numa-binding", "HOW", one_of("node", "socket", "exclusive", "core-complex"), "keep each worker on the CPUs "
        "near its GPU: node, socket, exclusive or core-complex", has_variable=False)] = None
    shutdown_timeout: Annotated[float, _flag(
        "--shutdown-timeout", "S", seconds(), "time that workers get between SIGTERM and SIGKILL, also for a restart "
        "(default: 30)", variable="TORCH_ELASTIC_SHUTDOWN_TIMEOUT")] = 30.0
    signals_to_handle: Annotated[tuple[str, ...], _flag(
        "--signals-to-handle", "NAME,NAME", signals, "signals that make the agent leave; its workers get the same "
        f"(default: {','.join(SIGNALS)})")] = SIGNALS

    max_restarts: Annotated[int | None, _flag(
        "--max-restarts", "N", whole(0, 10**7), "restarts after worker failures; membership changes are free "
        "(default: 0)")] = None
    fatal_exit_codes: Annotated[tuple[int, ...] | None, _own(
        "--fatal-exit-codes", "N,N", codes, "exit codes that fail the run at once", is_setting=True)] = None
    join_timeout: Annotated[float | None, _own(
        "--join-timeout", "S", seconds(), "wait for MIN nodes (default: 600)", is_setting=True)] = None
    last_call_timeout: Annotated[float | None, _own(
        "--last-call-timeout", "S", seconds(), "wait for more after MIN (default: 30)", is_setting=True)] = None
    lease: Annotated[float | None, _own(
        "--lease", "S", seconds(SHORTEST_LEASE_S, LONGEST_LEASE_S), "silence after which a node is lost (default: 10)",
        is_setting=True)] = None
    disconnect_grace: Annotated[float | None, _own(
        "--disconnect-grace", "S", seconds(), "time to come back after the connection closed (default: 1)",
        is_setting=True)] = None
    scale_up: Annotated[ScaleUp | None, _own(
        "--scale-up", "WHEN", one_of("immediate", "cooldown", "manual"), "when an arrival restarts the run: immediate, "
        "cooldown or manual (default: immediate)", is_setting=True)] = None
    rerun: Annotated[bool, _switch("--rerun", "begin again a run that has already succeeded", ours=True)] = False

    log_dir: Annotated[str, _flag(
        "--log-dir", "DIR", text, "where log files go: DIR/<run id>_<random>/attempt_<n>/<local rank>/ (default: a "
        "temporary folder; /dev/null: no files)")] = ""
    redirects: Annotated[Std | Mapping[int, Std], _flag(
        "-r --redirects", "WHAT", streams, "streams that go to a file instead of the console: 0 none, 1 stdout, "
        "2 stderr, 3 both, or a map from local ranks, such as 0:1,1:3 (default: 0)")] = Std.NONE
    tee: Annotated[Std | Mapping[int, Std], _flag(
        "-t --tee", "WHAT", streams, "streams that go to a file and to the console, likewise (default: 0)")] = Std.NONE
    local_ranks_filter: Annotated[frozenset[int] | None, _flag(
        "--local-ranks-filter", "R,R", ranks, "show the output of these local ranks alone; files hold all")] = None
    ranks_filter: Annotated[frozenset[int] | None, _own(
        "--ranks-filter", "R,R", ranks, "show the output of these ranks alone")] = None
    duplicate_stdout_filters: Annotated[tuple[str, ...], _flag(
        "--duplicate-stdout-filters", "TEXT,TEXT", filters, "lines with one of these texts go to filtered_stdout.log, "
        "too; a double comma stands for a comma")] = ()
    duplicate_stderr_filters: Annotated[tuple[str, ...], _flag(
        "--duplicate-stderr-filters", "TEXT,TEXT", filters, "the same for stderr")] = ()
    log_prefix: Annotated[str | None, _own(
        "--log-prefix", "TEMPLATE", template, "what every line on the console begins with, such as "
        "'[${role_name}${rank}]: '")] = None
    log_line_prefix_template: Annotated[str | None, _own(
        "--log-line-prefix-template", "TEMPLATE", text, "what teed lines alone begin with (default: "
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, else [<role><local rank>]:)")] = None
    logs_specs: Annotated[str | None, _flag(
        "--logs-specs", "NAME", text, "a torchrun.logs_specs entry point that decides about files instead",
        has_variable=False)] = None
    event_log_handler: Annotated[str, _flag(
        "--event-log-handler", "NAME", one_of("null", "console"), "torchrun's events: null or console")] = "null"

    module: Annotated[bool, _switch("-m --module", "SCRIPT is a module, as with python -m")] = False
    no_python: Annotated[bool, _switch("--no-python", "SCRIPT is a program, not a Python script")] = False
    run_path: Annotated[bool, _switch(
        "--run-path", "run SCRIPT with runpy.run_path, as __main__; goes before --no-python")] = False
    preload: Annotated[tuple[str, ...], _own(
        "--preload", "MODULE,MODULE", modules, "import these once, and fork workers that have them: a restart then "
        "takes no import. For Python scripts; not for modules that start threads or open a GPU when they are "
        "imported")] = ()
    use_env: Annotated[bool, _switch(
        "--use-env", "pass no --local-rank to the script, which is the default except for python -m node_agent.launch"
        )] = False

    monitor_interval: Annotated[float, _flag(
        "--monitor-interval", "S", seconds(), "nothing is polled here: a worker's end is noticed at once")] = 0.1
    start_method: Annotated[str, _flag(
        "--start-method", "HOW", one_of("spawn", "fork", "forkserver"), "workers are programs of their own",
        has_variable=False)] = "spawn"
    exit_barrier_timeout: Annotated[float | None, _own(
        "--exit-barrier-timeout", "S", seconds(), "a node whose workers are done waits for the others as long as the "
        "run lasts", variable="TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT")] = None

    timeout: Annotated[float | None, _setting(seconds())] = None
    read_timeout: Annotated[float | None, _setting(seconds())] = None
    close_timeout: Annotated[float | None, _setting(seconds())] = None
    keep_alive_interval: Annotated[float, _setting(seconds())] = 5.0
    keep_alive_max_attempt: Annotated[int, _setting(whole(1, 10**6))] = 3
    is_host: Annotated[bool | None, _setting(switch)] = None
    cas_backoff_max_seconds: Annotated[float | None, _setting(seconds())] = None
    # fmt: on

    script: str = ""
    args: tuple[str, ...] = ()
    """The script's arguments."""
    ignored: tuple[str, ...] = ()
    """Keys of `--rdzv-conf` that mean nothing here."""
    sources: Mapping[str, str] = {}
    """Who gave a value: the flag as it was spelled, the variable, or a program's field."""
    terms: Mapping[str, str] = {}
    """Names of arguments where they are not flags, for messages."""

    def source(self, argument: str) -> str:
        """Who gave the value, or would have to."""
        return self.sources.get(argument) or self.terms.get(argument) or FLAGS[argument].names[0]

    def own(self, argument: str) -> str:
        """The flag of ours that gives this value, or a program's field."""
        return self.terms.get(argument) or FLAGS[argument].names[-1]

    def is_written(self, argument: str) -> bool:
        """Whether the user wrote it; operators set variables, for every job."""
        return not self.sources.get(argument, "PET_").startswith("PET_")


ALL: dict[str, Flag] = {name: kind.__metadata__[0] for name, kind in Arguments.__annotations__.items()
                        if hasattr(kind, "__metadata__")}  # fmt: skip
FLAGS: dict[str, Flag] = {name: flag for name, flag in ALL.items() if flag.names}
SETTINGS: dict[str, Flag] = {name: flag for name, flag in ALL.items() if flag.is_setting}
HEADINGS = {
    "rdzv_endpoint": "where the nodes of the run meet",
    "token_file": "security",
    "nproc_per_node": "this node",
    "max_restarts": "failures and membership, for the whole run",
    "log_dir": "output",
    "module": "what the workers execute",
    "monitor_interval": "accepted without effect, for torchrun's command lines",
}
"""Headings of --help, by the flag that each precedes."""


def make(given: Given, script: str = "", args: Sequence[str] = (), terms: Mapping[str, str] | None = None) -> Arguments:
    """Read what was given; `--rdzv-conf` stands in for flags that were not. Raises `UsageError`, which names it.

    torchrun leaves alone what it does not know in `--rdzv-conf`, and so it is left alone here, but named.
    """
    values = {argument: _read(argument, *each) for argument, each in given.items()}
    sources = {argument: source for argument, (source, _) in given.items()}
    ignored = []
    for key, value in cast(Mapping[str, object], values.get("rdzv_conf", {})).items():
        if key not in SETTINGS or (key == "timeout" and values.get("rdzv_backend") == "c10d"):
            ignored.append(key)
        elif key not in given:
            sources[key] = f"{sources['rdzv_conf']}: {key}"
            values[key] = _read(key, sources[key], value)
    found = cast(dict[str, Any], values)
    return Arguments(
        **found, script=script, args=tuple(args), ignored=tuple(ignored), sources=sources, terms=terms or {}
    )


def _read(argument: str, source: str, value: object) -> object:
    try:
        return ALL[argument].read(value)
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from None
