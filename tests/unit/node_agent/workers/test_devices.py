"""`--nproc-per-node auto|cpu|gpu|xpu` counts what torch counts, and says what is missing where there is nothing."""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from node_agent.workers.devices import DeviceError, Host, count_workers, gpu_pci_addresses, visible
from tests.unit.node_agent.workers.made_up_host import (
    address,
    lay_out_amd,
    lay_out_intel,
    lay_out_proc,
    lay_out_torch,
    write,
)

CPUS = len(os.sched_getaffinity(0))
SOURCE = Path(__file__).with_name("fake_nvml.c")
UUIDS = ["GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44"]
MIG = "mig 3 0 MIG-dd55\nmig - - -\nmig 5 1 MIG-ee66"


@pytest.fixture(scope="module")
def compile_nvml(tmp_path_factory) -> Callable[..., str]:
    compiler = shutil.which("cc") or pytest.skip("no C compiler")

    def compile_nvml(*flags: str) -> str:
        library = os.fspath(tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1")
        subprocess.run([compiler, "-shared", "-fPIC", *flags, "-o", library, SOURCE], check=True)
        return library

    return compile_nvml


@pytest.fixture(scope="module")
def nvml(compile_nvml) -> str:
    """A library that answers for NVML, from the environment variable FAKE_NVML."""
    return compile_nvml()


@pytest.fixture
def host(tmp_path) -> Host:
    """A machine without any device, and no torch to be found."""
    return Host(root=os.fspath(tmp_path), nvml="libno-such-thing.so.1", python_path=())


@pytest.fixture
def nvidia(host, nvml, monkeypatch) -> Host:
    """One with four NVIDIA GPUs."""
    monkeypatch.setenv("FAKE_NVML", gpus())
    return replace(host, nvml=nvml)


def gpus(*lines: str, model: str = "NVIDIA H100 80GB HBM3") -> str:
    return "\n".join(lines or [f"gpu 0 0 {0x3B + n:x} 0 {uuid} {model}" for n, uuid in enumerate(UUIDS)])


def refused(attempt: Callable[[], object]) -> str:
    with pytest.raises(DeviceError) as caught:
        attempt()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# CPUs.


@pytest.mark.parametrize("wanted", ["cpu", "auto"])
def test_cpus_are_those_that_this_process_may_use(host, wanted):
    assert count_workers(wanted, {}, host) == CPUS


def test_anything_else_is_refused(host):
    said = refused(lambda: count_workers("tpu", {}, host))
    assert said == "'tpu' is not a number of workers: give a number, auto, cpu, gpu or xpu"


@pytest.mark.parametrize("wanted", ["gpu", "xpu"])
def test_a_machine_without_devices_is_told_what_was_looked_for(host, wanted):
    said = refused(lambda: count_workers(wanted, {}, host))
    looked_for = {
        "gpu": f"there is neither {host.nvml} nor, in {host.root}/proc/driver/nvidia/gpus, an NVIDIA GPU to be used, "
        f"and {host.root}/sys/class/kfd shows no AMD GPU",
        "xpu": f"{host.root}/sys/class/drm shows no Intel GPU that this process may use",
    }
    advice = "give a number of workers, or cpu, to do without"
    assert said == f"workers would see no {wanted.upper()}: {looked_for[wanted]}; {advice}"


def test_without_gpus_there_are_no_addresses(host):
    said = refused(lambda: gpu_pci_addresses({}, host))
    assert said.endswith("shows no AMD GPU; only workers with GPUs can be bound to the CPUs near them")


# NVIDIA.


@pytest.mark.parametrize("wanted", ["gpu", "auto"])
def test_nvidia_gpus_are_counted(nvidia, wanted):
    assert count_workers(wanted, {}, nvidia) == 4


def test_nvidia_gpus_are_no_xpus(nvidia):
    assert refused(lambda: count_workers("xpu", {}, nvidia))


VISIBLE = {
    "0,1": [0, 1],
    "3, 1": [3, 1],
    "2,-1,1": [2],
    "1,7,2": [1],
    "0,x,1": [0],
    "1st,2nd": [1, 2],
    "+2": [2],
    "0,0": [],
    "": [],
    "-1": [],
    "NoDevFiles": [],
    "0,GPU-bb33": [0],
    "GPU-bb33": [2],
    "GPU-c,GPU-b": [3, 2],
    "GPU-b,GPU-a,GPU-c": [2],
    "GPU-aa2,GPU-aa22": [],
    "GPU-b,1": [2],
    "GPU-b, GPU-c": [2],
}


@pytest.mark.parametrize(("value", "seen"), VISIBLE.items(), ids=map(repr, VISIBLE))
def test_cuda_visible_devices_chooses_and_orders(nvidia, value, seen):
    environment = {"CUDA_VISIBLE_DEVICES": value}
    if seen:
        assert count_workers("gpu", environment, nvidia) == len(seen)
        assert gpu_pci_addresses(environment, nvidia) == [address(index) for index in seen]
    else:
        assert count_workers("auto", environment, nvidia) == CPUS
        assert f"by CUDA_VISIBLE_DEVICES={value!r}" in refused(lambda: count_workers("gpu", environment, nvidia))


def test_hidden_gpus_are_told_from_missing_ones(nvidia):
    said = refused(lambda: count_workers("gpu", {"CUDA_VISIBLE_DEVICES": ""}, nvidia))
    assert said.startswith(
        "workers would see no GPU: 4 NVIDIA GPUs are there but hidden by CUDA_VISIBLE_DEVICES='', and "
    )


def test_addresses_are_written_as_sysfs_writes_them(nvidia, monkeypatch):
    monkeypatch.setenv("FAKE_NVML", gpus("gpu 0 0 3b 0 GPU-1 A", "gpu 0 10001 c 1f GPU-2 A"))
    assert gpu_pci_addresses({}, nvidia) == ["0000:3b:00.0", "10001:0c:1f.0"]


def test_gpus_that_differ_have_no_order_but_the_buss(nvidia, monkeypatch):
    monkeypatch.setenv("FAKE_NVML", gpus("gpu 0 0 3b 0 GPU-aa T1000", "gpu 0 0 3c 0 GPU-bb A100", "gpu 15 0 0 0 - -"))
    assert refused(lambda: gpu_pci_addresses({"CUDA_VISIBLE_DEVICES": "0"}, nvidia)) == (
        "the GPUs differ (A100, T1000) and CUDA orders them by speed: set CUDA_DEVICE_ORDER=PCI_BUS_ID"
    )
    for how in ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}, {"CUDA_VISIBLE_DEVICES": "GPU-b"}):
        assert gpu_pci_addresses(how, nvidia) == [address(1)]
    assert count_workers("gpu", {"CUDA_VISIBLE_DEVICES": "0,1"}, nvidia) == 2


