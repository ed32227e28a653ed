"""What every vendor's devices have in common, and where a machine tells of them."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class DeviceError(Exception):
    """No such devices, or no way to tell. One line: what was looked for, what was found, what to do."""


@dataclass(frozen=True, slots=True)
class Host:
    """Where a machine tells what it has."""

    root: str = "/"
    """The folder that holds `dev`, `proc` and `sys`."""
    nvml: str = "libnvidia-ml.so.1"
    python_path: Sequence[str] | None = None
    """Where the workers' torch may be; None: where this process would import it from."""

    def path(self, *parts: str) -> str:
        return os.path.join(self.root, *parts)


THIS_HOST = Host()


@dataclass(frozen=True, slots=True)
class Device:
    """One device that a worker can compute on."""

    uuid: str
    address: str
    """On the PCI bus, as sysfs writes it."""
    model: str = ""
    trouble: str = ""
    """Why it cannot be used."""
    integrated: bool = False


@dataclass(frozen=True, slots=True)
class Sighting:
    """The devices of one vendor that a worker sees, in the order in which it counts them."""

    devices: list[Device]
    remark: str
    """What there was to see; it explains why there may be no device."""
    doubt: str = ""
    """Why the order may be another one."""


def read(path: str) -> str:
    """What stands in a file; nothing if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def names_in(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def may_use(path: str) -> bool:
    return os.access(path, os.R_OK | os.W_OK)


def hidden(devices: Sequence[Device], vendor: str, environment: Mapping[str, str], *variables: str) -> str:
    count = f"1 {vendor} GPU is" if len(devices) == 1 else f"{len(devices)} {vendor} GPUs are"
    values = " and ".join(f"{name}={environment[name]!r}" for name in variables if name in environment)
    return f"{count} there but hidden by {values}"
