"""Reasons why a launch is not possible as requested: settings of the run, this node's means, credentials, output.

`source` is the flag, the variable or the field that gave a value. Other fields of this kind are named after their
argument.
"""

from collections.abc import Sequence

from rdzv_protocol.text import count

# Settings of the run.


def unit_and_sizes(source: str, nnodes: str) -> str:
    return f"{source}: {nnodes} already lists the legal sizes: give only one of the two"


def no_multiple(source: str, unit: int, least: int, most: int, nnodes: str) -> str:
    if least == most:
        return f"{source}: {nnodes} {most} is not a multiple of {unit}"
    return f"{source}: no multiple of {unit} lies between {least} and {most} nodes ({nnodes})"


def lease_out_of_bounds(source: str, least_s: float, most_s: float, lease_s: float) -> str:
    return (
        f"{source}: keep_alive_interval times keep_alive_max_attempt must be from {least_s:g} to {most_s:g} seconds, "
        f"not {lease_s:g}"
    )


# This node.


def too_few_gpus(source: str, workers: int, variable: str, value: str, gpus: int) -> str:
    return (
        f"{source}: {count(workers, 'worker')}, but {variable}={value} lists {count(gpus, 'GPU')}: list one for each "
        "worker"
    )


def in_an_archive(folder: str) -> str:
    return (
        f"this program is inside an archive ({folder}), where its helper programs cannot start: unpack the archive, "
        "or install the program with pip"
    )


def too_few_descriptors(limit: int, needed: int, workers: int) -> str:
    return (
        f"this process may open {limit} files, but needs {needed} for {count(workers, 'worker')}: raise the limit "
        f"(ulimit -n {needed})"
    )


NO_PROC = (
    "there is no /proc here, so this agent cannot end processes that workers leave behind, and workers cannot report "
    "progress: mount it (mount -t proc proc /proc)"
)


def no_health_check(variable: str) -> str:
    return (
        f"{variable} has no effect: no health check listens there, as under torchrun. For probes use --ready-file FILE "
        "(test -e FILE), or --metrics-port"
    )


def port_taken(source: str, reason: object, is_endpoint: bool) -> str:
    """`is_endpoint`: whether the user may have meant a server there."""
    instead = "; to use an rdzv-server that runs there, give --endpoint" if is_endpoint else ""
    return f"{source}: {reason}; stop the program that uses it, or choose another port{instead}"


def own_run(inherited: Sequence[str], run_id: str, address: str, rdzv_id: str, alone: str) -> str:
    """`inherited`: variables that name the server. `alone`: what to give for a run of only this node."""
    prefix = f"{', '.join(inherited)}: " if inherited else ""
    return (
        f"{prefix}this process is a worker of run {run_id} at {address}, and cannot also be a node of it. Give another "
        f"{rdzv_id}, or {alone} to run on this node only"
    )


def cooldown_alone(source: str) -> str:
    return f"{source} has an effect only with --scale-up cooldown"


def no_endpoint(source: str) -> str:
    return f"no {source}"


def loopback_of_several(source: str, endpoint: str, host: str, nodes: int, variable: str) -> str:
    return (
        f"{source} {endpoint}: {host} means a different machine on each of this job's {nodes} nodes ({variable}): "
        "name the machine where rdzv-server runs, or give --endpoint auto"
    )


# Credentials.


def tls_without_ca(source: str, tls_ca: str) -> str:
    return f"{source} needs {tls_ca}, too: give a file of CA certificates, or the word system"


def no_tls_on_a_node(source: str, rdzv_endpoint: str, rdzv_backend: str) -> str:
    return (
        f"{source}: a server that a node hosts does not use TLS. Start rdzv-server with --tls-cert and --tls-key, and "
        f"give {rdzv_endpoint} HOST:PORT and {rdzv_backend} rdzv-server"
    )


# Output.


def copies_without_files(source: str, no_files: str) -> str:
    return f"{source} copies lines to a file, but --log-dir {no_files} means no files"


def log_dir_unusable(source: str, reason: str, no_files: str) -> str:
    return f"{source}: {reason}: name a folder, or {no_files} for no files"


def no_logs_specs(source: str, name: str, known: Sequence[str]) -> str:
    there = f"there are {', '.join(known)}" if known else "none is installed"
    return f"{source}: there is no torchrun.logs_specs entry point {name!r}; {there}"


# --topology nvlink


def nvlink_domain(domain: str) -> str:
    return f"this node's GPUs are in NVLink domain {domain}"


def no_nvlink_domain(why: str) -> str:
    return f"--topology nvlink has no effect on this node: {why}"


def nvlink_domains(domains: Sequence[str]) -> str:
    if domains:
        return f"its GPUs are in several NVLink domains: {', '.join(domains)}"
    return "NVIDIA's driver reports no NVLink domain of several nodes (Fabric in nvidia-smi -q)"


def nvidia_smi_missing(why: str) -> str:
    return f"nvidia-smi cannot be run: {why}"


def nvidia_smi_hangs(within_s: float) -> str:
    return f"nvidia-smi did not answer within {within_s:g} s"


def nvidia_smi_fails(exit_code: int) -> str:
    return f"nvidia-smi failed with exit code {exit_code}"