@pytest.mark.parametrize(
    ("value", "bus"), [("MIG-dd55", 0x3B), ("MIG-e", 0x3B), ("MIG-GPU-aa/5/1", 0x3B), ("MIG-f", 0x3C)]
)
def test_a_mig_device_is_at_its_gpus_address(nvidia, monkeypatch, value, bus):
    monkeypatch.setenv(
        "FAKE_NVML", gpus("gpu 0 0 3b 0 GPU-aa H100", MIG, "gpu 0 0 3c 0 GPU-bb H100", "mig 1 0 MIG-ff77")
    )
    environment = {"CUDA_VISIBLE_DEVICES": value}
    assert gpu_pci_addresses(environment, nvidia) == [f"0000:{bus:02x}:00.0"]


def test_a_process_sees_one_mig_device_at_most(nvidia, monkeypatch):
    monkeypatch.setenv("FAKE_NVML", gpus("gpu 0 0 3b 0 GPU-aa H100", MIG))
    assert count_workers("gpu", {"CUDA_VISIBLE_DEVICES": "MIG-dd55,MIG-ee66"}, nvidia) == 1
    assert count_workers("gpu", {}, nvidia) == 1
    said = refused(lambda: count_workers("gpu", {"CUDA_VISIBLE_DEVICES": "MIG-1234"}, nvidia))
    assert f"{nvidia.nvml} shows no MIG device for CUDA_VISIBLE_DEVICES='MIG-1234'" in said


