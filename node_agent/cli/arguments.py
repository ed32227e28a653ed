"""Arguments of one agent, each once, with its flag, `--rdzv-conf` key, reader and default.

A feature declares its own arguments in its `Options`, and a setting of the run declares its flag in `RunSettings`. All
other arguments are here. The command line, a program's `LaunchConfig` and torchrun's parameters all fill `Arguments`
through `make`.

A flag's first name is torchrun's if torchrun has the flag. Further names are ours. Each `--a-b` may be written `--a_b`,
and falls back to the variable `PET_A_B`.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal, cast, get_args, get_origin

from msgspec import Meta, Struct
from msgspec.structs import replace
from rdzv_protocol import words as protocol_words
from rdzv_protocol.flag_values import LOG_FORMATS
from rdzv_protocol.settings import AskedBy, RequestedSettings, RunSettings

from node_agent import words
from node_agent.features.table import OPTIONS
from node_agent.flags import (
    BACKENDS,
    JOIN,
    OUTPUT,
    PLACES,
    PROTECT,
    RESTART,
    START,
    WATCH,
    Flag,
    Nodes,
    Read,
    a_switch,
    codes,
    filters,
    host_or_none,
    name,
    name_or_none,
    nodes,
    number,
    one_of,
    only_key,
    our_switch,
    ours,
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
from node_agent.kernel.config import SIGNALS, Options, UsageError
from node_agent.kernel.core.log_options import Std

Given = Mapping[str, tuple[str, object]]
"""The source (for messages), and the text or value, of each given argument, by the argument's name."""


