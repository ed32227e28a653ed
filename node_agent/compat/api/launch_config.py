"""`LaunchConfig`: a program's launch options, with torch's names and defaults, and the agent's plan from them."""

import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from msgspec.structs import replace

from node_agent import words
from node_agent.cli import arguments, rendezvous
from node_agent.cli.arguments import FLAGS, Arguments, make
from node_agent.cli.plan import plan_launch
from node_agent.compat.api.children import StartMethod
from node_agent.compat.api.default_logs_specs import AnyLogsSpecs, DefaultLogsSpecs, LogsSpecs, understood
from node_agent.compat.api.entrypoint import cpu_sets
from node_agent.features.numa import NumaBinding
from node_agent.kernel.config import LaunchPlan, UsageError
from node_agent.kernel.core.command import Command

SHUTDOWN_TIMEOUT = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
SHUTDOWN_TIMEOUT_S = 30


@dataclass
class LaunchConfig:
    """Options of `elastic_launch`: the fields, names and defaults of torch's `LaunchConfig`.

    With one node and no endpoint, or port 0, the run needs no separate server: the server is in this process. Otherwise
    every node's `rdzv_endpoint` is the address of rdzv-server. With the backends c10d and static, a node hosts the
    server there if none is running, as under torchrun.
    """

    min_nodes: int
    """Fewest nodes with which the run starts."""
    max_nodes: int
    """Most nodes of a round. Further agents wait as spares."""
    nproc_per_node: int
    """Workers on this node."""
    logs_specs: AnyLogsSpecs | None = None
    """Destination of output: a `DefaultLogsSpecs` or another `LogsSpecs`, ours or torch's. None for the console."""
    run_id: str = ""
    """Id of the run. Agents with the same id are one run. Empty for node-agent's default."""
    role: str = "default_role"
    """Name of the workers."""
    rdzv_endpoint: str = ""
    """`HOST:PORT` of the server, or of the node that hosts it. With auto, or auto@HOST:PORT, a scheduler's variables
    supply the values that are not set here."""
    rdzv_backend: str = "etcd"
    """Backend: one of torchrun's, or rdzv-server. rdzv-server serves all of them."""
    rdzv_configs: dict[str, Any] = field(default_factory=dict)
    """Options. torch's: join_timeout, last_call_timeout, close_timeout, read_timeout, keep_alive_interval,
    keep_alive_max_attempt, is_host, rank; with static also master_addr and master_port.

    Ours: every flag of node-agent that torchrun does not have, by its name with underscores, such as progress_timeout,
    silence_timeout, fatal_rule, notice_timeout, check, node_id or token_file. A flag that may be repeated takes a list.
    Flags about the program itself are refused: check_only, exit_with_run, log_format, preload. A missing flag falls
    back to its variable, such as PET_PROGRESS_TIMEOUT."""
    rdzv_timeout: int = -1
    """torch's older name for `rdzv_configs["timeout"]`, -1 if not given."""
    max_restarts: int = 3
    """Restarts of the run after worker failures. Membership changes are free."""
    monitor_interval: float = 0.1
    """torch's polling interval. No effect, because the agent does not poll."""
    start_method: StartMethod = "spawn"
    """Start method of functions: spawn, fork or forkserver."""
    log_line_prefix_template: str | None = None
    """Beginning of teed lines, with `${role_name}`, `${rank}`, `${local_rank}`. None for `[<role><local_rank>]:`."""
    metrics_cfg: dict[str, str] = field(default_factory=dict)
    """torch's metrics settings. No effect, as in torch: rdzv-server has the metrics."""
    local_addr: str | None = None
    """Address at which other nodes reach this one. None for the address from which it reaches the server."""
    event_log_handler: str = "null"
    """Destination of torchrun's events: null, console, or a name in torch's `events.handlers._log_handlers`."""
    numa_options: Any = None
    """torch's `NumaOptions`, or one of node, socket, exclusive, core-complex. None to run workers on any CPU."""
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    """Signals that end the workers and then raise `SignalException`. SIGINT raises `KeyboardInterrupt`, as usual."""
    duplicate_stdout_filters: list[str] | None = None
    """Texts to search for. Lines of stdout with one of them are copied to `filtered_stdout.log`."""
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    """Whether each worker has LOCAL_RANK 0 and sees only its own GPU, as device 0."""
    shutdown_timeout: int | None = None
    """Seconds from SIGTERM to SIGKILL, also for a restart. None for TORCH_ELASTIC_SHUTDOWN_TIMEOUT, or 30."""
    exit_barrier_timeout: float | None = None
    """Proposed for torch. No effect: a node whose workers have finished waits as long as the run lasts."""

    def __post_init__(self) -> None:
        if self.logs_specs is None:
            self.logs_specs = DefaultLogsSpecs()
        if self.rdzv_timeout != -1:
            self.rdzv_configs["timeout"] = self.rdzv_timeout
        if self.shutdown_timeout is None:
            self.shutdown_timeout = int(os.environ.get(SHUTDOWN_TIMEOUT, SHUTDOWN_TIMEOUT_S))
        if self.shutdown_timeout < 0:
            raise ValueError(words.api.not_seconds("shutdown_timeout", self.shutdown_timeout))


