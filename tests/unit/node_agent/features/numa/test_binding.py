"""Workers run near their GPUs, on the same CPUs as torch would choose."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.features.numa import MODES, words
from node_agent.features.numa.binding import NumaError, cpu_sets, ranges

# A simulated machine: Linux's files about CPUs, caches and NUMA nodes, below a folder.


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


def lay_out_gpus(root: Path, nodes: Iterable[int]) -> list[str]:
    """Make GPUs on these NUMA nodes (-1 if the kernel does not say), and return their addresses."""
    addresses = {f"0000:{index + 0x3B:02x}:00.0": node for index, node in enumerate(nodes)}
    for address, node in addresses.items():
        write(root, f"sys/bus/pci/devices/{address}/numa_node", node)
    return [*addresses]


# Which CPUs each worker gets.

TOPOLOGY = Topology()
"""CPUs 0-23 are the cores' first threads, 24-47 their second ones; six cores a NUMA node, three a cache."""
GPU_NODES = (0, 0, 1, 3)


@pytest.fixture(scope="module")
def host(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("host")
    lay_out_cpus(root, TOPOLOGY)
    return root


@pytest.fixture
def gpus(host) -> list[str]:
    return lay_out_gpus(host, GPU_NODES)


def sets_on(
    root: Path, mode: str, gpus: list[str], workers: int | None = None, allowed: Collection[int] = TOPOLOGY.cpus
):
    return cpu_sets(mode, gpus, len(gpus) if workers is None else workers, allowed=allowed, sysfs=f"{root}/sys")


CPUS_OF_NODES = ["0-5,24-29", "6-11,30-35", "12-17,36-41", "18-23,42-47"]


@pytest.mark.parametrize(
    ("mode", "nodes", "sets"),
    [
        ("node", GPU_NODES, [CPUS_OF_NODES[node] for node in GPU_NODES]),
        ("node", [-1], ["0-5,24-29"]),
        ("socket", GPU_NODES, ["0-11,24-35", "0-11,24-35", "0-11,24-35", "12-23,36-47"]),
        ("exclusive", GPU_NODES, ["0-2,24-26", "3-5,27-29", "6-11,30-35", "18-23,42-47"]),
        ("exclusive", [0, 0, 0, 0], ["0-1,24-25", "2-3,26-27", "4,28", "5,29"]),
        ("core-complex", GPU_NODES, ["0-2,24-26", "3-5,27-29", "6-8,30-32", "18-20,42-44"]),
        ("core-complex", [0, 0, 0], ["0-2,24-26", "3-5,27-29", "0-2,24-26"]),
    ],
    ids=[
        "the CPUs of the GPU's node",
        "the first node where the kernel names none",
        "those of the nodes on its socket",
        "cores of its own for each GPU of a node",
        "cores that are left over go to the first GPUs",
        "another cache for each GPU of a node",
        "caches are shared once every GPU has had one",
    ],
)
def test_every_gpu_has_its_cpus(host, mode, nodes, sets):
    assert [ranges(cpus) for cpus in sets_on(host, mode, lay_out_gpus(host, nodes))] == sets


def test_a_share_is_kept_for_a_gpu_without_a_worker(host, gpus):
    assert [ranges(cpus) for cpus in sets_on(host, "exclusive", gpus, workers=1)] == ["0-2,24-26"]


def test_core_complex_prefers_the_cache_of_which_the_process_may_use_most(host, gpus):
    sets = sets_on(host, "core-complex", gpus, 2, set(TOPOLOGY.cpus) - {0})
    assert [ranges(cpus) for cpus in sets] == ["3-5,27-29", "1-2,24-26"]


@pytest.mark.parametrize("mode", MODES)
def test_only_cpus_that_the_process_may_use_are_given(host, gpus, mode):
    allowed = {1, 4, 7, 10, 19, 22, 46}
    assert all(cpus and cpus <= allowed for cpus in sets_on(host, mode, gpus, allowed=allowed))


def test_the_agents_own_cpus_are_the_default(tmp_path):
    mine = os.sched_getaffinity(0)
    write(tmp_path, "sys/devices/system/node/node0/cpulist", ranges(range(max(mine) + 1)))
    gpus = lay_out_gpus(tmp_path, [0])
    assert cpu_sets("node", gpus, 1, sysfs=f"{tmp_path}/sys") == [mine]


def test_socket_passes_over_nodes_without_cpus_and_numbers_without_a_node(tmp_path):
    lay_out_cpus(tmp_path, TOPOLOGY)
    write(tmp_path, "sys/devices/system/node/possible", "0-31")
    write(tmp_path, "sys/devices/system/node/node4/cpulist", "")
    assert [ranges(cpus) for cpus in sets_on(tmp_path, "socket", lay_out_gpus(tmp_path, [3]))] == ["12-23,36-47"]


# Bindings that are not possible.


def refused(attempt: Callable[[], object]) -> str:
    with pytest.raises(NumaError) as caught:
        attempt()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (
            {"workers": 5},
            words.no_gpu_for_worker(5, 4),
        ),
        (
            {"gpus": ["0000:99:00.0"]},
            words.cannot_read(
                words.node_of_gpu_unknown(0),
                "{host}/sys/bus/pci/devices/0000:99:00.0/numa_node",
                "No such file or directory",
            ),
        ),
        (
            {"allowed": range(6, 12)},
            words.no_allowed_cpus(0, "0-5,24-29", "6-11"),
        ),
    ],
    ids=["more workers than GPUs", "a GPU that sysfs does not know", "no CPU near the GPU may be used"],
)
def test_an_impossible_binding_is_refused_with_the_reason(host, gpus, mode, asked, why):
    assert refused(lambda: sets_on(host, mode, **({"gpus": gpus} | asked))) == why.format(host=host)