class Arguments(Struct, frozen=True):
    """Arguments of an agent, each value checked by itself. None means not given. Durations are in seconds."""

    # fmt: off
    rdzv_endpoint: Annotated[str, Flag(
        "HOST:PORT", text, "--endpoint: join the run at this address or URL of rdzv-server. "
        "HOST:PORT,HOST:PORT,HOST:PORT: several servers, one of which leads. auto: read address, nodes, rank and run "
        "id from the variables of Slurm or another scheduler. auto@HOST:PORT: read all but the address. "
        "--rdzv-endpoint: where --rdzv-backend hosts or finds a server, as under torchrun",
        alias="--endpoint", task=JOIN)] = ""
    standalone: Annotated[bool, a_switch(
        "run on this node only, with a server inside the agent (default for one node without an endpoint)",
        task=JOIN)] = False
    rdzv_backend: Annotated[str | None, Flag(
        "NAME", one_of(*BACKENDS), "choose where the server runs. static: rank 0 hosts it at --master-addr, "
        "--master-port. c10d: the endpoint's node hosts it, unless a server already listens there. rdzv-server, etcd, "
        "etcd-v2: it already runs at the endpoint. (default: rdzv-server with --endpoint, else static)")] = None
    master_addr: Annotated[str, Flag(
        "ADDR", host_or_none, "set the address of rank 0's node, with --rdzv-backend static or --endpoint auto "
            "(default: 127.0.0.1)", is_key=True, task=JOIN)] = ""
    master_port: Annotated[int | None, Flag(
        "PORT", whole(0, 65_535), "set the port of --master-addr (default: 29500). With one node: set the workers' "
        "MASTER_PORT (0: a free port). No effect with --standalone, an endpoint other than auto, or a backend other "
        "than static", is_key=True)] = None
    rdzv_id: Annotated[str, Flag(
        "ID", name_or_none, "name the run; agents with the same id form one run (default: "
            "none)", alias="--run-id", task=JOIN)] = ""
    rerun: Annotated[bool, our_switch("start a run again that has succeeded, or that an operator has stopped")] = False
    nnodes: Annotated[Nodes | None, Flag(
        "N|MIN:MAX|N,N", nodes, "set the run's number of nodes (default: the run's, or 1). MIN:MAX: any number from "
        "MIN to MAX. N,N,N: the largest possible one of these. Surplus nodes stand by", task=JOIN)] = None
    rdzv_conf: Annotated[Mapping[str, object], Flag(
        "K=V,K=V", pairs, "set torchrun's settings: join_timeout, last_call_timeout, close_timeout, "
        "keep_alive_interval, keep_alive_max_attempt, timeout, read_timeout, is_host")] = {}
    connect_timeout: Annotated[float | None, ours(
        "S", seconds(), "wait up to S seconds for the server's first answer; the server may start after the agents "
        "(default: 300)")] = None
    server_lost_timeout: Annotated[float | None, ours(
        "S", seconds(), "continue for S seconds after the server is lost (default: no limit while workers run, else "
        "--connect-timeout. With c10d and static, where a node of the run hosts the server: always "
        "--connect-timeout)")] = None

    token_file: Annotated[str | None, ours(
        "FILE", text, "authenticate with the token in this file; the agent reads it again when the server no longer "
        "accepts the token", task=PROTECT)] = None
    tls_ca: Annotated[str | None, ours(
        "FILE|system", text, "use TLS and verify rdzv-server's certificate against this CA bundle (PEM); system: "
        "against the system's CAs", task=PROTECT)] = None
    tls_cert: Annotated[str | None, ours(
        "FILE", text, "present this client certificate (PEM) to rdzv-server --tls-client-ca")] = None
    tls_key: Annotated[str | None, ours("FILE", text, "read the private key of --tls-cert from this file (PEM, not "
        "encrypted)")] = None
    no_status_page: Annotated[bool, our_switch(
        "with --standalone, do not serve the run's status page on loopback, where every user of this machine can read "
        "it")] = False

    nproc_per_node: Annotated[int | str, Flag(
        "N", whole(1, 4096, PLACES), "start N workers on this node. cpu, gpu, xpu: one for each CPU, GPU or XPU; auto: "
        "one for each GPU, else XPU, else CPU (default: 1)", alias="--nproc", task=START)] = 1
    node_id: Annotated[str | None, ours("NAME", name, "name this node (default: the host name)")] = None
    node_rank: Annotated[int | None, Flag(
        "R", whole(0, 10**7), "ask for this group rank (default with static: 0). With c10d, the server gives another "
        "rank if this one is taken", is_key=True, task=JOIN)] = None
    local_addr: Annotated[str, Flag(
        "ADDR", host_or_none, "set the address at which other nodes reach this node (default: the address from which "
        "it reaches the server)")] = ""
    exit_when_excluded: Annotated[bool, our_switch(
        "exit with 71 while rdzv-server --exclude-after excludes this node, so that a scheduler replaces it (default: "
        "stand by until the exclusion ends)")] = False
    topology: Annotated[str, ours(
        "PLACE", name_or_none, "set this node's place in the network, such as spine1.rack07.node3. Nodes get their "
        "ranks in the order of their places. nvlink: the NVLink domain that NVIDIA's driver reports, then the "
        "scheduler's order (default: the scheduler's, with --endpoint auto)")] = ""
    role: Annotated[str, Flag("NAME", name_or_none, "name the workers' role (default: default)")] = "default"
    virtual_local_rank: Annotated[bool, a_switch(
        "give each worker LOCAL_RANK 0 and only its own GPU, as device 0")] = False
    shutdown_timeout: Annotated[float, Flag(
        "S", seconds(), "give workers S seconds between SIGTERM and SIGKILL, also for a restart (default: "
        "30)", variable="TORCH_ELASTIC_SHUTDOWN_TIMEOUT", task=RESTART)] = 30.0
    signals_to_handle: Annotated[tuple[str, ...], Flag(
        "NAME,NAME", signals, "leave on one of these signals, and pass it on to the workers (default: "
        f"{','.join(SIGNALS)})")] = SIGNALS

    exit_with_run: Annotated[bool, our_switch(
        "if this agent is killed, wait until the run has ended without it, and exit as the run does. Exit with 0 only "
        "if the run is known to have succeeded. Use it with schedulers that end a whole job by the exit code of one of "
        "its processes", is_commands=True)] = False

    log_dir: Annotated[str, Flag(
        "DIR", text, "write log files to DIR/<run id>_<random>/attempt_<n>/<local rank>/ (default: a temporary folder; "
        "/dev/null: no files)", task=OUTPUT)] = ""
    redirects: Annotated[Std | Mapping[int, Std], Flag(
        "WHAT", streams, "write streams to a file instead of the console: 0 none, 1 stdout, 2 stderr, 3 both, or a map "
        "from local ranks, such as 0:1,1:3 (default: 0)", short="-r", task=OUTPUT)] = Std.NONE
    tee: Annotated[Std | Mapping[int, Std], Flag(
        "WHAT", streams, "write streams to a file and to the console; values as for -r (default: "
            "0)", short="-t", task=OUTPUT)] = Std.NONE
    local_ranks_filter: Annotated[frozenset[int] | None, Flag(
        "R,R", ranks, "show only the output of these local ranks; files contain all")] = None
    ranks_filter: Annotated[frozenset[int] | None, ours("R,R", ranks, "show only the output of these ranks; files "
        "contain all")] = None
    duplicate_stdout_filters: Annotated[tuple[str, ...], Flag(
        "TEXT,TEXT", filters, "also write lines that contain one of these texts to filtered_stdout.log; a double comma "
        "stands for a comma")] = ()
    duplicate_stderr_filters: Annotated[tuple[str, ...], Flag("TEXT,TEXT", filters, "also write such lines of stderr "
        "to filtered_stderr.log")] = ()
    log_prefix: Annotated[str | None, ours(
        "TEMPLATE", template, "begin every line on the console with this text, such as '[${role_name}${rank}]: "
            "'")] = None
    log_line_prefix_template: Annotated[str | None, ours(
        "TEMPLATE", text, "begin only teed lines with this text (default: TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, else "
        "[<role><local rank>]:)")] = None
    logs_specs: Annotated[str | None, Flag(
        "NAME", text, "let this torchrun.logs_specs entry point decide about log files", has_variable=False)] = None
    log_format: Annotated[str, ours(
        "NAME", one_of(*LOG_FORMATS), "write the agent's own lines as text, or as json for log collectors; "
        "LOGLEVEL=WARNING hides routine lines (default: text)", is_commands=True)] = "text"

    module: Annotated[bool, a_switch("run SCRIPT as a module, like python -m", short="-m", task=START)] = False
    no_python: Annotated[bool, a_switch("run SCRIPT as a program, not as a Python script", task=START)] = False
    run_path: Annotated[bool, a_switch("run SCRIPT with runpy.run_path, as __main__; this overrides "
        "--no-python")] = False
    use_env: Annotated[bool, a_switch(
        "do not pass --local-rank to the script (default, except for python -m node_agent.launch)")] = False

    monitor_interval: Annotated[float, Flag(
        "S", seconds(), "no effect: the agent notices at once when a worker ends")] = 0.1
    start_method: Annotated[str, Flag(
        "HOW", one_of("spawn", "fork", "forkserver"), "no effect: each worker is a program of its "
        "own", has_variable=False)] = "spawn"
    exit_barrier_timeout: Annotated[float | None, ours(
        "S", seconds(), "no effect: a node whose workers have finished waits until the run ends",
        variable="TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT")] = None

    timeout: Annotated[float | None, only_key(seconds())] = None
    read_timeout: Annotated[float | None, only_key(seconds())] = None
    close_timeout: Annotated[float | None, only_key(seconds())] = None
    keep_alive_interval: Annotated[float, only_key(seconds())] = 5.0
    keep_alive_max_attempt: Annotated[int, only_key(whole(1, 10**6))] = 3
    is_host: Annotated[bool | None, only_key(switch)] = None
    cas_backoff_max_seconds: Annotated[float | None, only_key(seconds())] = None
    # fmt: on

    script: str = ""
    args: tuple[str, ...] = ()
    """The script's arguments."""
    ignored: tuple[str, ...] = ()
    """Keys of `--rdzv-conf` that have no effect here."""
    sources: Mapping[str, str] = {}
    """Source of each value: the flag as it was spelled, the variable, or a program's field."""
    terms: Mapping[str, str] = {}
    """Names of arguments for messages, if they are not flags."""
    features: tuple[Options, ...] = tuple(kind() for kind in OPTIONS)
    """Options of each feature."""
    asked: RequestedSettings = RequestedSettings()
    """Settings of the run that flags of their own ask for."""

    def value(self, argument: str) -> object:
        """Return the value of an argument, including features' arguments and the run's settings."""
        if argument in OF_THE_RUN:
            return getattr(self.asked, _setting(argument))
        owner = next((each for each in self.features if argument in each.__struct_fields__), self)
        return getattr(owner, argument)

    def filled(self, values: Mapping[str, object], sources: Mapping[str, str]) -> "Arguments":
        """Return these arguments with further ones, given as read values with their sources."""
        own, features = dict(values), []
        asked = {_setting(name): own.pop(name) for name in values if name in OF_THE_RUN}
        for each in self.features:
            given = {name: own.pop(name) for name in each.__struct_fields__ if name in own}
            features.append(replace(each, **given) if given else each)
        return replace(
            self, **own, features=tuple(features), asked=replace(self.asked, **asked),
            sources={**self.sources, **sources},
        )  # fmt: skip

    def source(self, argument: str) -> str:
        """Return the flag, variable or field that gave the value, or would give it."""
        return self.sources.get(argument) or self.terms.get(argument) or FLAGS[argument].names[0]

    def own(self, argument: str) -> str:
        """Return our own flag for this value, or a program's field."""
        return self.terms.get(argument) or FLAGS[argument].names[-1]

    @property
    def most_nodes(self) -> int:
        """Most nodes of the run that this node knows: one without `--nnodes`."""
        return self.nnodes.most if self.nnodes else 1

    def is_written(self, argument: str) -> bool:
        """Return whether the user wrote the argument. Operators set variables for every job."""
        return not _is_variable(self.sources.get(argument, "PET_"))

    def written(self, arguments: Iterable[str]) -> list[str]:
        """Return the sources of those arguments that the user wrote."""
        return [self.source(each) for each in arguments if self.is_written(each)]


