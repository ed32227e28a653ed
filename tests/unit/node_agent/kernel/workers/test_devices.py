"""Number of devices, by a simulated torch, and by the installed one."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from node_agent import words
from node_agent.kernel.workers import devices
from node_agent.kernel.workers.devices import DeviceError, Devices
from tests.support.message_search import pattern

MADE_UP = """
import atexit, os, warnings
from types import SimpleNamespace

__version__ = "9.9"
DEVICE, BUSES, WARNING = {device!r}, {buses!r}, {warning!r}


class _Module:
    def __init__(self, name):
        self.name = name

    def device_count(self):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hidden = visible is not None and not visible
        return len(BUSES) if self.name == DEVICE and not hidden else 0

    def is_available(self):
        if WARNING:
            warnings.warn(WARNING)
        return self.device_count() > 0

    def get_device_properties(self, index):
        if BUSES[index] is None:
            return SimpleNamespace()
        return SimpleNamespace(pci_domain_id=0, pci_bus_id=BUSES[index], pci_device_id=0)


cuda, xpu, npu = map(_Module, ("cuda", "xpu", "npu"))
accelerator = SimpleNamespace(
    is_available=lambda: globals()[DEVICE].is_available(),
    current_accelerator=lambda: SimpleNamespace(type=DEVICE),
)
print("a torch may print what it likes")
atexit.register(print, "also at its end")
"""
CPUS = len(os.sched_getaffinity(0))
ADVICE = "buy some"
OLD = "the driver is older than this torch"


class Torch:
    """Environment of workers whose interpreter finds a simulated torch."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "torch.py"
        self.environment = {"PYTHONPATH": str(folder), "PATH": os.environ["PATH"]}

    def sees(self, device: str, *buses: int | None, warning: str = "") -> Mapping[str, str]:
        return self.says(MADE_UP.format(device=device, buses=buses, warning=warning))

    def says(self, source: str) -> Mapping[str, str]:
        self._file.write_text(source)
        return self.environment


def count_workers(wanted: str, environment: Mapping[str, str], log: Callable[[str], None] = lambda line: None) -> int:
    return Devices(environment, log, addresses=False).count_workers(wanted)


def pci_addresses(environment: Mapping[str, str], log: Callable[[str], None] = lambda line: None) -> list[str]:
    return Devices(environment, log, addresses=True).pci_addresses(ADVICE)


def none_seen(why: str, **fields: str) -> str:
    """Return the pattern of the refusal if there are no devices and no variable hides any."""
    return pattern(words.devices.none_seen, why=why, hiding={}, **({"advice": words.devices.GIVE_A_NUMBER} | fields))


@pytest.fixture
def torch(tmp_path: Path) -> Torch:
    return Torch(tmp_path)


def test_cpus_are_counted_without_torch(torch: Torch) -> None:
    assert count_workers("cpu", torch.says("raise SystemExit(1)")) == CPUS


@pytest.mark.parametrize(
    ("wanted", "device", "buses", "count"),
    [
        ("gpu", "cuda", (59, 94), 2),
        ("auto", "cuda", (59, 94, 134), 3),
        ("xpu", "xpu", (59,), 1),
        ("auto", "xpu", (59,), 1),
        ("auto", "npu", (59, 60), 2),
        ("auto", "cuda", (), CPUS),
    ],
)
def test_torchs_count_is_ours(torch: Torch, wanted: str, device: str, buses: tuple[int, ...], count: int) -> None:
    assert count_workers(wanted, torch.sees(device, *buses)) == count


@pytest.mark.parametrize("wanted", ["gpu", "xpu"])
def test_devices_that_are_not_there_are_an_error(torch: Torch, wanted: str) -> None:
    with pytest.raises(DeviceError) as refusal:
        count_workers(wanted, torch.sees("npu"))
    none, advice = words.devices.torch_finds_none("9.9"), words.devices.GIVE_A_NUMBER
    assert str(refusal.value) == words.devices.none_seen(wanted.upper(), none, {}, advice)


def test_variables_that_hide_devices_are_named(torch: Torch) -> None:
    environment = {**torch.sees("cuda", 59), "CUDA_VISIBLE_DEVICES": ""}
    assert count_workers("auto", environment) == CPUS
    with pytest.raises(DeviceError) as refusal:
        count_workers("gpu", environment)
    none, hiding = words.devices.torch_finds_none("9.9"), {"CUDA_VISIBLE_DEVICES": ""}
    assert str(refusal.value) == words.devices.none_seen("GPU", none, hiding, words.devices.GIVE_A_NUMBER)


