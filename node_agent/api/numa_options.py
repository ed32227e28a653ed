"""Which CPUs the workers may use: torch's `NumaOptions`, or one of `--numa-binding`'s words."""

from collections.abc import Mapping
from typing import Any


def cpu_sets(options: Any, environment: Mapping[str, str], workers: int) -> tuple[frozenset[int], ...]:
    """The CPUs of each worker, or none at all for all of them. Raises `ValueError` if they cannot be bound as asked.

    With torch's `should_fall_back_if_binding_fails` what cannot be done is left out.
    """
    if options is None:
        return ()
    mode = _mode(options)
    from node_agent.workers.devices import DeviceError, gpu_pci_addresses
    from node_agent.workers.numa import MODES, NumaError
    from node_agent.workers.numa import cpu_sets as sets_of

    if mode not in MODES:
        raise ValueError(f"numa_options: torch's NumaOptions, or one of {', '.join(MODES)}; not {options!r:.80}")
    try:
        return tuple(sets_of(mode, gpu_pci_addresses(environment), workers))
    except (DeviceError, NumaError) as error:
        if getattr(options, "should_fall_back_if_binding_fails", False):
            return ()
        raise ValueError(f"numa_options: {error}") from None


def _mode(options: Any) -> str:
    mode = getattr(options, "affinity_mode", options)
    return str(getattr(mode, "value", mode))
