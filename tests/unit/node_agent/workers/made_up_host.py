"""A host that is made up: the files in which Linux tells about CPUs, caches, NUMA nodes and GPUs, below a folder."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from node_agent.workers.numa import ranges


@dataclass(frozen=True)
class Topology:
    """Every level has the same number of parts. CPU n + number of cores is the second thread of CPU n's core."""

    sockets: int = 2
    nodes_per_socket: int = 2
    caches_per_node: int = 2
    cores_per_cache: int = 3
    threads: int = 2

    @property
    def nodes(self) -> int:
        return self.sockets * self.nodes_per_socket

    @property
    def cores(self) -> int:
        return self.nodes * self.caches_per_node * self.cores_per_cache

    @property
    def cpus(self) -> range:
        return range(self.cores * self.threads)

    def core(self, cpu: int) -> int:
        return cpu % self.cores

    def cache(self, cpu: int) -> int:
        return self.core(cpu) // self.cores_per_cache

    def node(self, cpu: int) -> int:
        return self.cache(cpu) // self.caches_per_node

    def socket(self, cpu: int) -> int:
        return self.node(cpu) // self.nodes_per_socket

    def of_node(self, node: int) -> frozenset[int]:
        return frozenset(cpu for cpu in self.cpus if self.node(cpu) == node)


def write(root: Path, path: str, text: object = "") -> None:
    os.makedirs(os.path.dirname(root / path), exist_ok=True)
    with open(root / path, "w") as file:
        file.write(f"{text}\n")


def lay_out_cpus(root: Path, topology: Topology) -> None:
    """What `sys/devices/system` tells."""
    system = "sys/devices/system"
    write(root, f"{system}/node/possible", ranges(range(topology.nodes)))
    for node in range(topology.nodes):
        write(root, f"{system}/node/node{node}/cpulist", ranges(topology.of_node(node)))
    for cpu in topology.cpus:
        folder = f"{system}/cpu/cpu{cpu}"
        siblings = ranges([other for other in topology.cpus if topology.core(other) == topology.core(cpu)])
        sharers = ranges([other for other in topology.cpus if topology.cache(other) == topology.cache(cpu)])
        write(root, f"{folder}/topology/physical_package_id", topology.socket(cpu))
        write(root, f"{folder}/topology/thread_siblings_list", siblings)
        write(root, f"{folder}/cache/uevent")
        for index, (level, kind) in enumerate([(1, "Data"), (1, "Instruction"), (3, "Unified")]):
            write(root, f"{folder}/cache/index{index}/type", kind)
            write(root, f"{folder}/cache/index{index}/level", level)
            write(root, f"{folder}/cache/index{index}/shared_cpu_list", sharers if level == 3 else siblings)


def address(index: int) -> str:
    """Where the made-up GPU of that number is."""
    return f"0000:{index + 0x3B:02x}:00.0"


def lay_out_gpus(root: Path, nodes: Iterable[int]) -> list[str]:
    """GPUs on these NUMA nodes (-1: the kernel does not say); their addresses."""
    addresses = []
    for index, node in enumerate(nodes):
        addresses.append(address(index))
        write(root, f"sys/bus/pci/devices/{addresses[-1]}/numa_node", node)
    return addresses


def lay_out_proc(root: Path, minor: int, *, excluded: bool = False) -> None:
    """What NVIDIA's driver tells of a GPU, with its device file."""
    write(root, f"dev/nvidia{minor}")
    write(
        root,
        f"proc/driver/nvidia/gpus/{address(minor)}/information",
        "Model: \t\t NVIDIA H100\nIRQ:   \t\t 142\n"
        f"GPU UUID: \t GPU-{minor:08x}-aaaa\nVideo BIOS: \t 96.00.5e.00.01\nBus Location: \t {address(minor)}\n"
        f"Device Minor: \t {minor}\nGPU Excluded:\t {'Yes' if excluded else 'No'}",
    )


def lay_out_amd(root: Path, gpus: int, *, cpus: int = 2) -> None:
    """The compute topology: CPU nodes first."""
    write(root, "dev/kfd")
    nodes = "sys/class/kfd/kfd/topology/nodes"
    for node in range(cpus):
        write(root, f"{nodes}/{node}/properties", "cpu_cores_count 64\nsimd_count 0\nlocation_id 0\ndomain 0")
    for gpu in range(gpus):
        facts = f"location_id {(gpu + 0x3B) << 8}\ndomain 0\nunique_id {gpu + 0xA0 << 56}"
        write(root, f"{nodes}/{cpus + gpu}/properties", f"cpu_cores_count 0\nsimd_count 1216\n{facts}")


def lay_out_intel(
    root: Path, card: int, place: str, *, tiles: int = 1, driver: str = "xe", vendor: str = "0x8086"
) -> None:
    """A graphics device on the PCI bus, and its render node."""
    device = f"sys/devices/pci0000:00/{place}"
    write(root, f"dev/dri/renderD{128 + card}")
    write(root, f"{device}/vendor", vendor)
    write(root, f"{device}/drm/renderD{128 + card}/dev")
    write(root, f"{device}/drm/card{card}/dev")
    for tile in range(tiles):
        part = f"tile{tile}/gt0/id" if driver == "xe" else f"drm/card{card}/gt/gt{tile}/id"
        write(root, f"{device}/{part}")
    drm = root / "sys/class/drm"
    drm.mkdir(parents=True, exist_ok=True)
    (drm / f"card{card}").symlink_to(root / device / f"drm/card{card}")
    (root / device / f"drm/card{card}/device").symlink_to(root / device)
    (drm / f"card{card}-HDMI-A-1").symlink_to(root / device / f"drm/card{card}")


def lay_out_torch(root: Path, **built_for: str) -> str:
    """An installed torch, as far as it can be told without importing it; the folder to import it from."""
    kinds = {name: repr(built_for.get(name)) for name in ("cuda", "hip", "rocm", "xpu")}
    lines = [f"{name}: Optional[str] = {version}" for name, version in kinds.items()]
    write(root, "site-packages/torch/version.py", "\n".join(["from typing import Optional", "debug = False", *lines]))
    return os.fspath(root / "site-packages")
