"""Makes an agent's launch plan from its arguments."""

import os
import sys
from collections.abc import Iterator, Mapping
from errno import EMFILE
from functools import partial
from math import inf
from time import time
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from rdzv_protocol import words as protocol_words
from rdzv_protocol.credentials import Credentials
from rdzv_protocol.flag_values import address
from rdzv_protocol.log_lines import LineFormat, lowest_level
from rdzv_protocol.messages import JoinRequest
from rdzv_protocol.settings import LONGEST_LEASE_S, SHORTEST_LEASE_S, RequestedSettings

from node_agent import words
from node_agent.cli import rendezvous, worker_command
from node_agent.cli.arguments import ALL, FLAGS, SETTINGS, Arguments
from node_agent.flags import LONGEST_SORT_KEY, NVLINK, Nodes, known_signals, sort_key
from node_agent.kernel.config import PROGRAM, SIDE_BY_SIDE, AgentConfig, LaunchPlan, Target, UsageError
from node_agent.kernel.core.command import Command
from node_agent.kernel.core.effects import Level
from node_agent.kernel.core.log_options import NO_FILES, PREFIX_TEMPLATE, LogOptions
from node_agent.kernel.output.folder import why_unusable
from node_agent.kernel.output.routing import streams_to_files
from node_agent.kernel.processes.system_calls import why_no_pidfd
from node_agent.kernel.workers import nesting

if TYPE_CHECKING:
    from rdzv_protocol.tls_files import TlsFiles

    from node_agent.kernel.workers.devices import Devices

SIGNALS_VARIABLE = "TORCHELASTIC_SIGNALS_TO_HANDLE"
"""Variable with which torchrun passes `--signals-to-handle` to its workers."""
AGENT_FILES, WORKER_FILES = 15, 4
"""Descriptors of the agent itself, and of a worker: its process, its progress, and a pipe or a file for each stream."""
CONNECT_TIMEOUT_S, CLOSE_TIMEOUT_S = 300.0, 2.0
NO_RUN_ID = "none"
"""Default of `--rdzv-id`, as in torchrun."""
SAME_NAMES = {
    name: name.removesuffix("_s") for name in RequestedSettings.__struct_fields__ if name.removesuffix("_s") in ALL
}
"""Settings of the run that an argument sets, with the argument's name, which is the same without the unit."""
HEALTH_CHECK_PORT = "TORCHELASTIC_HEALTH_CHECK_PORT"
TLS_FILES = ("tls_ca", "tls_cert", "tls_key")


def plan_launch(arguments: Arguments, environment: Mapping[str, str], *, use_env: bool = True) -> LaunchPlan:
    """Check the arguments together and return the plan. Without a script, the caller must add the command.

    `use_env`: False for `torch.distributed.launch`, unless --use-env is given. Raises `UsageError`.
    """
    use_env = use_env or arguments.use_env
    worker_command.check_flags(arguments, use_env=use_env)
    if not arguments.rdzv_id and arguments.source("rdzv_id") == "--run-id":  # torchrun's own flag may be empty
        raise UsageError(f"--run-id: {words.values.not_a_name('')}")
    found, inherited = None, environment
    if rendezvous.is_for_the_scheduler(arguments):
        from node_agent.cli import schedulers

        found = schedulers.find(arguments, environment)
        arguments, target, inherited = found.arguments, found.target, found.environment
    else:
        target = rendezvous.find(arguments)
        _check_loopback(arguments, target, environment)
    command = worker_command.find(arguments, environment, use_env=use_env) if arguments.script else Command(())
    devices = _devices(arguments, inherited)
    config = _config(arguments, target, inherited, command, devices)
    for check in (_check_surroundings, _check_nesting, _check_devices, _check_descriptors, _check_port):
        check(arguments, config)
    if found:
        notes = [found.line, *rendezvous.ignored_master(arguments, target)]
    else:
        notes = rendezvous.notes(arguments, target, environment)
    about_proc = [] if os.path.exists("/proc/self") else [words.plan.NO_PROC]
    key, about_topology = _topology(arguments, found.sort_key if found else "", inherited)
    lines, about_lines = _own_lines(arguments, environment)
    config = replace(
        config, lines=lines, worker_variables=found.workers if found else {}, join=replace(config.join, sort_key=key)
    )
    plan = LaunchPlan(
        config=config,
        target=target,
        credentials=credentials(arguments, target),
        notes=(*notes, *about_topology, *_void(arguments, config), *_variables(environment), *about_proc, *about_lines),
        has_torchruns_exit_codes=not rendezvous.is_our_endpoint(arguments) and not arguments.terms,
        pci_addresses=devices.pci_addresses if devices else None,
    )
    return _with_features(plan, arguments)


