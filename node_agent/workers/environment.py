"""A worker's environment: torchrun's, variable by variable (torch 2.13), so that a script sees no difference."""

import os
import signal
from collections.abc import Mapping

from rdzv_protocol.messages import Assignment

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Path of the file to which torch's `@record` writes an error; empty: there is none."""
ENABLE_FILE_TIMER = "TORCHELASTIC_ENABLE_FILE_TIMER"
TIMER_FILE = "TORCHELASTIC_TIMER_FILE"
UNINTERRUPTIBLE = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"
EMPTY: Mapping[str, str] = {}
WORKER_SERVER = "TORCH_WORKER_SERVER_SOCKET"
FR_DUMP, FR_BUFFER_SIZE = "TORCH_FR_DUMP_TEMP_FILE", "TORCH_FR_BUFFER_SIZE"
NCCL_PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
STACKS_FILE = "NODE_AGENT_STACKS_FILE"
"""File to which a worker that was forked warm writes its stacks; the script does not see the variable."""
STACKS_SIGNAL = signal.SIGRTMIN + 11
"""Signal for a worker to write its stacks: real-time, unlike all that torch, NCCL, debuggers and schedulers use."""
EVIDENCE = (WORKER_SERVER, FR_DUMP, NCCL_PIPE, STACKS_FILE)
"""Variables that name the places where a worker can be asked what it does."""
LONGEST_SOCKET_PATH = 100
"""Longest path of a socket in bytes; the kernel's limit is 108."""
FR_ENTRIES = 2_000
"""Entries of the flight recorder: torch's own default, set because NCCL has its pipe only where they are."""
CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"


def worker_environment(
    parent: Mapping[str, str],
    assignment: Assignment,
    local_rank: int,
    *,
    run_id: str,
    role: str,
    virtual_local_rank: bool = False,
    likewise: Mapping[str, str] = EMPTY,
) -> dict[str, str]:
    """The environment of one worker: the agent's own, and its place in the round. Its logs name the error file.

    `likewise`: further variables, and the one whose value each gets.

    `TORCHELASTIC_USE_AGENT_STORE`: "True" when the store at MASTER_ADDR:MASTER_PORT is hosted beside group rank 0's
    agent and every rank is its client, "False" when rank 0 hosts it.
    """
    environment = {
        **parent,
        **defaults(parent, assignment.local_world_size),
        "RANK": str(assignment.first_rank + local_rank),
        **(_own_device(parent, local_rank) if virtual_local_rank else {"LOCAL_RANK": str(local_rank)}),
        "WORLD_SIZE": str(assignment.world_size),
        "LOCAL_WORLD_SIZE": str(assignment.local_world_size),
        "GROUP_RANK": str(assignment.group_rank),
        "GROUP_WORLD_SIZE": str(assignment.group_world_size),
        "ROLE_RANK": str(assignment.first_role_rank + local_rank),
        "ROLE_WORLD_SIZE": str(assignment.role_world_size),
        "ROLE_NAME": role,
        "MASTER_ADDR": assignment.master_addr,
        "MASTER_PORT": str(assignment.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(assignment.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(assignment.max_restarts),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_USE_AGENT_STORE": str(assignment.agent_store),
        ERROR_FILE: "",
    }
    environment.update((name, environment[source]) for name, source in likewise.items())
    return environment


def evidence_variables(
    parent: Mapping[str, str], beginning: str, rank: int, kept_folder: str, *, is_warm: bool = False
) -> dict[str, str]:
    """Variables by which a worker that hangs can be asked what it does; whatever the user has set himself stays.

    None does anything by itself: the socket is torch's worker server's, which there is if the script uses
    `worker_main`; the pipe and the dump are NCCL's.
    `beginning`: of the names of temporary files; `kept_folder`: one that stays, or empty; `is_warm`: it is to be forked
    by the fork server.
    """
    values = {}
    if len(os.fsencode(server := f"{beginning}{rank}.server")) <= LONGEST_SOCKET_PATH:
        values[WORKER_SERVER] = server
    if is_warm:
        values[STACKS_FILE] = f"{beginning}{rank}.stacks"
    if kept_folder:
        values[FR_DUMP] = f"{kept_folder}/flight_recorder_rank_"
        values[NCCL_PIPE], values[FR_BUFFER_SIZE] = f"{beginning}nccl_", str(FR_ENTRIES)
    return {name: value for name, value in values.items() if name not in parent}


def hiding_variable(parent: Mapping[str, str]) -> str | None:
    """The variable by which the agent's own environment hides GPUs; ROCm's goes first. None: there is none."""
    return next((name for name in (HIP_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES) if name in parent), None)


def visible_devices(parent: Mapping[str, str]) -> list[str] | None:
    """The GPUs that the agent's own environment allows; None: all."""
    name = hiding_variable(parent)
    return None if name is None else [device.strip() for device in parent[name].split(",")]


def _own_device(parent: Mapping[str, str], local_rank: int) -> dict[str, str]:
    """Variables of `--virtual-local-rank`: the worker sees its own GPU alone, as device 0; on ROCm as in torch 2.15."""
    visible = visible_devices(parent)
    device = str(local_rank) if visible is None else visible[local_rank]
    hip = {HIP_VISIBLE_DEVICES: device} if HIP_VISIBLE_DEVICES in parent else {}
    return {"LOCAL_RANK": "0", CUDA_VISIBLE_DEVICES: device, **hip}


def defaults(parent: Mapping[str, str], local_world_size: int) -> dict[str, str]:
    """Values that a worker gets unless the agent's own environment says otherwise."""
    values = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    if local_world_size > 1:
        values["OMP_NUM_THREADS"] = "1"  # or every worker would take all cores
    return {name: value for name, value in values.items() if name not in parent}


def omp_warning(parent: Mapping[str, str], local_world_size: int) -> str | None:
    """The line to print when OMP_NUM_THREADS was set for the user."""
    if "OMP_NUM_THREADS" in defaults(parent, local_world_size):
        return "OMP_NUM_THREADS=1 for each worker, so that they share the cores; set it to tune your application"
    return None
