"""Number of workers for `--nproc-per-node auto|gpu|xpu`, and PCI addresses of the accelerators.

A separate process finds them out, in the workers' environment and with their interpreter. It asks NVIDIA's driver if
the installed torch is built for CUDA, otherwise torch itself. These know which devices are left by MIG and by variables
such as CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES and ZE_AFFINITY_MASK. The driver answers at once; importing torch
takes seconds. A plain number of workers or `cpu` needs no such process.
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
"""Most seconds that torch may take: its import from a cold network disk, and a driver that starts many GPUs."""
NOTICE_S = 2.0
"""Seconds after which the agent logs what it waits for."""
END_S = 1.0
"""Seconds that the process has to end after it is killed."""
LABELS = {"gpu": "GPU", "xpu": "XPU", "auto": "accelerator"}
HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
"""Variables that hide devices from a worker."""
DRIVERS = ("/dev/nvidiactl", "/dev/kfd")
"""Device files that exist if a GPU driver is loaded."""
BROKEN = ("CUDA initialization", "HIP initialization", "XPU device count")
"""Beginnings of torch's warnings about devices that exist but do not answer."""


class DeviceError(Exception):
    """There are no such devices, or they cannot be counted. One line: what was sought, what was found, what to do."""


class Devices:
    """Accelerators that workers see, as torch counts them. They are counted once, when first needed.

    `environment`: the workers' environment, whose variables may hide devices. `log` is called about a long wait.
    """

    def __init__(
        self, environment: Mapping[str, str], log: Callable[[str], None] = lambda line: None, *, addresses: bool
    ) -> None:
        """`addresses`: whether the PCI addresses are needed too."""
        self._environment = environment
        self._log = log
        self._addresses = addresses
        self._answer: Mapping[str, Any] = {}

    def count_workers(self, wanted: str) -> int:
        """Return the number of workers that `wanted` (auto, cpu, gpu or xpu) means here. Raises `DeviceError`.

        `cpu` counts the CPUs that this process may use. `auto` counts devices if a worker sees any, otherwise CPUs. A
        device that does not answer is an error, for `auto` too: a node with a broken GPU must not run as a CPU node.
        GPUs without torch are also an error.
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
        """Return the PCI addresses, such as "0000:3b:00.0", of the counted devices or else of all accelerators, by
        device index.

        Raises `DeviceError`, with the advice if there are no devices. The function number is always 0, as torch writes
        it. MIG devices have their GPU's address.
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
    """Return why torch sees no device, if no device is known to be broken."""
    if "missing" in answer:
        return words.devices.torch_missing(answer["missing"])
    return words.devices.torch_finds_none(answer["torch"])


def _why_broken(answer: Mapping[str, Any]) -> str:
    """Return why existing devices cannot be used, empty if none is broken."""
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
