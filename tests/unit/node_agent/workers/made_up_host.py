"""A host that is made up: the files in which Linux tells about CPUs, caches, and NUMA nodes, below a folder."""

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
    """Content of `sys/devices/system`."""
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
    """PCI address of the made-up GPU of that number."""
    return f"0000:{index + 0x3B:02x}:00.0"


def lay_out_gpus(root: Path, nodes: Iterable[int]) -> list[str]:
    """GPUs on these NUMA nodes (-1: the kernel does not say); their addresses."""
    addresses = []
    for index, node in enumerate(nodes):
        addresses.append(address(index))
        write(root, f"sys/bus/pci/devices/{addresses[-1]}/numa_node", node)
    return addresses
