"""Devices as NVIDIA's driver reports them. An object with the driver's functions simulates it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from node_agent.kernel.workers import devices
from node_agent.kernel.workers.devices_helper import ask_driver

NO_DEVICE = 100


class Driver:
    """libcuda with the devices `addresses` and version `version`. Its start ends with `error`."""

    def __init__(self, *addresses: str, version: int = 13000, error: int = 0) -> None:
        self._addresses, self._version, self._error = addresses, version, error
        self.is_started = False

    def cuDriverGetVersion(self, version: Any) -> int:
        version._obj.value = self._version
        return 0

    def cuInit(self, flags: int) -> int:
        self.is_started = True
        return self._error

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = len(self._addresses)
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = index
        return 0

    def cuDeviceGetPCIBusId(self, text: Any, length: int, device: Any) -> int:
        address = self._addresses[device.value].encode()
        if not address:
            return NO_DEVICE
        assert len(address) < length
        text.value = address
        return 0


def test_devices_are_reported_in_the_drivers_order() -> None:
    driver = Driver("0000:AB:00.0", "0000:3B:00.0", "")
    answer = {"torch": "2.13.0+cu130", "device": "cuda", "count": 3, "warnings": []}
    assert ask_driver(driver, "2.13.0+cu130", "13.0", wants_addresses=False) == answer
    with_addresses = {**answer, "addresses": ["0000:ab:00.0", "0000:3b:00.0", ""]}
    assert ask_driver(driver, "2.13.0+cu130", "13.0", wants_addresses=True) == with_addresses


@pytest.mark.parametrize(
    ("driver", "cuda"),
    [
        pytest.param(Driver("0000:3B:00.0"), "", id="torch is built for something else"),
        pytest.param(Driver("0000:3B:00.0", version=12080), "13.0", id="the driver is too old"),
        pytest.param(Driver("0000:3B:00.0", error=999), "13.0", id="it does not start"),
        pytest.param(Driver(), "13.0", id="it sees no device"),
    ],
)
def test_torch_is_asked_where_the_driver_gives_no_answer(driver: Driver, cuda: str) -> None:
    assert ask_driver(driver, "2.13.0", cuda, wants_addresses=True) is None


def test_a_torch_without_cuda_does_not_query_the_driver() -> None:
    driver = Driver("0000:3B:00.0")
    ask_driver(driver, "2.13.0+cpu", "", wants_addresses=False)
    assert not driver.is_started


def test_the_versions_of_a_torch_are_read_without_its_import(tmp_path: Path) -> None:
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("raise SystemExit('imported')")
    (torch / "version.py").write_text("from typing import Optional\n__version__ = '9.9+cu130'\ncuda: str = '13.0'\n")
    folder = os.path.dirname(devices.PROGRAM)
    code = "import devices_helper; print(devices_helper._versions())"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{folder}"}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert told.stdout == "('9.9+cu130', '13.0')\n", told.stderr