def _flags(kind: type[Struct]) -> dict[str, Flag]:
    return {
        argument: replace(annotation.__metadata__[0], argument=argument)
        for argument, annotation in kind.__annotations__.items()
        if hasattr(annotation, "__metadata__")
    }


def _of_the_run() -> dict[str, Flag]:
    """Return the flags that ask for settings of the run, with the limits of the settings."""
    flags = {}
    for setting, kind in RunSettings.__annotations__.items():
        value = get_args(kind)[0] if type(None) in get_args(kind) else kind
        metadata = getattr(value, "__metadata__", ())
        if asked := next((each for each in metadata if isinstance(each, AskedBy)), None):
            argument = setting.removesuffix("_s")
            limits = next((each for each in metadata if isinstance(each, Meta)), Meta())
            reader = _reader(value.__origin__, limits, asked.most, is_seconds=setting != argument)
            flags[argument] = Flag(
                asked.metavar, reader, asked.help,
                task=_FIRST_DAYS.get(argument, ""), is_ours=not asked.is_torchruns, argument=argument,
            )  # fmt: skip
    return flags


def _reader(kind: Any, limits: Meta, most: float, *, is_seconds: bool) -> Read:
    """Return the reader of a setting. `most`: see `AskedBy`."""
    if get_origin(kind) is Literal:
        return one_of(*get_args(kind))
    if kind not in (int, float):
        return switch if kind is bool else codes
    assert limits.ge is not None
    assert limits.le is not None
    if kind is int:
        return whole(int(limits.ge), int(limits.le))
    return number(limits.ge, min(limits.le, most), is_seconds=is_seconds)


