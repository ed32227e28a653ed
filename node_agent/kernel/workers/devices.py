"""Count of workers that `--nproc-per-node auto|gpu|xpu` means, and PCI addresses of the accelerators.

A process of its own asks, in the workers' environment and with their interpreter. It asks NVIDIA's driver, if the torch
there is built for CUDA, and else torch itself. They know best what MIG and variables such as CUDA_VISIBLE_DEVICES,
HIP_VISIBLE_DEVICES and ZE_AFFINITY_MASK leave. The driver answers at once; the import of torch takes seconds. For a
number of workers, and for cpu, no such process is started.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from node_agent import words

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "devices_helper.py")
TIMEOUT_S = 120.0
"""Time that torch may take: its import from a cold network disk, and a driver that starts many GPUs."""
NOTICE_S = 2.0
"""Time after which a person is told what is waited for."""
END_S = 1.0
"""Time that the process which asks torch has to end when it is killed."""
LABELS = {"gpu": "GPU", "xpu": "XPU", "auto": "accelerator"}
HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
"""Variables that keep devices from a worker."""
DRIVERS = ("/dev/nvidiactl", "/dev/kfd")
"""Device files by which a driver of GPUs shows."""
BROKEN = ("CUDA initialization", "HIP initialization", "XPU device count")
"""Beginnings of torch's warnings about devices that are there and do not answer."""


class DeviceError(Exception):
    """No such devices, or no way to tell. One line: what was looked for, what was found, what to do."""


class Devices:
    """Accelerators that workers see, as torch counts them; it is asked when the first answer is needed, and once.

    `environment` is the workers': its variables hide devices from them. `log` is told of a long wait.
    """

    def __init__(
        self, environment: Mapping[str, str], log: Callable[[str], None] = lambda line: None, *, addresses: bool
    ) -> None:
        """`addresses`: whether the PCI addresses are wanted, too."""
        self._environment = environment
        self._log = log
        self._addresses = addresses
        self._answer: Mapping[str, Any] = {}

    def count_workers(self, wanted: str) -> int:
        """Number of workers that `wanted` (auto, cpu, gpu or xpu) means here. Raises `DeviceError`.

        cpu counts the CPUs that this process may run on. auto counts devices if a worker sees any, else CPUs. A device
        that does not answer is an error for auto too: a node with a broken GPU is not a CPU node; nor is one with GPUs
        and no torch.
        """
        if wanted == "cpu":
            return len(os.sched_getaffinity(0))
        if wanted not in LABELS:
            raise DeviceError(words.devices.no_number_of_workers(wanted))
        answer = self._ask(wanted)
        if wanted == "auto" and not answer["count"] and not _why_broken(answer):
            return len(os.sched_getaffinity(0))
        _check(answer, wanted, self._environment, lambda: words.devices.GIVE_A_NUMBER)
        return int(answer["count"])

    def pci_addresses(self, advice: str) -> list[str]:
        """PCI addresses of the devices that were counted, else of all accelerators, by the worker's index of them:
        "0000:3b:00.0". Raises `DeviceError`, where there are no devices with the advice.

        The function number is always 0, as torch writes it. MIG devices have their GPU's address.
        """
        answer = self._answer or self._ask("auto")
        _check(answer, "auto", self._environment, lambda: advice)
        addresses: list[str] = answer["addresses"]
        if not all(addresses):
            raise DeviceError(words.devices.no_pci_addresses(answer["torch"], answer["device"]))
        return addresses

    def _ask(self, kind: str) -> Mapping[str, Any]:
        self._answer = _ask_torch(kind, "addresses" if self._addresses else "count", self._environment, self._log)
        return self._answer


def _check(answer: Mapping[str, Any], wanted: str, environment: Mapping[str, str], advice: Callable[[], str]) -> None:
    """Raise `DeviceError` if there are no devices."""
    if answer["count"]:
        return
    hiding = {name: environment[name] for name in HIDING if name in environment}
    raise DeviceError(
        words.devices.none_seen(LABELS[wanted], _why_broken(answer) or _why_none(answer), hiding, advice())
    )


def _why_none(answer: Mapping[str, Any]) -> str:
    """Reason why torch sees no device, though none is known to be broken."""
    if "missing" in answer:
        return words.devices.torch_missing(answer["missing"])
    return words.devices.torch_finds_none(answer["torch"])


def _why_broken(answer: Mapping[str, Any]) -> str:
    """Reason why devices that are there cannot be used; empty if there are none such."""
    if "missing" in answer:
        drivers = [path for path in DRIVERS if os.path.exists(path)]
        return words.devices.driver_without_torch(drivers[0], answer["missing"]) if drivers else ""
    return next((text.splitlines()[0] for text in answer["warnings"] if text.startswith(BROKEN)), "")


def _ask_torch(kind: str, what: str, environment: Mapping[str, str], log: Callable[[str], None]) -> Mapping[str, Any]:
    python = environment.get("PYTHON_EXEC") or sys.executable
    command = (python, PROGRAM, kind, what)
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    except OSError as error:
        raise DeviceError(f"{python}: {error.strerror}") from None
    output, errors = _output(process, log)
    try:
        answer: Mapping[str, Any] = json.loads(output.splitlines()[-1] if process.returncode == 0 else b"")
    except (ValueError, IndexError):
        why = errors.decode(errors="replace").strip().rpartition("\n")[2]
        why = why or words.failures.exit_code(process.returncode)
        raise DeviceError(words.devices.torch_cannot_tell(why)) from None
    return answer


def _output(process: "subprocess.Popen[bytes]", log: Callable[[str], None]) -> tuple[bytes, bytes]:
    """Return all that the process writes to stdout and stderr. Raises `DeviceError` if it takes too long to end."""
    with suppress(subprocess.TimeoutExpired):
        return process.communicate(timeout=min(NOTICE_S, TIMEOUT_S))
    log(words.devices.ASKING_TORCH)
    with suppress(subprocess.TimeoutExpired):
        return process.communicate(timeout=max(0.0, TIMEOUT_S - NOTICE_S))
    process.kill()
    with suppress(subprocess.TimeoutExpired):  # a driver that hangs keeps it in uninterruptible sleep
        process.communicate(timeout=END_S)
    raise DeviceError(words.devices.torch_too_slow(TIMEOUT_S))