def as_ours(config: Any) -> LaunchConfig:
    """Return torch's `LaunchConfig` as ours, which has the same fields. Raises `TypeError` for other objects."""
    if isinstance(config, LaunchConfig):
        return config
    given = {each.name: getattr(config, each.name) for each in fields(LaunchConfig) if hasattr(config, each.name)}
    if "nproc_per_node" not in given:
        raise TypeError(words.api.not_launch_config(config))
    return LaunchConfig(**given)


class Plan(NamedTuple):
    """A `LaunchConfig`, checked."""

    launch: LaunchPlan
    custom_logs: LogsSpecs | None
    """The program's own class that names the files. None if the agent's options suffice."""
    events: Callable[[str], None] | None
    """Destination of events that the program has registered with torch. None for the agent's own, or none."""


def make_plan(config: LaunchConfig, title: str) -> Plan:
    """Return the plan of an agent. Raises `ValueError` or `TypeError`, with one line that names the field."""
    if config.monitor_interval <= 0:
        raise ValueError(words.api.not_seconds_above_0("monitor_interval", config.monitor_interval))
    specs, custom = understood(config.logs_specs)
    try:
        launch = plan_launch(arguments_of(config, specs), os.environ)
    except UsageError as error:
        raise ValueError(str(error)) from None
    join, numa_options = launch.config.join, config.numa_options
    numa = NumaBinding(cpus=cpu_sets(numa_options, launch.config.environment, join.local_world_size))
    agent = replace(
        launch.config,
        command=Command((title,)),
        limits_threads=False,
        status_page=False,
        signals=(),
        program_signals=launch.config.signals,
        # also for one node, where torchrun would generate a name
        join=replace(join, run_id=config.run_id or join.run_id),
        features=tuple(numa if isinstance(each, NumaBinding) else each for each in launch.config.features),
    )
    return Plan(replace(launch, config=agent), custom, registered_events(config))


def registered_events(config: LaunchConfig) -> Callable[[str], None] | None:
    """Return a function that passes events to the handler that this program has registered with torch by that name."""
    name = config.event_log_handler
    handlers = getattr(sys.modules.get("torch.distributed.elastic.events.handlers"), "_log_handlers", {})
    if name in ("null", "console") or name not in handlers:
        return None
    handler: logging.Handler = handlers[name]

    def write(line: str) -> None:
        handler.handle(logging.LogRecord("torchelastic-events", logging.INFO, __file__, 0, line, None, None))

    return write


def arguments_of(config: LaunchConfig, specs: DefaultLogsSpecs) -> Arguments:
    """Return the fields as arguments, under their own names. Raises `UsageError`."""
    configs = dict(config.rdzv_configs)
    if useless := sorted(configs.keys() & _COMMANDS):
        raise UsageError(words.api.only_for_the_program(useless[0]))
    values: dict[str, object] = {name: getattr(config, name) for name in _SAME_NAMES}
    if rendezvous.is_auto(config.rdzv_endpoint or "") and config.rdzv_backend in ("etcd", "rdzv-server"):
        del values["rdzv_backend"]
    values |= {"rdzv_id": config.run_id or None, "node_rank": configs.pop("rank", None)}
    values |= {"rdzv_conf": configs, "standalone": _is_alone(config), "nnodes": (config.min_nodes, config.max_nodes)}
    values |= {name: getattr(specs, name) for name in _LOGS}
    if registered_events(config):
        del values["event_log_handler"]
    given = {name: (_TERMS.get(name, name), value) for name, value in values.items() if value is not None}
    from_variables = arguments.from_variables(os.environ, _OURS)
    return make({**from_variables, **given}, terms={name: _TERMS.get(name, name) for name in FLAGS})


def _is_alone(config: LaunchConfig) -> bool:
    """Return whether the run needs no separate server: one node without a port. torch's default, etcd, needs one."""
    endpoint = (config.rdzv_endpoint or "").strip()
    is_placed = config.rdzv_backend == "static" and config.rdzv_configs.keys() & {"master_addr", "master_port"}
    is_one = (config.min_nodes, config.max_nodes) == (1, 1) and endpoint.rpartition(":")[2] in ("", "0")
    return is_one and not is_placed and not rendezvous.is_auto(endpoint)


_SAME_NAMES = {field.name for field in fields(LaunchConfig)} & (
    FLAGS.keys() - {"logs_specs", "monitor_interval", "start_method"}
)
"""Fields with the same name and meaning as their flags."""
_COMMANDS = {name for name, flag in FLAGS.items() if flag.is_commands}
_OURS = {
    name: flag
    for name, flag in FLAGS.items()
    if flag.is_ours and not flag.is_commands and name not in _SAME_NAMES and not flag.variable
}
"""Flags that a program may give as variables. For the facts in torch's fields, torch reads no variables."""
_LOGS = ("log_dir", "redirects", "tee", "local_ranks_filter")
_TERMS = {
    "nnodes": "min_nodes, max_nodes",
    "rdzv_id": "run_id",
    "rdzv_conf": "rdzv_configs",
} | {name: f"logs_specs: {name}" for name in _LOGS}
