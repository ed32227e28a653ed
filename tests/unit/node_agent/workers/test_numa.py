"""Workers run near their GPUs, on the CPUs that torch would choose."""

import os
from collections.abc import Callable, Collection
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TextIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.workers.numa import MODES, NumaError, cpu_sets, ranges
from tests.unit.node_agent.workers.made_up_host import Topology, lay_out_cpus, lay_out_gpus, write

TOPOLOGY = Topology(sockets=2, nodes_per_socket=2, caches_per_node=2, cores_per_cache=3, threads=2)
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


def sets_on(root: Path, mode: str, gpus: list[str], workers: int | None = None, allowed: Collection[int] | None = None):
    workers = len(gpus) if workers is None else workers
    return cpu_sets(mode, gpus, workers, allowed=TOPOLOGY.cpus if allowed is None else allowed, sysfs=f"{root}/sys")


def in_words(sets: list[frozenset[int]]) -> list[str]:
    return [ranges(cpus) for cpus in sets]


def test_node_gives_the_cpus_of_the_gpus_numa_node(host, gpus):
    assert in_words(sets_on(host, "node", gpus)) == ["0-5,24-29", "0-5,24-29", "6-11,30-35", "18-23,42-47"]


def test_socket_gives_those_of_the_nodes_on_its_socket(host, gpus):
    assert in_words(sets_on(host, "socket", gpus)) == ["0-11,24-35"] * 3 + ["12-23,36-47"]


def test_exclusive_gives_each_gpu_of_a_node_cores_of_its_own(host, gpus):
    assert in_words(sets_on(host, "exclusive", gpus)) == ["0-2,24-26", "3-5,27-29", "6-11,30-35", "18-23,42-47"]


def test_exclusive_gives_the_first_gpus_the_cores_that_are_left_over(host):
    gpus = lay_out_gpus(host, [0] * 4)
    assert in_words(sets_on(host, "exclusive", gpus)) == ["0-1,24-25", "2-3,26-27", "4,28", "5,29"]


def test_a_share_is_kept_for_a_gpu_without_a_worker(host, gpus):
    assert in_words(sets_on(host, "exclusive", gpus, workers=1)) == ["0-2,24-26"]


def test_core_complex_gives_each_gpu_of_a_node_another_cache(host, gpus):
    assert in_words(sets_on(host, "core-complex", gpus)) == ["0-2,24-26", "3-5,27-29", "6-8,30-32", "18-20,42-44"]


def test_core_complex_prefers_the_cache_of_which_the_process_may_use_most(host, gpus):
    allowed = set(TOPOLOGY.cpus) - {0}
    assert in_words(sets_on(host, "core-complex", gpus, 2, allowed)) == ["3-5,27-29", "1-2,24-26"]


def test_caches_are_shared_once_every_gpu_of_a_node_has_had_one(host):
    gpus = lay_out_gpus(host, [0] * 3)
    assert in_words(sets_on(host, "core-complex", gpus)) == ["0-2,24-26", "3-5,27-29", "0-2,24-26"]


@pytest.mark.parametrize("mode", MODES)
def test_only_cpus_that_the_process_may_use_are_given(host, gpus, mode):
    allowed = {1, 4, 7, 10, 19, 22, 46}
    assert all(cpus and cpus <= allowed for cpus in sets_on(host, mode, gpus, allowed=allowed))


def test_the_agents_own_cpus_are_the_default(tmp_path):
    mine = os.sched_getaffinity(0)
    write(tmp_path, "sys/devices/system/node/node0/cpulist", ranges(range(max(mine) + 1)))
    gpus = lay_out_gpus(tmp_path, [0])
    assert cpu_sets("node", gpus, 1, sysfs=f"{tmp_path}/sys") == [mine]


def test_where_the_kernel_names_no_node_it_is_the_first(host):
    assert in_words(sets_on(host, "node", lay_out_gpus(host, [-1]))) == ["0-5,24-29"]


def test_socket_passes_over_nodes_without_cpus_and_numbers_without_a_node(tmp_path):
    lay_out_cpus(tmp_path, TOPOLOGY)
    write(tmp_path, "sys/devices/system/node/possible", "0-31")
    write(tmp_path, "sys/devices/system/node/node4/cpulist", "")
    assert in_words(sets_on(tmp_path, "socket", lay_out_gpus(tmp_path, [3]))) == ["12-23,36-47"]


# What cannot be bound.


def refused(attempt: Callable[[], object]) -> str:
    with pytest.raises(NumaError) as caught:
        attempt()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("mode", MODES)