def test_a_driver_from_before_mig_is_enough(host, compile_nvml, monkeypatch):
    monkeypatch.setenv("FAKE_NVML", gpus())
    old = replace(host, nvml=compile_nvml("-DOLD_DRIVER"))
    assert count_workers("gpu", {}, old) == 4
    assert refused(lambda: count_workers("gpu", {"CUDA_VISIBLE_DEVICES": "MIG-dd55"}, old))


@pytest.mark.parametrize("wanted", ["gpu", "auto"])
def test_a_gpu_that_does_not_answer_is_named_unless_it_is_left_out(nvidia, monkeypatch, wanted):
    monkeypatch.setenv("FAKE_NVML", gpus("gpu 0 0 3b 0 GPU-aa H100", "gpu 15 0 0 0 GPU-bb H100"))
    assert refused(lambda: count_workers(wanted, {}, nvidia)) == (
        "NVIDIA GPU 1 does not answer: GPU is lost (NVML error 15); mend it, or leave it out with CUDA_VISIBLE_DEVICES"
    )
    assert count_workers(wanted, {"CUDA_VISIBLE_DEVICES": "0"}, nvidia) == 1
    assert gpu_pci_addresses({"CUDA_VISIBLE_DEVICES": "GPU-a"}, nvidia) == [address(0)]


def test_gpus_that_a_scheduler_keeps_from_the_process_are_not_counted(nvidia, monkeypatch):
    monkeypatch.setenv("FAKE_NVML", gpus("gpu 4 0 3b 0 - -", "gpu 0 0 3c 0 GPU-bb H100"))
    assert gpu_pci_addresses({"CUDA_VISIBLE_DEVICES": "0"}, nvidia) == [address(1)]


@pytest.mark.parametrize(
    ("code", "remark"),
    [(9, "counts no NVIDIA GPU"), (18, "says: Driver/library version mismatch (NVML error 18)")],
)
def test_a_driver_that_does_not_answer_is_told(nvidia, monkeypatch, code, remark):
    monkeypatch.setenv("FAKE_NVML", f"init {code}")
    assert f"{nvidia.nvml} {remark}" in refused(lambda: count_workers("gpu", {}, nvidia))
    assert count_workers("auto", {}, nvidia) == CPUS


def test_nvml_is_let_go(nvidia, compile_nvml, monkeypatch):
    own = replace(nvidia, nvml=compile_nvml())  # torch keeps its own open
    count_workers("gpu", {}, own)
    monkeypatch.setenv("FAKE_NVML", gpus("gpu 15 0 0 0 - -"))
    refused(lambda: count_workers("gpu", {}, own))
    assert ctypes.CDLL(own.nvml).fake_opened() == 0


def test_without_nvml_the_driver_itself_is_asked(host, tmp_path):
    for minor in (1, 0, 2):
        lay_out_proc(tmp_path, minor)
    assert gpu_pci_addresses({}, host) == [address(0), address(1), address(2)]
    assert gpu_pci_addresses({"CUDA_VISIBLE_DEVICES": "GPU-00000002,GPU-00000000"}, host) == [address(2), address(0)]
    assert count_workers("auto", {}, host) == 3


def test_mig_devices_are_nvmls_alone(host, tmp_path):
    lay_out_proc(tmp_path, 0)
    said = refused(lambda: count_workers("gpu", {"CUDA_VISIBLE_DEVICES": "MIG-dd55"}, host))
    assert f"{host.nvml} shows no MIG device for CUDA_VISIBLE_DEVICES='MIG-dd55'" in said


def test_a_gpu_that_was_not_passed_into_the_container_is_not_counted(host, tmp_path):
    lay_out_proc(tmp_path, 0)
    lay_out_proc(tmp_path, 1, excluded=True)
    lay_out_proc(tmp_path, 2)
    (tmp_path / "dev/nvidia0").unlink()
    assert gpu_pci_addresses({}, host) == [address(2)]


# CUDA_VISIBLE_DEVICES on its own, beside a naive model and beside torch.


NUMBERS = [lambda n: f"{n}", lambda n: f" {n} ", lambda n: f"+{n}", lambda n: f"{n}rd", lambda n: f"0{n}"]