def _setting(argument: str) -> str:
    """Return the name of the setting that an argument asks for."""
    return argument if argument in RunSettings.__struct_fields__ else f"{argument}_s"


_FIRST_DAYS = {"max_restarts": RESTART, "join_timeout": RESTART, "on_hang": WATCH}
"""Flags of the run's settings that --help shows, each with its task."""
_BEFORE_SETTINGS = "exit_with_run"
"""Argument after which --help shows the flags of the run's settings."""
OF_THE_RUN: dict[str, Flag] = _of_the_run()


def _all() -> dict[str, Flag]:
    """Return all arguments, in the order of --help."""
    found, order = _flags(Arguments) | OF_THE_RUN, list(Arguments.__annotations__)
    place = order.index(_BEFORE_SETTINGS) + 1
    order[place:place] = OF_THE_RUN
    for kind in OPTIONS:
        found |= (flags := _flags(kind))
        place = order.index(kind.after) + 1
        order[place:place] = flags
    return {argument: found[argument] for argument in order if argument in found}


ALL: dict[str, Flag] = _all()
FLAGS: dict[str, Flag] = {argument: flag for argument, flag in ALL.items() if flag.help}
SETTINGS: dict[str, Flag] = {argument: flag for argument, flag in ALL.items() if flag.is_ours or flag.is_key}
"""Arguments that `--rdzv-conf`, or a program's `rdzv_configs`, may give under their own names."""
ALIASES = {flag.alias.removeprefix("--").replace("-", "_"): flag for flag in FLAGS.values() if flag.alias}
"""Flags by the names that torchrun does not have. `--rdzv-conf` cannot use these names."""
HEADINGS = {
    "rdzv_endpoint": "where the nodes of the run meet",
    "token_file": "security",
    "nproc_per_node": "this node",
    "max_restarts": "failures and membership (the same on every agent)",
    "progress_timeout": "hangs and slow nodes (docs/how-to/detect-hangs.md)",
    "log_dir": "output",
    "module": "what the workers execute",
    "monitor_interval": "torchrun's flags without effect",
}
"""Headings of --help, each by the flag that follows it."""


