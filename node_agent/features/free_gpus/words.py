"""Messages about GPUs that dead workers still hold."""

from collections.abc import Sequence

MOST_NAMED = 4


def holder(pid: int, command: str, mib: int | None, gpu: int) -> str:
    """`command`: empty if the process has ended or cannot be looked up. `mib`: None if unknown."""
    held = "memory" if mib is None else f"{mib} MiB"
    return f"process {pid} ({command or 'it has ended'}) holds {held} of GPU {gpu}"


def waiting(holders: Sequence[str], limit_s: float) -> str:
    return f"waiting up to {limit_s:g} s for GPU memory of ended workers: {_named(holders)}"


def free(took_s: float) -> str:
    return f"the GPU memory of ended workers is free after {took_s:.1f} s"


def not_free(holders: Sequence[str], limit_s: float) -> str:
    return (
        f"GPU memory of ended workers is still in use after {limit_s:g} s: {_named(holders)}. "
        "Starting the workers anyway; they may run out of GPU memory"
    )


def driver_hangs(limit_s: float) -> str:
    return (
        f"NVIDIA's driver did not report within {limit_s:g} s whether the GPUs are free. Starting the workers anyway; "
        "to test the driver, use --check gpus"
    )


def cannot_ask(why: str) -> str:
    return f"workers do not wait until the GPU memory of ended workers is free: NVML cannot be used: {why}"


WAITS_FOR_GPUS = "it is waiting until the GPU memory of ended workers is free"


def _named(holders: Sequence[str]) -> str:
    more = len(holders) - MOST_NAMED
    return "; ".join(holders[:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
