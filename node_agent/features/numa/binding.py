"""The CPUs near each worker's GPU: `--numa-binding node|socket|exclusive|core-complex`, from sysfs.

The sets are those of torch 2.13 (`torch/numa/binding.py`), which gives GPU n to local rank n. There are two
differences. `numactl` need not be installed. `socket` skips a NUMA node without CPUs for this process, and one that the
kernel only reserves a number for; torch fails there.

A binding that cannot be made is an error, as in torchrun. Torch could run without binding
(`NumaOptions.should_fall_back_if_binding_fails`), but does not by default, and torchrun has no flag for it.
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from glob import glob
from itertools import pairwise

from node_agent.features.numa import words
from node_agent.kernel.workers.devices import DeviceError


class NumaError(Exception):
    """The workers cannot be bound as requested. One line: what is missing, and where it was looked for."""


def near_gpus(mode: str, pci_addresses: Callable[[str], Sequence[str]], workers: int) -> tuple[frozenset[int], ...]:
    """Return the CPUs on which each worker of this node may run, by local rank. Raises `NumaError`.

    `pci_addresses`: returns the PCI addresses of all GPUs that a worker sees. Its argument is the advice in the error
    if there are none.
    """
    try:
        addresses = pci_addresses(words.NEEDS_ACCELERATORS)
    except DeviceError as error:
        raise NumaError(str(error)) from None
    return tuple(cpu_sets(mode, addresses, workers))


def cpu_sets(
    mode: str, addresses: Sequence[str], workers: int, *, allowed: Collection[int] | None = None, sysfs: str = "/sys"
) -> list[frozenset[int]]:
    """Return the CPUs on which each worker of this node may run, by local rank. No set is empty. Raises `NumaError`.

    `node`: those of the NUMA node of the worker's GPU.
    `socket`: those of all NUMA nodes of that node's socket.
    `exclusive`: an equal share of the node's cores for each of its GPUs. The first ones get the remaining cores.
    `core-complex`: those that share a last-level cache, a different one for each of the node's GPUs, the largest first.

    `addresses`: the PCI addresses of all GPUs that a worker sees, in its order. `allowed`: CPUs to choose from, None
    for those that this process may use.
    """
    if workers > len(addresses):
        raise NumaError(words.no_gpu_for_worker(workers, len(addresses)))
    machine = _Machine(sysfs, frozenset(os.sched_getaffinity(0) if allowed is None else allowed))
    nodes = [machine.node_of_gpu(index, address) for index, address in enumerate(addresses)]
    shares = {node: iter(_SHARES[mode](machine, node, nodes.count(node))) for node in sorted(set(nodes[:workers]))}
    return [next(shares[node]) for node in nodes[:workers]]


def ranges(cpus: Collection[int]) -> str:
    """Return CPUs as the kernel writes them: "0-3,8"."""
    first = [cpu for cpu in sorted(cpus) if cpu - 1 not in cpus]
    last = [cpu for cpu in sorted(cpus) if cpu + 1 not in cpus]
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in zip(first, last, strict=True))


class _Machine:
    """CPUs, NUMA nodes and caches of this host from sysfs, as far as this process may use them."""

    def __init__(self, sysfs: str, allowed: frozenset[int]) -> None:
        self._sysfs = sysfs
        self._allowed = allowed

    def node_of_gpu(self, index: int, address: str) -> int:
        text = self._read(f"bus/pci/devices/{address}/numa_node", lambda: words.node_of_gpu_unknown(index))
        return max(int(text), 0)  # the kernel writes -1 if there is only one node

    def cpus_of_node(self, node: int) -> frozenset[int]:
        """Return the CPUs of the NUMA node that this process may use, at least one."""
        path = f"devices/system/node/node{node}/cpulist"
        cpus = self._cpus(path, lambda: words.cpus_of_node_unknown(node))
        if not cpus & self._allowed:
            raise NumaError(words.no_allowed_cpus(node, ranges(cpus), ranges(self._allowed)))
        return cpus & self._allowed

    def nodes(self) -> list[int]:
        return sorted(self._cpus("devices/system/node/possible", lambda: words.NUMA_NODES_UNKNOWN))

    def socket_of_node(self, node: int) -> int:
        cpu = min(self.cpus_of_node(node))
        path = f"devices/system/cpu/cpu{cpu}/topology/physical_package_id"
        return int(self._read(path, lambda: words.no_socket(cpu)))

    def core_of_cpu(self, cpu: int) -> frozenset[int]:
        path = f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        return self._cpus(path, lambda: words.core_unknown(cpu))

    def cache_of_cpu(self, cpu: int) -> frozenset[int]:
        """Return the CPUs that share this one's last-level cache."""

        def unknown() -> str:
            return words.caches_unknown(cpu)

        folder, levels = f"devices/system/cpu/cpu{cpu}/cache", {}
        for index in glob("index*", root_dir=f"{self._sysfs}/{folder}"):
            if self._read(f"{folder}/{index}/type", unknown) in ("Unified", "Data"):
                levels[int(self._read(f"{folder}/{index}/level", unknown))] = index
        if not levels:
            raise NumaError(words.no_data_cache(unknown(), f"{self._sysfs}/{folder}"))
        return self._cpus(f"{folder}/{levels[max(levels)]}/shared_cpu_list", unknown)

    def _cpus(self, path: str, unknown: Callable[[], str]) -> frozenset[int]:
        """Return the numbers of a list like "0-3,8"."""
        bounds = (part.partition("-") for part in self._read(path, unknown).split(",") if part)
        return frozenset(cpu for low, _, high in bounds for cpu in range(int(low), int(high or low) + 1))

    def _read(self, path: str, unknown: Callable[[], str]) -> str:
        try:
            with open(f"{self._sysfs}/{path}", encoding="ascii") as file:
                return file.read().strip()
        except OSError as error:
            why = words.cannot_read(unknown(), f"{self._sysfs}/{path}", error.strerror or str(error))
            raise NumaError(why) from None


