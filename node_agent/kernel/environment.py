"""Variables of a worker's environment, and rules for those that depend on the agent's own environment."""

import os
from collections.abc import Mapping
from contextlib import suppress

from node_agent import words

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Path of the file to which torch's `@record` writes an error, empty for none."""
TIMER_FILE = "TORCHELASTIC_TIMER_FILE"
"""Named pipe of a launcher for its workers' timers. A launcher that a worker starts must not inherit it."""
WORKER_SERVER = "TORCH_WORKER_SERVER_SOCKET"
FR_DUMP, FR_BUFFER_SIZE = "TORCH_FR_DUMP_TEMP_FILE", "TORCH_FR_BUFFER_SIZE"
NCCL_PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
LONGEST_SOCKET_PATH = 100
"""Longest path of a socket in bytes. The kernel's limit is 108."""
FR_ENTRIES = 2_000
"""Entries of the flight recorder: torch's default, set because NCCL has its pipe only if this is set."""
CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"


def hiding_variable(parent: Mapping[str, str]) -> str | None:
    """Return the variable with which the agent's own environment hides GPUs, ROCm's first; None if there is none."""
    return next((name for name in (HIP_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES) if name in parent), None)


def visible_devices(parent: Mapping[str, str]) -> list[str] | None:
    """Return the GPUs that the agent's own environment allows, None for all."""
    name = hiding_variable(parent)
    return None if name is None else [device.strip() for device in parent[name].split(",") if device.strip()]


def own_device(parent: Mapping[str, str], local_rank: int) -> dict[str, str]:
    """Return the variables of `--virtual-local-rank`: the worker sees only its own GPU, as device 0. On ROCm as in
    torch 2.15.
    """
    visible = visible_devices(parent)
    device = str(local_rank) if visible is None else visible[local_rank]
    hip = {HIP_VISIBLE_DEVICES: device} if HIP_VISIBLE_DEVICES in parent else {}
    return {"LOCAL_RANK": "0", CUDA_VISIBLE_DEVICES: device, **hip}


def defaults(parent: Mapping[str, str], local_world_size: int, *, limits_threads: bool = True) -> dict[str, str]:
    """Return the values that a worker gets unless the agent's own environment sets them.

    `limits_threads`: whether workers that share a node get one OpenMP thread each.
    """
    values = {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        # Python programs started without `-u` write to a pipe in blocks. The last block would be lost with them.
        "PYTHONUNBUFFERED": "1",
    }
    values |= terminal_size()
    if local_world_size > 1 and limits_threads:
        values["OMP_NUM_THREADS"] = "1"  # otherwise every worker would use all cores
    return {name: value for name, value in values.items() if name not in parent}


def terminal_size() -> dict[str, str]:
    """Return the size of this process's terminal, which its workers' pipes cannot report; empty without a terminal."""
    for stream in (1, 2):
        with suppress(OSError):
            size = os.get_terminal_size(stream)
            if size.columns and size.lines:
                return {"COLUMNS": str(size.columns), "LINES": str(size.lines)}
    return {}


def omp_warning(parent: Mapping[str, str], local_world_size: int) -> str | None:
    """Return the line to print if the agent has set OMP_NUM_THREADS for the user."""
    if "OMP_NUM_THREADS" in defaults(parent, local_world_size):
        return words.progress.OMP_NUM_THREADS
    return None
