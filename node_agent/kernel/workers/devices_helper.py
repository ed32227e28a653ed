"""Tells what accelerators torch sees: see node_agent/kernel/workers/devices.py.

A program of its own, run by the workers' interpreter in their environment: it imports torch, and nothing of ours.
Arguments: gpu, xpu or auto, and whether the PCI addresses are wanted. The last line of its output is a map in JSON.
"""

import os
import sys

if sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
    del sys.path[0]  # our files are nobody's modules

import json
import warnings
from typing import Any


def main(kind: str, addresses: str) -> None:
    try:
        import torch
    except ImportError as error:
        answer: dict[str, Any] = {"missing": str(error), "count": 0}
    else:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            answer = _look(torch, kind, wants_addresses=addresses == "addresses")
        answer["warnings"] = [str(warning.message) for warning in warned]
    sys.stdout.write(f"\n{json.dumps(answer)}\n")
    sys.stdout.flush()
    os._exit(0)  # whatever torch would write as it ends is no part of the answer


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
    """Address as sysfs writes it; empty where torch does not tell."""
    try:
        place = properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id
    except AttributeError:
        return ""
    return "{:04x}:{:02x}:{:02x}.0".format(*place)


if __name__ == "__main__":
    main(*sys.argv[1:])