def _topology(arguments: Arguments, by_scheduler: str, environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return the text by which this node is sorted, and lines about its NVLink domain.

    `by_scheduler`: the text that the scheduler gives.
    """
    if arguments.topology != NVLINK:
        return sort_key(arguments.topology) or by_scheduler, []
    from node_agent.cli import nvlink

    found = nvlink.find(environment)
    key = f"{sort_key(found.domain)}/{by_scheduler}" if found.domain else by_scheduler
    return key[:LONGEST_SORT_KEY], [found.line]


def _with_features(plan: LaunchPlan, arguments: Arguments) -> LaunchPlan:
    """Return the plan with the features' options, checked together with it. Raises `UsageError`."""
    features = tuple(each.completed(plan, arguments.source) for each in arguments.features)
    notes = [note for each in features for note in each.notes(plan, arguments.source)]
    join = replace(plan.config.join, watches=tuple(source for each in features for source in each.watches))
    config = replace(plan.config, join=join, features=features)
    return replace(plan, config=config, notes=(*plan.notes, *notes))


def _void(arguments: Arguments, config: AgentConfig) -> Iterator[str]:
    """Yield lines about values that have no effect, or less than the user asked for."""
    unknown = [each for each in arguments.signals_to_handle if each not in config.signals]
    for argument, given in (("signals_to_handle", unknown), ("rdzv_conf", arguments.ignored)):
        if given:
            yield words.cli.unknown_keys(arguments.source(argument), given, "".join(map(_instead_of_key, given)))
    settings = config.join.settings
    if settings.scale_up_cooldown_s is not None and settings.scale_up != "cooldown":
        yield words.plan.cooldown_alone(arguments.source("scale_up_cooldown"))


def _instead_of_key(key: str) -> str:
    """Return the end of a sentence about the key or the flag that the user probably meant."""
    if (flag := FLAGS.get(key.replace("-", "_"))) and flag.argument not in SETTINGS:
        return words.cli.key_is_a_flag(flag.names[-1])
    return protocol_words.flags.did_you_mean(key, SETTINGS, 0.75)


def _variables(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each variable that resembles one of a flag, and for one of torch's that has no effect here.

    Other programs may read further `PET_` variables.
    """
    if environment.get(HEALTH_CHECK_PORT, "").strip():
        yield words.plan.no_health_check(HEALTH_CHECK_PORT)
    given = {name for name, value in environment.items() if name.startswith("PET_") and value.strip()}
    if not given:
        return
    known = {f"PET_{argument.upper()}" for argument in FLAGS}
    known |= {variable for flag in FLAGS.values() for variable in flag.variables}
    for name in sorted(given - known):
        if meant := protocol_words.flags.did_you_mean(name, known, 0.88):
            yield words.cli.misspelt_variable(name, meant)


def _config(
    arguments: Arguments, target: Target, environment: Mapping[str, str], command: Command, devices: "Devices | None"
) -> AgentConfig:
    connect_timeout_s = first(arguments.connect_timeout, arguments.read_timeout, CONNECT_TIMEOUT_S)
    lost_after_s = connect_timeout_s if target.is_on_a_node else inf
    names = known_signals(arguments.signals_to_handle)
    inherited = nesting.without_outer(environment)
    for variable in (variable for flag in FLAGS.values() if flag.is_for_one for variable in flag.variables):
        inherited.pop(variable, None)
    added = {SIGNALS_VARIABLE: ",".join(names)}
    if arguments.log_line_prefix_template is not None:
        added[PREFIX_TEMPLATE] = arguments.log_line_prefix_template
    return AgentConfig(
        command=command,
        join=JoinRequest(
            run_id=os.urandom(8).hex() if target.has_id_of_its_own else arguments.rdzv_id or NO_RUN_ID,
            explicit_run_id=not target.has_id_of_its_own and arguments.rdzv_id not in ("", NO_RUN_ID),
            rerun=arguments.rerun,
            node_id=arguments.node_id or os.uname().nodename,
            local_world_size=_workers(arguments, devices),
            role=arguments.role,
            node_rank=target.node_rank,
            preferred_rank=target.preferred_rank,
            addr=target.local_addr or "",
            settings=settings(arguments, alone=target.endpoint is None),
            content=worker_command.content(arguments.script, arguments.args),
            folder=worker_command.folder(),
            agent_id="",
            after_round=0,
            port=0,
        ),
        master_port=target.master_port,
        logs=_log_options(arguments),
        virtual_local_rank=arguments.virtual_local_rank,
        signals=names,
        shutdown_timeout_s=arguments.shutdown_timeout,
        connect_timeout_s=connect_timeout_s,
        server_lost_timeout_s=first(arguments.server_lost_timeout, lost_after_s),
        close_timeout_s=first(arguments.close_timeout, CLOSE_TIMEOUT_S),
        backend="c10d" if target.has_id_of_its_own else rendezvous.backend(arguments),
        exits_when_excluded=arguments.exit_when_excluded,
        exits_with_run=arguments.exit_with_run,
        status_page=not arguments.no_status_page,
        servers=(target.endpoint, *target.others) if target.endpoint else (),
        environment={**inherited, **added},
    )


def _own_lines(arguments: Arguments, environment: Mapping[str, str]) -> tuple[LineFormat, list[str]]:
    """Return the format of the agent's own lines, and lines about a variable that could not be read."""
    is_json = arguments.log_format == "json"
    try:
        return LineFormat(PROGRAM, is_json, lowest_level(environment)), []
    except ValueError as error:
        return LineFormat(PROGRAM, is_json), [str(error)]


def _tell(arguments: Arguments, environment: Mapping[str, str], text: str) -> None:
    """Write one of the agent's own lines to stderr before there is an agent."""
    form, _ = _own_lines(arguments, environment)
    if form.lowest <= Level.NOTICE.number:
        print(form.line(text, Level.NOTICE.number, time(), {}), file=sys.stderr)  # noqa: T201


def settings(arguments: Arguments, *, alone: bool = False) -> RequestedSettings:
    """Return the run's settings that this node requests. Raises `UsageError`."""
    nodes = Nodes(1, 1) if alone else arguments.nnodes
    _check_unit(arguments, nodes)
    given: dict[str, Any] = {name: arguments.value(argument) for name, argument in SAME_NAMES.items()}
    asked = RequestedSettings(**given)
    return replace(
        asked,
        min_nodes=nodes and nodes.least,
        max_nodes=nodes and nodes.most,
        legal_sizes=(nodes and nodes.sizes) or None,
        fixed_nodes=None if alone else asked.fixed_nodes,
        join_timeout_s=arguments.timeout if asked.join_timeout_s is None else asked.join_timeout_s,
        lease_s=_lease_s(arguments),
    )


def _check_unit(arguments: Arguments, nodes: Nodes | None) -> None:
    unit = arguments.asked.node_unit
    if unit is None or unit == 1 or nodes is None:
        return
    source, nnodes = arguments.source("node_unit"), arguments.source("nnodes")
    if nodes.sizes:
        raise UsageError(words.plan.unit_and_sizes(source, nnodes))
    if nodes.most // unit * unit < nodes.least:
        raise UsageError(words.plan.no_multiple(source, unit, nodes.least, nodes.most, nnodes))


def _lease_s(arguments: Arguments) -> float | None:
    """Return the lease. torchrun's keep-alives have an interval, and a number of them may be missed."""
    asked_s: float | None = arguments.asked.lease_s
    if asked_s is not None or not arguments.sources.keys() & {"keep_alive_interval", "keep_alive_max_attempt"}:
        return asked_s
    lease_s = arguments.keep_alive_interval * arguments.keep_alive_max_attempt
    if not SHORTEST_LEASE_S <= lease_s <= LONGEST_LEASE_S:
        source = arguments.source("rdzv_conf")
        raise UsageError(words.plan.lease_out_of_bounds(source, SHORTEST_LEASE_S, LONGEST_LEASE_S, lease_s))
    return lease_s


def _devices(arguments: Arguments, environment: Mapping[str, str]) -> "Devices | None":
    """Return the accelerators that workers see, None if neither their number nor their PCI addresses are needed."""
    addresses = any(each.needs_pci_addresses for each in arguments.features)
    if isinstance(arguments.nproc_per_node, int) and not addresses:
        return None
    from node_agent.kernel.workers.devices import Devices

    return Devices(environment, partial(_tell, arguments, environment), addresses=addresses)


def _workers(arguments: Arguments, devices: "Devices | None") -> int:
    """Return the number of workers. Raises `UsageError`."""
    wanted = arguments.nproc_per_node
    if isinstance(wanted, int):
        return wanted
    from node_agent.kernel.workers.devices import DeviceError

    assert devices
    try:
        return devices.count_workers(wanted)
    except DeviceError as error:
        raise UsageError(
            protocol_words.flags.bad_value(f"{arguments.source('nproc_per_node')} {wanted}", str(error))
        ) from None


def _check_devices(arguments: Arguments, config: AgentConfig) -> None:
    """Refuse `--virtual-local-rank` if fewer GPUs than workers are visible: each worker needs its own GPU."""
    if not config.virtual_local_rank:
        return
    from node_agent.kernel.environment import hiding_variable, visible_devices

    name, visible = hiding_variable(config.environment), visible_devices(config.environment)
    workers = config.join.local_world_size
    if name and visible is not None and len(visible) < workers:
        source = arguments.source("virtual_local_rank")
        raise UsageError(words.plan.too_few_gpus(source, workers, name, config.environment[name], len(visible)))


def _check_surroundings(arguments: Arguments, config: AgentConfig) -> None:
    """Refuse an archive, a kernel or a container in which the agent could not watch workers or end what they leave.

    Python cannot start helper programs that are inside an archive.
    """
    if not os.path.isfile(__file__):
        raise UsageError(words.plan.in_an_archive(os.path.dirname(__file__)))
    if why := why_no_pidfd():
        raise UsageError(words.workers.no_pidfd(why))


def _check_descriptors(arguments: Arguments, config: AgentConfig) -> None:
    """Refuse a limit of open files that is too low for the workers, before any worker starts."""
    import resource

    workers = config.join.local_world_size
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    copies = bool(config.logs.stdout_filters) + bool(config.logs.stderr_filters)
    files = AGENT_FILES + workers * (WORKER_FILES + copies)
    # What goes to files is open twice, to write and to read, until the workers run; a copy until they are forked.
    files += streams_to_files(config.logs, workers) + copies * min(workers, SIDE_BY_SIDE)
    files += sum(each.descriptors(workers) for each in arguments.features)
    try:
        needed = len(os.listdir("/proc/self/fd")) + files
    except OSError as error:  # not even one more, or no /proc
        needed = files + (limit if error.errno == EMFILE else 0)
    if resource.RLIM_INFINITY != limit < needed:
        raise UsageError(words.plan.too_few_descriptors(limit, needed, workers))


def _check_port(arguments: Arguments, config: AgentConfig) -> None:
    """Refuse a port that the user chose and another program uses, before anything starts."""
    if config.master_port is None:
        return
    from node_agent.kernel.processes.ports import ReservedPort

    try:
        ReservedPort(config.master_port).release()
    except OSError as error:
        name = "rdzv_endpoint" if arguments.master_port is None else "master_port"
        is_endpoint = name == "rdzv_endpoint"
        raise UsageError(words.plan.port_taken(arguments.source(name), error, is_endpoint)) from None


def _check_nesting(arguments: Arguments, config: AgentConfig) -> None:
    """Refuse to join a run that this process is part of. The run and the worker would wait for each other."""
    places = {arguments.source(each) for each in ("rdzv_endpoint", "master_addr", "master_port")}
    inherited = sorted(each for each in places if each.startswith("PET_"))
    run_id, servers = config.join.run_id, config.servers
    if servers and nesting.is_part_of(config.environment, run_id, servers, is_inherited=bool(inherited)):
        alone = words.plan.no_endpoint(arguments.source("rdzv_endpoint")) if arguments.terms else "--standalone"
        rdzv_id = arguments.source("rdzv_id")
        raise UsageError(words.plan.own_run(inherited, run_id, address(*servers[0]), rdzv_id, alone))


def _check_loopback(arguments: Arguments, target: Target, environment: Mapping[str, str]) -> None:
    """Refuse loopback as our `--endpoint` in a job of several nodes: each node would look for the server on itself.

    Several agents on one machine may meet there, and torchrun's scripts name it on the head node (ADR 31).
    """
    if target.endpoint is None or not rendezvous.names_loopback(target.endpoint[0]):
        return
    if not rendezvous.is_our_endpoint(arguments) or arguments.most_nodes == 1:
        return
    from node_agent.cli import schedulers

    if job := schedulers.nodes_of_job(environment):
        source, (variable, nodes) = arguments.source("rdzv_endpoint"), job
        host = target.endpoint[0]
        raise UsageError(words.plan.loopback_of_several(source, arguments.rdzv_endpoint, host, nodes, variable))


def first(*values: float | None) -> float:
    """Return the first value that is not None. The last one is a default."""
    return next(value for value in values if value is not None)


# Credentials.


def credentials(arguments: Arguments, target: Target) -> Credentials:
    """Return the token and TLS settings after reading every file. Raises `UsageError`."""
    tls = _tls(arguments, target)
    try:
        found = Credentials(arguments.token_file, tls, arguments.own("token_file"))
    except ValueError as error:
        raise UsageError(f"{arguments.source('token_file')} {error}") from None
    try:
        found.context()
    except ValueError as error:
        raise UsageError(str(error)) from None
    except ImportError as error:  # Python was built on a machine without the headers of OpenSSL
        raise UsageError(protocol_words.tls.no_ssl("node-agent", str(error))) from None
    return found


def _tls(arguments: Arguments, target: Target) -> "TlsFiles | None":
    ca, cert, key = arguments.tls_ca, arguments.tls_cert, arguments.tls_key
    given = [argument for argument in TLS_FILES if getattr(arguments, argument) is not None]
    if not given and "https://" in arguments.rdzv_endpoint:
        raise UsageError(
            protocol_words.flags.https_without_ca(arguments.source("rdzv_endpoint"), arguments.own("tls_ca"))
        )
    if not given:
        return None
    first = arguments.source(given[0])
    if target.endpoint is None or target.is_on_a_node:
        raise UsageError(
            words.plan.no_tls_on_a_node(first, arguments.own("rdzv_endpoint"), arguments.own("rdzv_backend"))
        )
    if (cert is None) != (key is None):
        raise UsageError(
            protocol_words.flags.belong_together(arguments.source("tls_cert"), arguments.source("tls_key"))
        )
    if ca is None:
        raise UsageError(words.plan.tls_without_ca(first, arguments.own("tls_ca")))
    from rdzv_protocol.tls_files import TlsFiles, TlsNames

    return TlsFiles(ca, cert, key, TlsNames(*map(arguments.source, TLS_FILES)))


# Output.


def _log_options(arguments: Arguments) -> LogOptions:
    return LogOptions(
        log_dir=_log_dir(arguments) if arguments.logs_specs is None else arguments.log_dir or None,
        redirects=arguments.redirects,
        tee=arguments.tee,
        local_ranks=arguments.local_ranks_filter,
        ranks=arguments.ranks_filter,
        stdout_filters=arguments.duplicate_stdout_filters,
        stderr_filters=arguments.duplicate_stderr_filters,
        prefix=arguments.log_prefix,
        plugin=_logs_plugin(arguments),
    )


def _log_dir(arguments: Arguments) -> str | None:
    """Make and return the folder of log files, None if `--log-dir` was not given. Raises `UsageError`."""
    folder = arguments.log_dir
    if folder == NO_FILES:
        for argument in ("duplicate_stdout_filters", "duplicate_stderr_filters"):
            if getattr(arguments, argument):
                raise UsageError(words.plan.copies_without_files(arguments.source(argument), NO_FILES))
    elif folder and (problem := why_unusable(folder)):
        raise UsageError(words.plan.log_dir_unusable(arguments.source("log_dir"), problem, NO_FILES))
    return folder or None


def _logs_plugin(arguments: Arguments) -> str | None:
    """Return the name of the plug-in that chooses the log files and interprets their folder. Raises `UsageError`."""
    name = arguments.logs_specs
    if name is None:
        return None
    from importlib.metadata import entry_points

    known = sorted(point.name for point in entry_points(group="torchrun.logs_specs"))
    if name not in known:
        raise UsageError(words.plan.no_logs_specs(arguments.source("logs_specs"), name, known))
    return name
