"""Prints which accelerators torch sees: see node_agent/kernel/workers/devices.py.

It is a program of its own, run by the workers' interpreter in their environment. It asks NVIDIA's driver, which a torch
built for CUDA also uses, and imports torch only if the driver does not answer. It imports nothing of this package.
Arguments: gpu, xpu or auto, and whether PCI addresses are needed. The last line of its output is a JSON object.
"""

import os
import sys

if sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
    del sys.path[0]  # this package's files must not be importable as top-level modules

import ctypes
import importlib.util
import json
import runpy
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

PCI_ADDRESS_BYTES = 32
"""Size of the buffer for a PCI address in a call to NVIDIA's driver."""


def main(kind: str, addresses: str) -> None:
    wants_addresses = addresses == "addresses"
    driver: Any = None
    with suppress(OSError):
        driver = ctypes.CDLL("libcuda.so.1")
    answer = ask_driver(driver, *_versions(), wants_addresses=wants_addresses) if driver and kind != "xpu" else None
    if answer is None:
        answer = _ask_torch(kind, wants_addresses=wants_addresses)
    sys.stdout.write(f"\n{json.dumps(answer)}\n")
    sys.stdout.flush()
    os._exit(0)  # torch's output at its exit must not become part of the answer


def ask_driver(driver: Any, torch: str, cuda: str, *, wants_addresses: bool) -> dict[str, Any] | None:
    """Return what NVIDIA's driver sees, in the order of a process's device numbers, None if torch must be asked.

    `torch`: the version of torch. `cuda`: the CUDA version it was built for, empty if none. Torch must be asked if it
    does not count by CUDA. It must also be asked if the driver is too old, does not answer or does not see a device:
    then torch reports the problem. The driver itself handles CUDA_VISIBLE_DEVICES and MIG.
    """
    version, count = ctypes.c_int(), ctypes.c_int()
    if not cuda or driver.cuDriverGetVersion(ctypes.byref(version)) or version.value < int(cuda.split(".")[0]) * 1000:
        return None
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return None
    answer: dict[str, Any] = {"torch": torch, "device": "cuda", "count": count.value, "warnings": []}
    if wants_addresses:
        answer["addresses"] = [_pci_address(driver, index) for index in range(count.value)]
    return answer


def _pci_address(driver: Any, index: int) -> str:
    """Return the address as sysfs writes it, empty if the driver does not report it."""
    device, text = ctypes.c_int(), ctypes.create_string_buffer(PCI_ADDRESS_BYTES)
    if driver.cuDeviceGet(ctypes.byref(device), index) or driver.cuDeviceGetPCIBusId(text, PCI_ADDRESS_BYTES, device):
        return ""
    return text.value.decode().lower()


def _versions() -> tuple[str, str]:
    """Return the versions of the installed torch and of its CUDA without importing it, empty if unknown."""
    spec = importlib.util.find_spec("torch")
    folders = spec.submodule_search_locations if spec else None
    try:
        values = runpy.run_path(str(Path(next(iter(folders or ())), "version.py")))
    except (StopIteration, OSError, SyntaxError):
        return "", ""
    return str(values.get("__version__") or ""), str(values.get("cuda") or "")


def _ask_torch(kind: str, *, wants_addresses: bool) -> dict[str, Any]:
    try:
        import torch
    except ImportError as error:
        return {"missing": str(error), "count": 0}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        answer = _look(torch, kind, wants_addresses=wants_addresses)
    answer["warnings"] = [str(warning.message) for warning in warned]
    return answer


def _look(torch: Any, kind: str, *, wants_addresses: bool) -> dict[str, Any]:
    name = {"gpu": "cuda", "xpu": "xpu"}.get(kind, "cuda")
    if kind == "auto" and torch.accelerator.is_available():
        name = torch.accelerator.current_accelerator().type
    module: Any = getattr(torch, name)
    count = module.device_count() if module.is_available() else 0
    answer = {"torch": torch.__version__, "device": name, "count": count}
    if wants_addresses:
        answer["addresses"] = [_address(module.get_device_properties(index)) for index in range(count)]
    return answer


def _address(properties: Any) -> str:
    """Return the address as sysfs writes it, empty if torch does not report it."""
    try:
        place = properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id
    except AttributeError:
        return ""
    return "{:04x}:{:02x}:{:02x}.0".format(*place)


if __name__ == "__main__":
    main(*sys.argv[1:])
