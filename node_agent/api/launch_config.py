"""`LaunchConfig`: what a program asks of a run, with torch's names and defaults, and what that is to the agent."""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from node_agent.api.children import START_METHODS, StartMethod
from node_agent.api.default_logs_specs import AnyLogsSpecs, DefaultLogsSpecs, LogsSpecs, understood
from node_agent.api.entrypoint import cpu_sets
from node_agent.cli.plan import plan_launch
from node_agent.config import AgentConfig, LaunchPlan, UsageError
from node_agent.core.command import Command
from node_agent.core.log_options import Std
from node_agent.output.line_prefix import PREFIX_TEMPLATE

LONGEST_RUN_ID = 128
SHUTDOWN_TIMEOUT = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
SHUTDOWN_TIMEOUT_S = 30
FROM_COMMAND_LINES = ("PET_", "TORCH_ELASTIC_")
"""Variables that stand in for flags, not for what a program says or leaves out."""

OWN_KEYS = (
    "node_id", "node_rank", "rank", "token_file", "tls_ca", "tls_cert", "tls_key", "connect_timeout",
    "server_lost_timeout", "lease", "disconnect_grace", "scale_up", "fatal_exit_codes",
)  # fmt: skip
"""Flags of `node-agent` that torch has no field for: they stand in `rdzv_configs`, as `rerun` does."""


