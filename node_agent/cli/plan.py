"""The command line as the agent's configuration."""

import os
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from rdzv_protocol.settings import RequestedSettings

from node_agent.cli import rendezvous
from node_agent.cli.arguments import Asked, read
from node_agent.cli.credential_flags import credentials
from node_agent.cli.log_flags import log_options
from node_agent.cli.rdzv_conf import RdzvConf, parse
from node_agent.cli.worker_command import make_command
from node_agent.config import AgentConfig, LaunchPlan, Target, UsageError

SIGNALS_VARIABLE = "TORCHELASTIC_SIGNALS_TO_HANDLE"
"""torchrun's word to those whom it starts."""
CONNECT_TIMEOUT_S, FAREWELL_TIMEOUT_S = 300.0, 2.0
NO_RUN_ID = "none"
"""torchrun's `--rdzv-id` where none is given."""


def plan_launch(argv: Sequence[str], environment: Mapping[str, str], *, use_env: bool = True) -> LaunchPlan:
    """Read and check a command line. `use_env` False: as `torch.distributed.launch`, unless --use-env is given.

    Raises `UsageError`, and `SystemExit` after --help and --version.
    """
    asked = read(argv, environment)
    use_env = use_env or asked["use_env"]
    if asked["no_python"] and not use_env:
        raise UsageError("--no-python needs --use-env here: other programs are given no --local-rank")
    if asked["preload"] and asked["no_python"] and not asked["run_path"]:
        raise UsageError(f"{asked.source('preload')}: is for Python scripts, not with --no-python")
    conf = _rdzv_conf(asked)
    target = rendezvous.find(asked, conf)
    config = _config(asked, conf, target, environment, use_env)
    _check_devices(asked, config)
    _check_port(asked, config)
    return LaunchPlan(
        config=config, target=target, credentials=credentials(asked, target), notes=tuple(_notes(asked, conf))
    )


def _config(asked: Asked, conf: RdzvConf, target: Target, environment: Mapping[str, str], use_env: bool) -> AgentConfig:
    alone, nproc = target.endpoint is None, _nproc(asked, environment)
    connect_timeout_s = _first(asked["connect_timeout"], conf.connect_timeout_s, CONNECT_TIMEOUT_S)
    return AgentConfig(
        command=make_command(asked, environment, use_env=use_env),
        nproc=nproc,
        preload=asked["preload"],
        run_id=os.urandom(8).hex() if target.has_id_of_its_own else asked["rdzv_id"] or NO_RUN_ID,
        explicit_run_id=not target.has_id_of_its_own and asked["rdzv_id"] not in (None, NO_RUN_ID),
        rerun=asked["rerun"],
        node_id=asked["node_id"] or os.uname().nodename,
        role=asked["role"],
        node_rank=target.node_rank,
        preferred_rank=target.preferred_rank,
        local_addr=target.local_addr,
        master_port=target.master_port,
        settings=_settings(asked, conf, alone),
        logs=log_options(asked),
        virtual_local_rank=asked["virtual_local_rank"],
        cpus=_cpus(asked, nproc, environment),
        signals=asked["signals_to_handle"],
        shutdown_timeout_s=asked["shutdown_timeout"],
        connect_timeout_s=connect_timeout_s,
        server_lost_timeout_s=_first(asked["server_lost_timeout"], connect_timeout_s if target.is_on_a_node else inf),
        farewell_timeout_s=_first(conf.farewell_timeout_s, FAREWELL_TIMEOUT_S),
        event_log=asked["event_log_handler"],
        status_page=not asked["no_status_page"],
        environment={**environment, SIGNALS_VARIABLE: ",".join(asked["signals_to_handle"])},
    )


def _settings(asked: Asked, conf: RdzvConf, alone: bool) -> RequestedSettings:
    min_nodes, max_nodes = (1, 1) if alone else asked["nnodes"] or (None, None)
    return RequestedSettings(
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        max_restarts=asked["max_restarts"],
        join_timeout_s=_first(asked["join_timeout"], conf.join_timeout_s),
        last_call_timeout_s=_first(asked["last_call_timeout"], conf.last_call_timeout_s),
        lease_s=_first(asked["lease"], conf.lease_s),
        disconnect_grace_s=asked["disconnect_grace"],
        scale_up=asked["scale_up"],
        fatal_exit_codes=asked["fatal_exit_codes"],
    )


def _nproc(asked: Asked, environment: Mapping[str, str]) -> int:
    wanted = asked["nproc_per_node"]
    if isinstance(wanted, int):
        return wanted
    from node_agent.workers.devices import DeviceError, count_workers

    try:
        return count_workers(wanted, environment)
    except DeviceError as error:
        raise UsageError(f"{asked.source('nproc_per_node')} {wanted}: {error}") from None


def _cpus(asked: Asked, nproc: int, environment: Mapping[str, str]) -> tuple[frozenset[int], ...]:
    mode = asked["numa_binding"]
    if mode is None:
        return ()
    from node_agent.workers import devices, numa

    try:
        return tuple(numa.cpu_sets(mode, devices.gpu_pci_addresses(environment), nproc))
    except (devices.DeviceError, numa.NumaError) as error:
        raise UsageError(f"{asked.source('numa_binding')} {mode}: {error}") from None


def _rdzv_conf(asked: Asked) -> RdzvConf:
    text = asked["rdzv_conf"]
    return parse(text, asked.source("rdzv_conf"), rendezvous.backend(asked)) if text else RdzvConf()


def _check_devices(asked: Asked, config: AgentConfig) -> None:
    """Each worker of `--virtual-local-rank` needs a GPU of its own."""
    from node_agent.workers.environment import visible_devices

    visible = visible_devices(config.environment) if config.virtual_local_rank else None
    if visible is not None and len(visible) < config.nproc:
        raise UsageError(
            f"{asked.source('virtual_local_rank')}: {config.nproc} workers, but CUDA_VISIBLE_DEVICES="
            f"{config.environment['CUDA_VISIBLE_DEVICES']} has {len(visible)} GPUs"
        )


def _check_port(asked: Asked, config: AgentConfig) -> None:
    """A port of the user's own choice is said to be taken before anything starts."""
    if config.master_port is None:
        return
    from node_agent.workers.ports import ReservedPort

    try:
        ReservedPort(config.master_port).release()
    except OSError as error:
        name = "rdzv_endpoint" if asked["master_port"] is None else "master_port"
        instead = "; an rdzv-server that runs there is named by --endpoint" if name == "rdzv_endpoint" else ""
        raise UsageError(f"{asked.source(name)}: {error}; stop what uses it, or choose another{instead}") from None


def _notes(asked: Asked, conf: RdzvConf) -> list[str]:
    if not conf.ignored:
        return rendezvous.notes(asked)
    void = f"{asked.source('rdzv_conf')}: {', '.join(conf.ignored)} means nothing here and is left alone"
    return [*rendezvous.notes(asked), void]


def _first(*values: float | None) -> Any:
    """The first that somebody gave."""
    return next((value for value in values if value is not None), None)