@given(
    st.lists(st.tuples(st.integers(0, 6), st.sampled_from(NUMBERS)), max_size=5),
    st.sampled_from(["", ",-1", ",-1,0", ",x,1", ",,2", ",GPU-aa11"]),
)
def test_numbers_are_read_until_the_first_that_is_none(entries, rest):
    value = ",".join(write_number(number) for number, write_number in entries) + rest
    assume(entries)
    numbers = [number for number, _ in entries]
    expected = []
    for number in numbers:
        if number >= len(UUIDS):
            break
        expected.append(number)
    assert visible(value, UUIDS) == ([] if len(set(numbers)) < len(numbers) else expected)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(5, 8)), max_size=4), st.sampled_from(["", ",0", ",GPU-zz"]))
def test_beginnings_of_uuids_are_read_until_the_first_that_fits_not_one(entries, rest):
    assume(entries)
    expected = []
    for index, length in entries:
        if [uuid[:length] for uuid in UUIDS].count(UUIDS[index][:length]) > 1:
            break
        expected.append(index)
    names = [UUIDS[index][:length] for index, length in entries]
    repeated = len(set(names)) < len(names) or len(set(expected)) < len(expected)
    assert visible(",".join(names) + rest, UUIDS) == ([] if repeated else expected)


@given(
    st.text("0123,+-GPUMI a", max_size=12) | st.lists(st.sampled_from([*UUIDS, "GPU-a", "GPU-b", "1"])).map(",".join)
)
def test_whatever_the_value_each_device_is_there_once(value):
    chosen = visible(value, UUIDS)
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= set(range(len(UUIDS)))


@pytest.mark.torch
@given(
    st.text("0123,+-x ", max_size=8)
    | st.lists(st.sampled_from([*UUIDS, "GPU-aa2", "GPU-a", "GPU-b", "GPU-", "GPU-zz", "1", "", " "])).map(",".join)
)
def test_torch_reads_every_value_alike(value):
    torch_cuda = pytest.importorskip("torch").cuda
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", value)
        try:
            listed = torch_cuda._parse_visible_devices()
        except ValueError:  # its strtoul takes a sign alone for a number
            return
    if listed and isinstance(listed[0], str):
        expected = torch_cuda._transform_uuid_to_ordinals(listed, UUIDS)
    else:
        expected = listed[: next((i for i, number in enumerate(listed) if number >= len(UUIDS)), None)]
    assert visible(value, UUIDS) == expected


@pytest.mark.torch
@pytest.mark.parametrize("value", [None, *VISIBLE])
def test_torch_counts_the_same_gpus(nvidia, torch_on, value):
    environment = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    theirs = torch_on(nvidia, environment)("gpu")
    if theirs:
        assert count_workers("gpu", environment, nvidia) == theirs
    else:
        refused(lambda: count_workers("gpu", environment, nvidia))


@pytest.mark.torch
def test_torch_counts_the_same_cpus(torch_on, host):
    determine = torch_on(host, {})
    assert count_workers("cpu", os.environ) == determine("cpu")
    all_cpus = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(all_cpus)})
        assert count_workers("cpu", os.environ) == determine("cpu") == 1
    finally:
        os.sched_setaffinity(0, all_cpus)


@pytest.mark.torch
@pytest.mark.parametrize("wanted", ["auto", "cpu", "gpu", "xpu"])
def test_this_machine_is_to_us_what_it_is_to_its_torch(wanted):
    """Whatever there is: the torch that is installed here decides for what there may be workers."""
    theirs = _determine_local_world_size(wanted)
    if theirs:
        assert count_workers(wanted, os.environ) == theirs
    else:
        refused(lambda: count_workers(wanted, os.environ))


@pytest.fixture
def torch_on(monkeypatch) -> Callable[[Host, Mapping[str, str]], Callable[[str], int | None]]:
    """What torchrun makes of `--nproc-per-node` on such a host with a torch for CUDA; None where it raises."""
    torch = pytest.importorskip("torch")

    def torch_on(host: Host, environment: Mapping[str, str]) -> Callable[[str], int | None]:
        load = ctypes.CDLL
        monkeypatch.setattr(ctypes, "CDLL", lambda name: load(host.nvml if name == "libnvidia-ml.so.1" else name))
        monkeypatch.setattr(torch.cuda, "_is_compiled", lambda: True)
        monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return _determine_local_world_size

    return torch_on


