"""The machine, in a line: what figures depend on."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version


def machine(load: float) -> str:
    """With this load, which the reader should know beside the figures."""
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    release = ".".join(platform.release().split(".")[:2])
    return (
        f"{os.cpu_count()} CPUs (load {load:.1f}), {memory_gb:.0f} GB of memory, "
        f"{platform.system()} {release}, Python {platform.python_version()}, torch {torch_version()}"
    )


def torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return "not installed"
