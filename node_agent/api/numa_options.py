"""Which CPUs the workers may use: torch's `NumaOptions`, or one of `--numa-binding`'s words."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any


def usable_mode(options: Any, environment: Mapping[str, str], workers: int) -> str | None:
    """How to bind, or None for not at all. Raises `ValueError` if the workers cannot be bound as asked.

    torch's `should_fall_back_if_binding_fails` makes None of what cannot be done.
    """
    return None if cpu_sets(options, environment, workers) is None else _mode(options)


def cpu_sets(options: Any, environment: Mapping[str, str], workers: int) -> Sequence[Collection[int]] | None:
    """The CPUs of each worker, or None for all. Raises `ValueError`."""
    if options is None:
        return None
    mode = _mode(options)
    from node_agent.devices import DeviceError, gpu_pci_addresses
    from node_agent.numa import MODES, NumaError
    from node_agent.numa import cpu_sets as sets_of

    if mode not in MODES:
        raise ValueError(f"numa_options: torch's NumaOptions, or one of {', '.join(MODES)}; not {options!r:.80}")
    try:
        return sets_of(mode, gpu_pci_addresses(environment), workers)
    except (DeviceError, NumaError) as error:
        if getattr(options, "should_fall_back_if_binding_fails", False):
            return None
        raise ValueError(f"numa_options: {error}") from None


def _mode(options: Any) -> str:
    mode = getattr(options, "affinity_mode", options)
    return str(getattr(mode, "value", mode))