def test_more_gpus_than_cores_cannot_be_exclusive(host, gpus):
    told = refused(lambda: sets_on(host, "exclusive", gpus, allowed={0, 24, 6, 18}))
    assert told == words.too_few_cores(gpus=2, node=0, cores=1)


CPUS = {"node/node0/cpulist": "0-1"}
CODE_CACHE = {f"cpu/cpu0/cache/index0/{name}": text for name, text in (("type", "Instruction"), ("level", 3))}


@pytest.mark.parametrize(
    ("mode", "files", "what"),
    [
        *((mode, {}, words.cpus_of_node_unknown(0)) for mode in MODES),
        ("socket", CPUS, words.no_socket(0)),
        ("exclusive", CPUS, words.core_unknown(0)),
        ("core-complex", CPUS, words.caches_unknown(0)),
        ("core-complex", CPUS | CODE_CACHE, words.caches_unknown(0)),
    ],
)
def test_a_missing_kernel_file_is_named_with_its_path(tmp_path, mode, files, what):
    for path, text in files.items():
        write(tmp_path, f"sys/devices/system/{path}", text)
    said = refused(lambda: sets_on(tmp_path, mode, lay_out_gpus(tmp_path, [-1])))
    assert said.startswith(f"{what}: {tmp_path}/sys/devices/system/")


# On any machine, and compared with torch.


@st.composite
def machines(draw) -> tuple[Topology, list[int], frozenset[int]]:
    """A topology, the NUMA nodes of its GPUs, and the CPUs that the process may use: at least one on each node."""
    parts = [draw(st.integers(1, most)) for most in (2, 2, 2, 2, 2)]
    topology = Topology(*parts)
    nodes = draw(st.lists(st.integers(-1, topology.nodes - 1), min_size=1, max_size=6))
    allowed = [draw(st.sets(st.sampled_from(sorted(topology.of_node(n))), min_size=1)) for n in range(topology.nodes)]
    return topology, nodes, frozenset().union(*allowed)


