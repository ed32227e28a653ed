"""Count of workers that `--nproc-per-node auto|gpu|xpu` means, and PCI addresses of the accelerators.

Torch is asked, in a process of its own, in the workers' environment and with their interpreter: what MIG and variables
such as CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES and ZE_AFFINITY_MASK leave, it knows best. That takes an import of
torch. A number of workers, and cpu, ask nobody.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "devices_helper.py")
TIMEOUT_S = 120.0
"""Time that torch may take: its import from a cold network disk, and a driver that starts many GPUs."""
LABELS = {"gpu": "GPU", "xpu": "XPU", "auto": "accelerator"}
HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
"""Variables that keep devices from a worker."""
DRIVERS = ("/dev/nvidiactl", "/dev/kfd")
"""Device files by which a driver of GPUs shows."""
BROKEN = ("CUDA initialization", "HIP initialization", "XPU device count")
"""Beginnings of torch's warnings about devices that are there and do not answer."""


class DeviceError(Exception):
    """No such devices, or no way to tell. One line: what was looked for, what was found, what to do."""


def count_workers(wanted: str, environment: Mapping[str, str]) -> int:
    """Number of workers that `wanted` (auto, cpu, gpu or xpu) means here, as torch counts. Raises `DeviceError`.

    `environment` is the workers': its variables hide devices from them. cpu counts the CPUs that this process may run
    on. auto counts devices if a worker sees any, else CPUs. A device that does not answer is an error for auto too: a
    node with a broken GPU is not a CPU node; nor is one with GPUs and no torch.
    """
    if wanted == "cpu":
        return len(os.sched_getaffinity(0))
    if wanted not in LABELS:
        raise DeviceError(f"{wanted!r} is not a number of workers: give a number, auto, cpu, gpu or xpu")
    answer = _ask_torch(wanted, environment)
    if wanted == "auto" and not answer["count"] and not _why_broken(answer):
        return len(os.sched_getaffinity(0))
    _check(answer, wanted, environment, "give a number of workers, or cpu, to do without")
    return int(answer["count"])


def pci_addresses(environment: Mapping[str, str]) -> list[str]:
    """PCI addresses of the accelerators that a worker sees, by its index of them: "0000:3b:00.0". Raises `DeviceError`.

    The function number is always 0, as torch writes it. MIG devices have their GPU's address.
    """
    answer = _ask_torch("auto", environment, wants_addresses=True)
    _check(answer, "auto", environment, "only workers with accelerators can be bound to the CPUs near them")
    addresses: list[str] = answer["addresses"]
    if not all(addresses):
        what = f"where on the PCI bus its {answer['device']} devices are"
        raise DeviceError(f"torch {answer['torch']} does not tell {what}")
    return addresses


def _check(answer: Mapping[str, Any], wanted: str, environment: Mapping[str, str], advice: str) -> None:
    """Raise `DeviceError` if there are no devices."""
    if answer["count"]:
        return
    hidden = " and ".join(f"{name}={environment[name]!r}" for name in HIDING if name in environment)
    found = f"torch is asked, and {answer['missing']}" if "missing" in answer else f"torch {answer['torch']} finds none"
    why = f"{_why_broken(answer) or found}{f', with {hidden}' if hidden else ''}"
    raise DeviceError(f"workers would see no {LABELS[wanted]}: {why}; {advice}")


def _why_broken(answer: Mapping[str, Any]) -> str:
    """Reason why devices that are there cannot be used; empty if there are none such."""
    if "missing" in answer:
        drivers = [path for path in DRIVERS if os.path.exists(path)]
        return f"{drivers[0]} is there, and {answer['missing']}" if drivers else ""
    return next((text.splitlines()[0] for text in answer["warnings"] if text.startswith(BROKEN)), "")


def _ask_torch(kind: str, environment: Mapping[str, str], *, wants_addresses: bool = False) -> Mapping[str, Any]:
    python = environment.get("PYTHON_EXEC") or sys.executable
    command = (python, PROGRAM, kind, "addresses" if wants_addresses else "count")
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=True
        )
        answer: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        raise DeviceError(f"torch did not tell within {TIMEOUT_S:g} s what devices there are") from None
    except subprocess.CalledProcessError as error:
        why = error.stderr.decode(errors="replace").strip().rpartition("\n")[2] or f"exit code {error.returncode}"
        raise DeviceError(f"torch cannot tell what devices there are: {why}") from None
    except OSError as error:
        raise DeviceError(f"{python}: {error.strerror}") from None
    except (ValueError, IndexError):
        raise DeviceError("torch cannot tell what devices there are: it ended the process that asked it") from None
    return answer