@pytest.mark.parametrize("wanted", ["gpu", "auto"])
def test_a_node_with_a_broken_gpu_is_not_taken_for_a_cpu_node(torch: Torch, wanted: str) -> None:
    environment = torch.sees("cuda", warning="CUDA initialization: Unexpected error from cudaGetDeviceCount()\nmore")
    why = "CUDA initialization: Unexpected error from cudaGetDeviceCount()"
    with pytest.raises(DeviceError, match=none_seen(why)):
        count_workers(wanted, environment)


def test_without_torch_a_node_with_gpus_is_not_taken_for_a_cpu_node(
    torch: Torch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = torch.says("raise ImportError('no torch here')")
    monkeypatch.setattr(devices, "DRIVERS", (str(tmp_path / "nvidiactl"),))
    assert count_workers("auto", environment) == CPUS
    with pytest.raises(DeviceError, match=none_seen(words.devices.torch_missing("no torch here"), label="GPU")):
        count_workers("gpu", environment)
    (tmp_path / "nvidiactl").touch()
    why = words.devices.driver_without_torch(str(tmp_path / "nvidiactl"), "no torch here")
    with pytest.raises(DeviceError, match=none_seen(why)):
        count_workers("auto", environment)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (f"raise RuntimeError('{OLD}')", words.devices.torch_cannot_tell(f"RuntimeError: {OLD}")),
        ("import os; os._exit(7)", words.devices.torch_cannot_tell("exit code 7")),
        ("import os; os._exit(0)", words.devices.torch_cannot_tell("exit code 0")),
        ("import time; time.sleep(1000)", words.devices.torch_too_slow(0.5)),
    ],
)
def test_a_torch_that_cannot_list_devices_is_an_error(
    torch: Torch, monkeypatch: pytest.MonkeyPatch, source: str, says: str
) -> None:
    if "sleep" in source:
        monkeypatch.setattr(devices, "TIMEOUT_S", 0.5)
    with pytest.raises(DeviceError, match=f"^{pattern(says)}$"):
        count_workers("auto", torch.says(source))


def test_a_wait_for_the_import_of_torch_is_logged(torch: Torch, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(devices, "NOTICE_S", devices.TIMEOUT_S)  # no busy machine needs so long
    assert count_workers("gpu", torch.sees("cuda", 59), told.append) == 1
    assert told == []
    monkeypatch.setattr(devices, "NOTICE_S", 0.0)
    assert count_workers("gpu", torch.sees("cuda", 59), told.append) == 1
    assert len(pci_addresses(torch.sees("cuda", 59), told.append)) == 1
    assert told == [words.devices.ASKING_TORCH] * 2


def test_the_workers_interpreter_is_asked(torch: Torch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexport CUDA_VISIBLE_DEVICES=\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    environment = torch.sees("cuda", 59)
    assert count_workers("auto", environment) == 1
    assert count_workers("auto", {**environment, "PYTHON_EXEC": str(python)}) == CPUS
    with pytest.raises(DeviceError, match="No such file or directory"):
        count_workers("auto", {**environment, "PYTHON_EXEC": str(tmp_path / "nowhere")})


@pytest.mark.parametrize("device", ["cuda", "xpu", "npu"])
def test_addresses_of_any_accelerator_are_written_as_sysfs_writes_them(torch: Torch, device: str) -> None:
    assert pci_addresses(torch.sees(device, 59, 0xAF)) == ["0000:3b:00.0", "0000:af:00.0"]


@pytest.mark.parametrize("wanted", ["gpu", "auto"])
def test_torch_is_imported_once_for_the_number_of_workers_and_for_their_addresses(
    torch: Torch, tmp_path: Path, wanted: str
) -> None:
    imports = tmp_path / "imports"
    environment = torch.sees("cuda", 59, 94)
    torch.says((tmp_path / "torch.py").read_text() + f"open({str(imports)!r}, 'a').write('imported ')\n")
    seen = Devices(environment, addresses=True)
    assert (seen.count_workers(wanted), seen.pci_addresses(ADVICE)) == (2, ["0000:3b:00.0", "0000:5e:00.0"])
    assert imports.read_text() == "imported "


def test_pci_addresses_are_refused_without_accelerators_that_report_them(torch: Torch) -> None:
    none = words.devices.torch_finds_none("9.9")
    with pytest.raises(DeviceError, match=none_seen(none, label="accelerator", advice=ADVICE)):
        pci_addresses(torch.sees("cuda"))
    with pytest.raises(DeviceError, match=pattern(words.devices.no_pci_addresses, torch="9.9", device="npu")):
        pci_addresses(torch.sees("npu", None))


@pytest.mark.torch
def test_auto_gives_as_many_workers_as_under_torchrun() -> None:
    run = pytest.importorskip("torch.distributed.run")
    assert count_workers("auto", os.environ) == run.determine_local_world_size("auto")
