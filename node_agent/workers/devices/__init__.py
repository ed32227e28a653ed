"""How many workers `--nproc-per-node auto|cpu|gpu|xpu` means, and which PCI device stands behind each GPU.

torchrun asks torch. The agent never imports it, and reads what torch's runtimes read: NVML for NVIDIA's GPUs, the
kernel's compute topology for AMD's and its graphics devices for Intel's, and the variables that hide some of them. For
which of these torch was built stands in its `version.py`; where no torch is to be found, each of them counts.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from node_agent.workers.devices import amd, intel, nvidia
from node_agent.workers.devices.host import THIS_HOST, DeviceError, Host, Sighting, read
from node_agent.workers.devices.visible import visible

__all__ = ["THIS_HOST", "DeviceError", "Host", "count_workers", "gpu_pci_addresses", "visible"]

BACKENDS = {"gpu": ("cuda", "hip"), "xpu": ("xpu",), "auto": ("cuda", "hip", "xpu")}
"""What torch must be built for; the first of them that has a device decides."""
LABELS = {"cuda": "CUDA", "hip": "ROCm", "xpu": "XPU"}
_LOOK: dict[str, Callable[[Mapping[str, str], Host], Sighting]] = {
    "cuda": nvidia.look,
    "hip": amd.look,
    "xpu": intel.look,
}


def count_workers(wanted: str, environment: Mapping[str, str], host: Host = THIS_HOST) -> int:
    """How many workers `wanted` (auto, cpu, gpu or xpu) means here, as torch 2.13 counts. Raises `DeviceError`.

    `environment` is what the workers inherit: its variables hide devices from them. cpu counts the CPUs that this
    process may run on. auto counts devices if a worker sees any, else CPUs. A visible GPU that does not answer is an
    error for auto too: a node with a broken GPU is not a CPU node.
    """
    if wanted == "cpu":
        return _cpu_count()
    if wanted not in BACKENDS:
        raise DeviceError(f"{wanted!r} is not a number of workers: give a number, auto, cpu, gpu or xpu")
    if wanted == "auto":
        sightings = _look(wanted, environment, host)
        return next((len(_sound(sighting).devices) for sighting in sightings if sighting.devices), _cpu_count())
    return len(_see(wanted, environment, host, "give a number of workers, or cpu, to do without").devices)


def gpu_pci_addresses(environment: Mapping[str, str], host: Host = THIS_HOST) -> list[str]:
    """The PCI addresses of the GPUs that a worker sees, by its index of them: "0000:3b:00.0". Raises `DeviceError`.

    The function number is always 0, as torch writes it. MIG devices have their GPU's address.
    """
    sighting = _see("gpu", environment, host, "only workers with GPUs can be bound to the CPUs near them")
    if sighting.doubt:
        raise DeviceError(sighting.doubt)
    return [device.address for device in sighting.devices]


def _cpu_count() -> int:
    return len(os.sched_getaffinity(0))


# What workers see.


def _see(wanted: str, environment: Mapping[str, str], host: Host, advice: str) -> Sighting:
    remarks = []
    for sighting in _look(wanted, environment, host):
        if sighting.devices:
            return _sound(sighting)
        remarks.append(sighting.remark)
    raise DeviceError(f"workers would see no {wanted.upper()}: {', and '.join(remarks)}; {advice}")


def _sound(sighting: Sighting) -> Sighting:
    for device in sighting.devices:
        if device.trouble:
            raise DeviceError(f"{device.trouble}; mend it, or leave it out with CUDA_VISIBLE_DEVICES")
    return sighting


def _look(wanted: str, environment: Mapping[str, str], host: Host) -> Iterator[Sighting]:
    torch = None if environment.get("PYTHON_EXEC") else _find_torch(host)
    backends = [name for name in BACKENDS[wanted] if torch is None or name in torch[1]]
    for name in backends:
        sighting = _LOOK[name](environment, host)
        if wanted == "auto" and torch is None:  # most hosts with an integrated GPU have no torch that could use it
            sighting = replace(sighting, devices=[device for device in sighting.devices if not device.integrated])
        yield sighting
    if torch and not backends:
        missing = " and ".join(LABELS[name] for name in BACKENDS[wanted])
        yield Sighting([], f"torch in {torch[0]} is built without {missing}")


def _find_torch(host: Host) -> tuple[str, set[str]] | None:
    """Where torch is and what it was built for; None where there is none."""
    for folder in sys.path if host.python_path is None else host.python_path:
        if text := read(os.path.join(folder, "torch", "version.py")):
            return os.path.join(folder, "torch"), set(re.findall(r"^(cuda|hip|xpu)\b.*= *['\"]", text, re.MULTILINE))
    return None