@pytest.mark.torch
@given(machines())
@settings(max_examples=25)
def test_on_any_machine_workers_get_the_same_cpus_as_from_torch(machine):
    topology, nodes, allowed = machine
    with TemporaryDirectory() as folder:
        root = Path(folder)
        lay_out_cpus(root, topology)
        gpus = lay_out_gpus(root, nodes)
        with torch_on(root, gpus, allowed) as theirs:
            for mode in MODES:
                expected = [theirs(mode, local_rank) for local_rank in range(len(gpus))]
                bound = expected.index(None) if None in expected else len(gpus)
                assert sets_on(root, mode, gpus, bound, allowed) == expected[:bound]
                if bound < len(gpus):
                    refused(lambda mode=mode, workers=bound + 1: sets_on(root, mode, gpus, workers, allowed))


@pytest.mark.torch
@pytest.mark.parametrize("mode", MODES)
def test_torch_binds_no_worker_either_where_there_is_no_numa_or_no_cpu(tmp_path, mode):
    gpus = lay_out_gpus(tmp_path, [0, 1])
    write(tmp_path, "sys/devices/system/node/possible", "0-1")
    write(tmp_path, "sys/devices/system/node/node1/cpulist", "8-9")
    with torch_on(tmp_path, gpus, frozenset({0})) as theirs:
        assert [theirs(mode, local_rank) for local_rank in (0, 1)] == [None, None]
    for which in gpus:
        refused(lambda which=which: sets_on(tmp_path, mode, [which], allowed={0}))


@contextmanager
def torch_on(
    root: Path, gpus: list[str], allowed: Collection[int]
) -> Iterator[Callable[[str, int], frozenset[int] | None]]:
    """Yield a function with torch's own answers on a simulated machine, None if torch raises."""
    from torch.numa import binding

    def properties(index: int) -> SimpleNamespace:
        domain, bus, device = (int(part, 16) for part in gpus[index].partition(".")[0].split(":"))
        return SimpleNamespace(pci_domain_id=domain, pci_bus_id=bus, pci_device_id=device)

    def answer(mode: str, local_rank: int) -> frozenset[int] | None:
        options = binding.NumaOptions(affinity_mode=binding.AffinityMode(mode))
        assert not options.should_fall_back_if_binding_fails
        try:
            cpus = binding._get_validated_logical_cpus_to_bind_to(gpu_index=local_rank, numa_options=options)
        except (OSError, RuntimeError, ValueError, ZeroDivisionError):
            return None
        return frozenset(cpus)

    os_of_torch = SimpleNamespace(
        path=os.path, listdir=lambda path: os.listdir(f"{root}{path}"), sched_getaffinity=lambda _: set(allowed)
    )
    cuda = SimpleNamespace(device_count=lambda: len(gpus), get_device_properties=properties)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(binding, "open", lambda path: open(f"{root}{path}"), raising=False)  # noqa: SIM115
        patch.setattr(binding, "os", os_of_torch)
        patch.setattr(binding, "torch", SimpleNamespace(cuda=cuda))
        patch.setattr(binding, "shutil", SimpleNamespace(which=lambda name: f"/usr/bin/{name}"))
        yield answer


@pytest.mark.torch
def test_every_binding_mode_of_torch_is_supported():
    from torch.numa.binding import AffinityMode

    assert sorted(MODES) == sorted(mode.value for mode in AffinityMode)


@given(st.sets(st.integers(0, 300)))
@settings(max_examples=50)
def test_cpus_are_written_as_the_kernel_writes_them(cpus):
    parts = [part.partition("-") for part in ranges(cpus).split(",") if part]
    runs = [range(int(low), int(high or low) + 1) for low, _, high in parts]
    assert sorted(cpus) == [cpu for run in runs for cpu in run]
    assert all(after.start > before.stop for before, after in pairwise(runs))