def _groups(cpus: frozenset[int], group_of: Callable[[int], frozenset[int]]) -> list[frozenset[int]]:
    """Return the CPUs by group, ordered by each group's first CPU, even if that CPU is not in `cpus`."""
    groups = {}
    left = set(cpus)
    while left:
        group = group_of(min(left)) | {min(left)}
        groups[min(group)] = group & cpus
        left -= group
    return [groups[first] for first in sorted(groups)]


# CPUs for each GPU of a NUMA node, in the order of the GPUs.


def _whole_node(machine: _Machine, node: int, gpus: int) -> list[frozenset[int]]:
    return [machine.cpus_of_node(node)] * gpus


def _whole_socket(machine: _Machine, node: int, gpus: int) -> list[frozenset[int]]:
    socket = machine.socket_of_node(node)
    cpus: frozenset[int] = frozenset()
    for other in machine.nodes():
        try:
            if machine.socket_of_node(other) == socket:
                cpus |= machine.cpus_of_node(other)
        except NumaError:  # a node without CPUs, or a missing one
            continue
    return [cpus] * gpus


def _exclusive_cores(machine: _Machine, node: int, gpus: int) -> list[frozenset[int]]:
    cores = _groups(machine.cpus_of_node(node), machine.core_of_cpu)
    share, left_over = divmod(len(cores), gpus)
    if not share:
        raise NumaError(words.too_few_cores(gpus, node, len(cores)))
    ends = [share * count + min(count, left_over) for count in range(gpus + 1)]
    return [frozenset().union(*cores[start:end]) for start, end in pairwise(ends)]


def _one_cache(machine: _Machine, node: int, gpus: int) -> list[frozenset[int]]:
    caches = sorted(_groups(machine.cpus_of_node(node), machine.cache_of_cpu), key=len, reverse=True)
    return [caches[index % len(caches)] for index in range(gpus)]


_SHARES: Mapping[str, Callable[[_Machine, int, int], list[frozenset[int]]]] = {
    "node": _whole_node,
    "socket": _whole_socket,
    "exclusive": _exclusive_cores,
    "core-complex": _one_cache,
}