def make(given: Given, script: str = "", args: Sequence[str] = (), terms: Mapping[str, str] | None = None) -> Arguments:
    """Read the given values. `--rdzv-conf` supplies arguments without a flag. Raises `UsageError` with the source.

    Unknown keys in `--rdzv-conf` are ignored, as by torchrun, but reported. A key of ours that cannot be used is
    refused. `--rdzv-conf` on the command line takes precedence over a variable.
    """
    counting = {argument: each for argument, each in given.items() if not _is_void(argument, given)}
    values = {argument: read(argument, *each) for argument, each in counting.items()}
    sources = {argument: source for argument, (source, _) in counting.items()}
    ignored = []
    for written, value in cast(Mapping[str, object], values.get("rdzv_conf", {})).items():
        key = _key(written)
        if key in ALIASES:
            instead = (terms or {}).get(ALIASES[key].argument, ALIASES[key].alias)
            raise UsageError(words.cli.key_has_another_name(sources["rdzv_conf"], key, instead))
        if key not in SETTINGS or (key == "timeout" and values.get("rdzv_backend") == "c10d"):
            ignored.append(key)
        elif key not in given or _is_variable(sources[key]) > _is_variable(sources["rdzv_conf"]):
            sources[key] = f"{sources['rdzv_conf']}: {key}"
            values[key] = read(key, sources[key], value)
    given_none = Arguments(script=script, args=tuple(args), ignored=tuple(ignored), terms=terms or {})
    return given_none.filled(values, sources)


def _key(written: str) -> str:
    """Return a key of `--rdzv-conf`, which may be written with dashes, as a flag is."""
    name = written.replace("-", "_")
    return name if name in SETTINGS else written


def _is_void(argument: str, given: Given) -> bool:
    """Return whether an invalid value has no effect beside the other arguments, so that torchrun runs.

    A number that torchrun's parser refuses always has an effect.
    """
    if argument not in _PLACES:
        return False
    text, endpoint, backend = (
        str(given.get(each, ("", ""))[1]) for each in (argument, "rdzv_endpoint", "rdzv_backend")
    )
    with suppress(ValueError):
        ALL[argument].read(given[argument][1])
        return False
    if argument in ("master_port", "node_rank") and not text.removeprefix("-").isdecimal():
        return False
    if "standalone" in given and read("standalone", *given["standalone"]):
        return True
    is_elsewhere = bool(endpoint) and endpoint != "auto"
    return argument in ("master_addr", "master_port") and (is_elsewhere or backend not in ("", "static"))


_PLACES = ("rdzv_backend", "master_addr", "master_port", "node_rank")
"""Arguments about the rendezvous of several nodes. The endpoint is checked where it is used."""


def from_variables(environment: Mapping[str, str], flags: Mapping[str, Flag]) -> Given:
    """Return the arguments in `PET_*` variables, which Kubernetes operators set and workers inherit.

    An empty variable counts as not set.
    """
    given = {name: value for name, value in environment.items() if value.strip()}
    known = [(argument, variable) for argument, flag in flags.items() for variable in reversed(flag.variables)]
    return {argument: (variable, given[variable]) for argument, variable in known if variable in given}


def _is_variable(source: str) -> bool:
    return source.startswith("PET_")


def read(argument: str, source: str, value: object) -> object:
    """Return the value of an argument. Raises `UsageError`, which names `source`."""
    try:
        return ALL[argument].read(value)
    except ValueError as error:
        raise UsageError(protocol_words.flags.bad_value(source, str(error))) from None