def test_a_worker_without_a_gpu_of_its_own_is_refused(host, gpus, mode):
    assert refused(lambda: sets_on(host, mode, gpus, workers=5)) == (
        "no GPU for local rank 4: workers to bind: 5, visible GPUs: 4; start one worker for each GPU, or bind none"
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_gpu_that_sysfs_does_not_know_is_named(host, mode):
    said = refused(lambda: sets_on(host, mode, ["0000:99:00.0"]))
    path = f"{host}/sys/bus/pci/devices/0000:99:00.0/numa_node"
    assert said == f"the NUMA node of GPU 0 is unknown: {path}: No such file or directory"


@pytest.mark.parametrize("mode", MODES)
def test_a_kernel_without_numa_is_named(tmp_path, mode):
    said = refused(lambda: sets_on(tmp_path, mode, lay_out_gpus(tmp_path, [-1])))
    assert said.startswith("the CPUs of NUMA node 0 are unknown: ")
    assert said.endswith("/sys/devices/system/node/node0/cpulist: No such file or directory")


@pytest.mark.parametrize("mode", MODES)
def test_a_process_that_may_not_run_near_the_gpu_is_refused(host, gpus, mode):
    assert refused(lambda: sets_on(host, mode, gpus, allowed=range(6, 12))) == (
        "this process may use none of the CPUs of NUMA node 0 (0-5,24-29), only 6-11; "
        "allow some of them, or bind no worker"
    )


def test_more_gpus_than_cores_cannot_be_exclusive(host, gpus):
    assert refused(lambda: sets_on(host, "exclusive", gpus, allowed={0, 24, 6, 18})) == (
        "exclusive binding needs a core for each of the 2 GPUs of NUMA node 0; this process may use 1 there"
    )


def test_cpus_without_a_data_cache_have_no_core_complex(tmp_path):
    write(tmp_path, "sys/devices/system/node/node0/cpulist", "0-1")
    for name, text in {"type": "Instruction", "level": 3, "shared_cpu_list": "0-1"}.items():
        write(tmp_path, f"sys/devices/system/cpu/cpu0/cache/index0/{name}", text)
    said = refused(lambda: sets_on(tmp_path, "core-complex", lay_out_gpus(tmp_path, [0])))
    assert said.startswith("the caches of CPU 0 are unknown: ")


@pytest.mark.parametrize(
    ("mode", "what"), [("socket", "has no socket"), ("exclusive", "the core of"), ("core-complex", "the caches of")]
)
def test_what_the_kernel_does_not_tell_is_named(tmp_path, mode, what):
    write(tmp_path, "sys/devices/system/node/node0/cpulist", "0-1")
    assert what in refused(lambda: sets_on(tmp_path, mode, lay_out_gpus(tmp_path, [0])))


# On any machine, and beside torch.


@st.composite
def machines(draw) -> tuple[Topology, list[int], frozenset[int]]:
    """A topology, the NUMA nodes of its GPUs, and the CPUs that the process may use: at least one on each node."""
    parts = [draw(st.integers(1, most)) for most in (2, 2, 2, 2, 2)]
    topology = Topology(*parts)
    nodes = draw(st.lists(st.integers(-1, topology.nodes - 1), min_size=1, max_size=6))
    allowed = [draw(st.sets(st.sampled_from(sorted(topology.of_node(n))), min_size=1)) for n in range(topology.nodes)]
    return topology, nodes, frozenset().union(*allowed)


@given(machines())
@settings(max_examples=25)
def test_a_narrower_mode_gives_no_cpu_that_a_wider_one_does_not(machine):
    topology, nodes, allowed = machine
    with laid_out(machine) as (root, gpus):
        found = {mode: sets_on(root, mode, gpus, allowed=allowed) for mode in ("core-complex", "node", "socket")}
    for complex_, node, socket, number in zip(*found.values(), nodes, strict=True):
        assert complex_ <= node <= socket <= allowed
        assert node == topology.of_node(max(number, 0)) & allowed
        assert len({topology.cache(cpu) for cpu in complex_}) == 1


@given(machines())
@settings(max_examples=25)
def test_exclusive_shares_divide_the_cores_of_a_node_evenly(machine):
    topology, nodes, allowed = machine
    with laid_out(machine) as (root, gpus):
        try:
            sets = sets_on(root, "exclusive", gpus, allowed=allowed)
        except NumaError as error:
            assert str(error).startswith("exclusive binding needs a core for each")
            return
    for node in {max(number, 0) for number in nodes}:
        shares = [cpus for cpus, number in zip(sets, nodes, strict=True) if max(number, 0) == node]
        cores = [{topology.core(cpu) for cpu in cpus} for cpus in shares]
        assert sum(map(len, shares)) == len(frozenset().union(*shares))
        assert frozenset().union(*shares) == topology.of_node(node) & allowed
        assert sum(map(len, cores)) == len(set().union(*cores))
        assert max(map(len, cores)) - min(map(len, cores)) <= 1


@pytest.mark.torch
@pytest.mark.parametrize("allowed", [TOPOLOGY.cpus, (2, 3, 4, 9, 18, 20, 26, 27, 30, 36, 42)], ids=["all", "some"])
@pytest.mark.parametrize("mode", MODES)
def test_every_gpu_of_two_sockets_is_bound_as_by_torch(host, gpus, mode, allowed):
    pytest.importorskip("torch")
    with TorchOn(host, gpus, frozenset(allowed)) as theirs:
        assert sets_on(host, mode, gpus, allowed=allowed) == [theirs(mode, index) for index in range(len(gpus))]


@pytest.mark.torch
@given(machines())
@settings(max_examples=25)
def test_on_any_machine_every_worker_gets_what_torch_would_give_it(machine):
    pytest.importorskip("torch")
    allowed = machine[2]
    with laid_out(machine) as (root, gpus), TorchOn(root, gpus, allowed) as theirs:
        for mode in MODES:
            expected = [theirs(mode, local_rank) for local_rank in range(len(gpus))]
            bound = expected.index(None) if None in expected else len(gpus)
            assert sets_on(root, mode, gpus, bound, allowed) == expected[:bound]
            if bound < len(gpus):
                refused(lambda mode=mode, workers=bound + 1: sets_on(root, mode, gpus, workers, allowed))


@pytest.mark.torch
@pytest.mark.parametrize("mode", MODES)
def test_torch_binds_no_worker_either_where_there_is_no_numa_or_no_cpu(tmp_path, mode):
    pytest.importorskip("torch")
    gpus = lay_out_gpus(tmp_path, [0, 1])
    write(tmp_path, "sys/devices/system/node/possible", "0-1")
    write(tmp_path, "sys/devices/system/node/node1/cpulist", "8-9")
    with TorchOn(tmp_path, gpus, frozenset({0})) as theirs:
        assert [theirs(mode, local_rank) for local_rank in (0, 1)] == [None, None]
    for which in gpus:
        refused(lambda which=which: sets_on(tmp_path, mode, [which], allowed={0}))


class laid_out:
    """A made-up machine, for as long as a `with`."""

    def __init__(self, machine: tuple[Topology, list[int], frozenset[int]]) -> None:
        self._topology, self._nodes, _ = machine
        self._folder = TemporaryDirectory()

    def __enter__(self) -> tuple[Path, list[str]]:
        root = Path(self._folder.name)
        lay_out_cpus(root, self._topology)
        return root, lay_out_gpus(root, self._nodes)

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()


class TorchOn:
    """torch's own answers on a made-up machine; None where it raises."""

    def __init__(self, root: Path, gpus: list[str], allowed: frozenset[int]) -> None:
        self._root, self._gpus, self._allowed = root, gpus, allowed
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> Callable[[str, int], frozenset[int] | None]:
        from torch.numa import binding

        os_of_torch = SimpleNamespace(
            path=os.path,
            listdir=lambda path: os.listdir(f"{self._root}{path}"),
            sched_getaffinity=lambda _: set(self._allowed),
        )
        cuda = SimpleNamespace(device_count=lambda: len(self._gpus), get_device_properties=self._properties)
        self._patch.setattr(binding, "open", self._open, raising=False)
        self._patch.setattr(binding, "os", os_of_torch)
        self._patch.setattr(binding, "torch", SimpleNamespace(cuda=cuda))
        self._patch.setattr(binding, "shutil", SimpleNamespace(which=lambda name: f"/usr/bin/{name}"))
        return self._answer

    def __exit__(self, *_: object) -> None:
        self._patch.undo()

    def _open(self, path: str) -> TextIO:
        return open(f"{self._root}{path}")

    def _properties(self, index: int) -> SimpleNamespace:
        domain, bus, device = (int(part, 16) for part in self._gpus[index].partition(".")[0].split(":"))
        return SimpleNamespace(pci_domain_id=domain, pci_bus_id=bus, pci_device_id=device)

    def _answer(self, mode: str, local_rank: int) -> frozenset[int] | None:
        from torch.numa.binding import AffinityMode, NumaOptions, _get_validated_logical_cpus_to_bind_to

        options = NumaOptions(affinity_mode=AffinityMode(mode))
        assert not options.should_fall_back_if_binding_fails
        try:
            return frozenset(_get_validated_logical_cpus_to_bind_to(gpu_index=local_rank, numa_options=options))
        except (OSError, RuntimeError, ValueError, ZeroDivisionError):
            return None


@pytest.mark.torch
def test_there_is_no_mode_of_torchs_that_is_missing():
    pytest.importorskip("torch")
    from torch.numa.binding import AffinityMode

    assert sorted(MODES) == sorted(mode.value for mode in AffinityMode)


@given(st.sets(st.integers(0, 300)))
@settings(max_examples=50)
def test_cpus_are_written_as_the_kernel_writes_them(cpus):
    parts = [part.partition("-") for part in ranges(cpus).split(",") if part]
    runs = [range(int(low), int(high or low) + 1) for low, _, high in parts]
    assert sorted(cpus) == [cpu for run in runs for cpu in run]
    assert all(after.start > before.stop for before, after in pairwise(runs))