def _determine_local_world_size(wanted: str) -> int | None:
    pytest.importorskip("torch")
    from torch.distributed.run import determine_local_world_size

    try:
        return determine_local_world_size(wanted)
    except ValueError:
        return None


# AMD.


def test_amd_gpus_are_counted_and_cpus_are_not(host, tmp_path):
    lay_out_amd(tmp_path, 3)
    assert count_workers("auto", {}, host) == 3
    assert gpu_pci_addresses({}, host) == [address(0), address(1), address(2)]


def test_amd_addresses_are_written_as_sysfs_writes_them(host, tmp_path):
    lay_out_amd(tmp_path, 0, cpus=1)
    place = 0xC1 << 8 | 0x1F << 3 | 2
    write(
        tmp_path,
        "sys/class/kfd/kfd/topology/nodes/1/properties",
        f"simd_count 8\nlocation_id {place}\ndomain 1",
    )
    assert gpu_pci_addresses({}, host) == ["0001:c1:1f.0"]


AMD_VISIBLE = [
    ({"HIP_VISIBLE_DEVICES": "2,0"}, [2, 0]),
    ({"CUDA_VISIBLE_DEVICES": "1"}, [1]),
    ({"HIP_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "1"}, [2]),
    ({"ROCR_VISIBLE_DEVICES": "3,1"}, [3, 1]),
    ({"ROCR_VISIBLE_DEVICES": "3,1", "HIP_VISIBLE_DEVICES": "1"}, [1]),
    ({"ROCR_VISIBLE_DEVICES": "0,GPU-A2"}, [0, 2]),
    ({"ROCR_VISIBLE_DEVICES": "GPU-a3,1,x,2"}, [3, 1]),
    ({"ROCR_VISIBLE_DEVICES": "1,1,2"}, [1]),
    ({"ROCR_VISIBLE_DEVICES": "GPU-a,1"}, []),
    ({"ROCR_VISIBLE_DEVICES": ""}, []),
    ({"HIP_VISIBLE_DEVICES": "-1"}, []),
    ({"ROCR_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, []),
]


@pytest.mark.parametrize(("environment", "seen"), AMD_VISIBLE, ids=str)
def test_rocms_variables_choose_and_order(host, tmp_path, environment, seen):
    lay_out_amd(tmp_path, 4)
    if seen:
        assert gpu_pci_addresses(environment, host) == [address(index) for index in seen]
    else:
        said = refused(lambda: count_workers("gpu", environment, host))
        values = " and ".join(f"{name}={value!r}" for name, value in environment.items())
        assert f"4 AMD GPUs are there but hidden by {values}; " in said


def test_more_than_ten_gpus_keep_their_order(host, tmp_path):
    lay_out_amd(tmp_path, 12)
    assert gpu_pci_addresses({}, host) == [address(index) for index in range(12)]


def test_a_gpu_whose_node_cannot_be_read_is_not_counted(host, tmp_path):
    """The kernel refuses to show the node of a GPU that a cgroup keeps from the process."""
    lay_out_amd(tmp_path, 3)
    hidden = tmp_path / "sys/class/kfd/kfd/topology/nodes/3/properties"
    hidden.unlink()
    hidden.mkdir()
    assert gpu_pci_addresses({}, host) == [address(0), address(2)]


def test_amd_gpus_count_only_where_their_driver_is_to_be_had(host, tmp_path):
    lay_out_amd(tmp_path, 3)
    (tmp_path / "dev/kfd").unlink()
    assert count_workers("auto", {}, host) == CPUS


def test_nvidia_goes_before_amd(nvidia, tmp_path):
    lay_out_amd(tmp_path, 3)
    assert count_workers("gpu", {}, nvidia) == 4


# Intel.


@pytest.mark.parametrize("wanted", ["xpu", "auto"])
@pytest.mark.parametrize("driver", ["xe", "i915"])
def test_every_tile_of_an_intel_gpu_is_a_device(host, tmp_path, wanted, driver):
    lay_out_intel(tmp_path, 1, "0000:9a:00.0", tiles=2, driver=driver)
    lay_out_intel(tmp_path, 0, "0000:03:00.0", tiles=2, driver=driver)
    assert count_workers(wanted, {}, host) == 4
    assert count_workers(wanted, {"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}, host) == 2


@pytest.mark.parametrize(("mask", "count"), [("0,2", 2), ("3,3", 1), ("1,9", 1), ("0.0,1.1", 2), ("-1,x,2", 1)])
def test_the_affinity_mask_chooses(host, tmp_path, mask, count):
    for card in range(4):
        lay_out_intel(tmp_path, card, f"0000:{card + 3:02x}:00.0")
    assert count_workers("xpu", {"ZE_AFFINITY_MASK": mask}, host) == count


def test_an_affinity_mask_that_leaves_nothing_is_named(host, tmp_path):
    lay_out_intel(tmp_path, 0, "0000:03:00.0")
    said = refused(lambda: count_workers("xpu", {"ZE_AFFINITY_MASK": "7"}, host))
    assert "1 Intel GPU is there but hidden by ZE_AFFINITY_MASK='7'" in said


def test_an_integrated_gpu_counts_where_it_is_asked_for_and_alone(host, tmp_path):
    lay_out_intel(tmp_path, 0, "0000:00:02.0", tiles=2)
    assert count_workers("xpu", {}, host) == 1
    assert count_workers("auto", {}, host) == CPUS
    lay_out_intel(tmp_path, 1, "0000:03:00.0")
    lay_out_intel(tmp_path, 2, "0000:04:00.0")
    assert count_workers("xpu", {}, host) == count_workers("auto", {}, host) == 2


def test_other_vendors_and_devices_out_of_reach_are_no_xpus(host, tmp_path):
    lay_out_intel(tmp_path, 0, "0000:03:00.0", vendor="0x1a03")
    lay_out_intel(tmp_path, 1, "0000:04:00.0")
    (tmp_path / "dev/dri/renderD129").unlink()
    assert refused(lambda: count_workers("xpu", {}, host))


def test_an_intel_gpu_is_no_gpu_of_cudas(host, tmp_path):
    lay_out_intel(tmp_path, 0, "0000:03:00.0")
    assert refused(lambda: count_workers("gpu", {}, host))


# What torch was built for.


BUILDS = [({"cuda": "12.9"}, 4), ({"hip": "6.4.2", "rocm": "6.4.2"}, 3), ({"xpu": "20250302"}, 2), ({}, CPUS)]


@pytest.mark.parametrize(("built_for", "count"), BUILDS, ids=["CUDA", "ROCm", "XPU", "CPU"])
def test_auto_counts_what_the_installed_torch_can_use(nvidia, tmp_path, built_for, count):
    lay_out_amd(tmp_path, 3)
    lay_out_intel(tmp_path, 0, "0000:03:00.0", tiles=2)
    host = replace(nvidia, python_path=["/nowhere", lay_out_torch(tmp_path, **built_for)])
    assert count_workers("auto", {}, host) == count


def test_a_torch_without_gpus_is_named(nvidia, tmp_path):
    folder = lay_out_torch(tmp_path)
    host = replace(nvidia, python_path=[folder])
    assert refused(lambda: count_workers("gpu", {}, host)) == (
        f"workers would see no GPU: torch in {folder}/torch is built without CUDA and ROCm; "
        "give a number of workers, or cpu, to do without"
    )
    assert "is built without XPU" in refused(lambda: count_workers("xpu", {}, host))


def test_another_interpreter_may_have_another_torch(nvidia, tmp_path):
    host = replace(nvidia, python_path=[lay_out_torch(tmp_path)])
    assert count_workers("gpu", {"PYTHON_EXEC": "/opt/training/bin/python"}, host) == 4


def test_counting_imports_neither_torch_nor_what_only_nvml_needs():
    program = "import sys, node_agent.workers.devices, node_agent.workers.numa; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert not {"torch", "ctypes", "asyncio", "subprocess"} & set(done.stdout.split())
