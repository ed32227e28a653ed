"""Feature: versions, machine and environment of an agent, for a bundle. Imported when the server asks for them."""

import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial

import rdzv_protocol
from rdzv_protocol.queries import LONGEST_VALUE, MOST_VARIABLES, Describe, Description, Query, Variable, Version

from node_agent.kernel.feature import Feature
from node_agent.kernel.threads import in_thread

LIBRARIES = ("torch", "numpy", "triton", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "py-spy")
"""Distributions whose versions the agent reports, if they are installed where it runs."""
DRIVERS = ("/proc/driver/nvidia/version", "/sys/module/nvidia/version", "/sys/module/amdgpu/version")
"""Files that name the version of a GPU's driver."""
_SHOWN_VARIABLE = re.compile(
    r"(?:NCCL|TORCH|TORCHELASTIC|PYTORCH|CUDA|GLOO|OMP|PET|UCX|HSA|ROCR|HIP)_\w+|NVIDIA_VISIBLE_DEVICES"
)
"""Names of variables whose values the agent reports. It reports only the names of all others."""
_SECRET = re.compile(r"(?i)token|secret|passw|passphrase|credential|api_?key|private|cookie|auth|\bkey=|://[^/\s]*@")
"""Pattern of a secret, in a name or in a value."""


class Describer(Feature):
    """Answers to `Describe`."""

    async def answer(self, query: Query) -> Description:
        assert isinstance(query, Describe)
        return await in_thread(partial(describe, self.kernel.config.environment))


def describe(environment: Mapping[str, str]) -> Description:
    """Return what is known of this agent and its machine without importing or starting anything."""
    system = platform.uname()
    shown = {name: _value(name, value) for name, value in environment.items() if len(name) <= LONGEST_VALUE}
    first = sorted(shown, key=lambda name: (shown[name] is None, name))[:MOST_VARIABLES]
    return Description(
        versions=(
            Version(name="node-agent", version=rdzv_protocol.VERSION),
            Version(name="python", version=platform.python_version()),
            *_installed(),
        ),
        system=f"{system.system} {system.release} {system.machine}",
        cpus=len(os.sched_getaffinity(0)),
        gpu_driver=_gpu_driver(),
        variables=tuple(Variable(name=name, value=shown[name]) for name in sorted(first)),
    )


def _installed() -> Iterator[Version]:
    from importlib.metadata import PackageNotFoundError, version

    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            yield Version(name=name, version=version(name)[:LONGEST_VALUE])


def _gpu_driver() -> str:
    for path in DRIVERS:
        with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
            return " ".join(file.readline(LONGEST_VALUE).split())
    return ""


def _value(name: str, value: str) -> str | None:
    """Return the value of a variable that says how torch and its libraries are set, None for any other."""
    if not _SHOWN_VARIABLE.fullmatch(name) or _SECRET.search(name) or _SECRET.search(value):
        return None
    return os.fsencode(value).decode(errors="replace")[:LONGEST_VALUE]