@dataclass
class LaunchConfig:
    """What `elastic_launch` is asked for: the fields, names and defaults of torch's `LaunchConfig`.

    With one node and no endpoint, or port 0, the run needs no server: it is in this process. Otherwise every node's
    `rdzv_endpoint` is where rdzv-server listens; with the backends c10d and static it is hosted there, as under
    torchrun, if it is not there already.
    """

    min_nodes: int
    """Nodes without which the run waits."""
    max_nodes: int
    """Nodes beyond which an agent stands by."""
    nproc_per_node: int
    """Workers on this node."""
    logs_specs: AnyLogsSpecs | None = None
    """Where output goes: a `DefaultLogsSpecs`, ours or torch's, or torch's `LogsSpecs`; None: to the console."""
    run_id: str = ""
    """Names the run; agents with one id are one run. Empty: the node-agent's default."""
    role: str = "default_role"
    """What the workers are called."""
    rdzv_endpoint: str = ""
    """`HOST:PORT`."""
    rdzv_backend: str = "etcd"
    """One of torchrun's, or rdzv-server: every one is served by rdzv-server."""
    rdzv_configs: dict[str, Any] = field(default_factory=dict)
    """torch's: join_timeout, last_call_timeout, close_timeout, read_timeout, keep_alive_interval,
    keep_alive_max_attempt, is_host, rank. Ours besides, as the flags of node-agent: node_id, node_rank, token_file,
    tls_ca, tls_cert, tls_key, connect_timeout, server_lost_timeout, lease, disconnect_grace, scale_up,
    fatal_exit_codes, rerun."""
    rdzv_timeout: int = -1
    """torch's older name of `rdzv_configs["timeout"]`; -1: not given."""
    max_restarts: int = 3
    """Restarts of the run after worker failures; membership changes are free."""
    monitor_interval: float = 0.1
    """Has no effect: nothing is polled."""
    start_method: StartMethod = "spawn"
    """How functions are started: spawn, fork or forkserver."""
    log_line_prefix_template: str | None = None
    """What teed lines begin with, of `${role_name}`, `${rank}`, `${local_rank}`; None: `[<role><local_rank>]:`."""
    metrics_cfg: dict[str, str] = field(default_factory=dict)
    """Only empty: rdzv-server has the metrics."""
    local_addr: str | None = None
    """Where other nodes reach this one; None: the address from which it reaches the server."""
    event_log_handler: str = "null"
    """torchrun's events: null or console."""
    numa_options: Any = None
    """torch's `NumaOptions`, or one of node, socket, exclusive, core-complex; None: workers run on any CPU."""
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    """Signals that end the workers, and then raise `SignalException`; SIGINT raises `KeyboardInterrupt`, as ever."""
    duplicate_stdout_filters: list[str] | None = None
    """Lines of stdout with one of these texts go to `filtered_stdout.log`, too."""
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    """Each worker has LOCAL_RANK 0 and sees its own GPU alone, as device 0."""
    shutdown_timeout: int | None = None
    """Seconds from SIGTERM to SIGKILL, also for a restart; None: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30."""

    def __post_init__(self) -> None:
        if self.rdzv_timeout != -1:
            self.rdzv_configs["timeout"] = self.rdzv_timeout
        if self.shutdown_timeout is None:
            self.shutdown_timeout = int(os.environ.get(SHUTDOWN_TIMEOUT, SHUTDOWN_TIMEOUT_S))
        if self.shutdown_timeout < 0:
            raise ValueError(f"shutdown_timeout: a number of seconds, not {self.shutdown_timeout}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A `LaunchConfig`, checked."""

    launch: LaunchPlan
    """Where the agent goes; its `config` has been replaced."""
    config: AgentConfig
    signals: tuple[str, ...]
    start_method: StartMethod
    custom_logs: LogsSpecs | None
    """A class of the program's own, which names the files; None: the agent's options say it all."""


def make_plan(config: LaunchConfig, title: str) -> Plan:
    """What the agent is to do. Raises `ValueError` or `TypeError`, with one line that names the field."""
    if config.metrics_cfg:
        raise ValueError("metrics_cfg: leave it empty; rdzv-server serves the metrics of its runs")
    if config.monitor_interval <= 0:
        raise ValueError(f"monitor_interval: a number of seconds above 0, not {config.monitor_interval!r}")
    if config.start_method not in START_METHODS:
        raise ValueError(f"start_method: {', '.join(START_METHODS)}; not {config.start_method!r}")
    specs, custom = understood(config.logs_specs)
    asked_of = {name: value for name, value in os.environ.items() if not name.startswith(FROM_COMMAND_LINES)}
    try:
        launch = plan_launch([*_flags(config, specs), "--no-python", sys.executable or "/proc/self/exe"], asked_of)
    except UsageError as error:
        raise ValueError(_in_our_terms(str(error))) from None
    environment = {**os.environ, **launch.config.environment}
    if config.log_line_prefix_template is not None:
        environment[PREFIX_TEMPLATE] = config.log_line_prefix_template
    agent = replace(
        launch.config,
        command=Command((title,)),
        signals=(),  # the main thread has them, and not the agent's
        run_id=_run_id(config, launch),
        cpus=cpu_sets(config.numa_options, environment, launch.config.nproc),
        environment=environment,
    )
    return Plan(
        launch=launch, config=agent, signals=launch.config.signals, start_method=config.start_method, custom_logs=custom
    )


def _run_id(config: LaunchConfig, launch: LaunchPlan) -> str:
    """A program names its run, also that of this node alone, which torchrun's `--standalone` would name for it."""
    if len(config.run_id) > LONGEST_RUN_ID or not config.run_id.isprintable():
        raise ValueError(f"run_id: at most {LONGEST_RUN_ID} printable characters, not {config.run_id!r:.60}")
    return config.run_id or launch.config.run_id


def _flags(config: LaunchConfig, specs: DefaultLogsSpecs) -> Iterator[str]:
    """The command line that asks for the same."""
    configs = {key: value for key, value in config.rdzv_configs.items() if value is not None}
    for flag, value in _values(config).items():
        yield f"--{flag}={value}"
    if _is_alone(config):
        yield "--standalone"
    else:
        yield f"--nnodes={config.min_nodes}:{config.max_nodes}"
        yield from _where(config)
    if configs.pop("rerun", False):
        yield "--rerun"
    for key in OWN_KEYS:
        if key in configs:
            yield f"--{'node-rank' if key == 'rank' else key.replace('_', '-')}={_text(configs.pop(key))}"
    if configs:
        yield f"--rdzv-conf={','.join(f'{key}={_one(key, value)}' for key, value in configs.items())}"
    if config.virtual_local_rank:
        yield "--virtual-local-rank"
    yield from _log_flags(config, specs)


def _values(config: LaunchConfig) -> dict[str, Any]:
    return {
        "nproc-per-node": config.nproc_per_node,
        "role": config.role,
        "max-restarts": config.max_restarts,
        "event-log-handler": config.event_log_handler,
        "signals-to-handle": config.signals_to_handle,
        "shutdown-timeout": config.shutdown_timeout,
        "local-addr": config.local_addr or "",
    }


def _is_alone(config: LaunchConfig) -> bool:
    """torch's default backend is etcd, which needs a server even for one node. Ours does without."""
    return (config.min_nodes, config.max_nodes) == (1, 1) and config.rdzv_endpoint.strip().rpartition(":")[2] in (
        "",
        "0",
    )


def _where(config: LaunchConfig) -> Iterator[str]:
    yield f"--rdzv-backend={config.rdzv_backend}"
    if config.rdzv_endpoint:
        yield f"--rdzv-endpoint={config.rdzv_endpoint}"
    if config.run_id:
        yield f"--rdzv-id={config.run_id}"


def _log_flags(config: LaunchConfig, specs: DefaultLogsSpecs) -> Iterator[str]:
    if specs.log_dir is not None:
        yield f"--log-dir={specs.log_dir}"
    yield f"--redirects={_streams(specs.redirects)}"
    yield f"--tee={_streams(specs.tee)}"
    if specs.local_ranks_filter:
        yield f"--local-ranks-filter={','.join(map(str, sorted(specs.local_ranks_filter)))}"
    for flag in ("duplicate_stdout_filters", "duplicate_stderr_filters"):
        if texts := getattr(config, flag):
            yield f"--{flag}={','.join(text.replace(',', ',,') for text in texts)}"


def _streams(streams: Std | Mapping[int, Std]) -> str:
    if isinstance(streams, Std):
        return str(int(streams))
    return ",".join(f"{rank}:{int(stream)}" for rank, stream in streams.items()) or "0"


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple | set | frozenset) else str(value)


def _one(key: str, value: Any) -> str:
    if "," in (text := str(value)):
        raise ValueError(f"rdzv_configs[{key!r}]: no commas, not {text!r:.80}")
    return text


_NAMES = {
    "nnodes": "min_nodes, max_nodes",
    "rdzv-id": "run_id",
    "rdzv-conf": "rdzv_configs",
    "tee": "logs_specs: tee",
} | {name: f"logs_specs: {name.replace('-', '_')}" for name in ("log-dir", "redirects", "local-ranks-filter")}


def _in_our_terms(message: str) -> str:
    """The field's name instead of the flag's."""
    message = message.removesuffix(" (node-agent --help explains every flag)")
    message = message.replace("needs --endpoint HOST:PORT", "needs rdzv_endpoint=HOST:PORT")
    return re.sub(r"--([a-z][a-z_-]*[a-z])", lambda flag: _NAMES.get(flag[1], flag[1].replace("-", "_")), message)
