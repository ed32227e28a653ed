"""NVIDIA's GPUs, as NVML tells of them, or else the driver."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from node_agent.workers.devices.host import Device, Host, Sighting, hidden, may_use, names_in, read
from node_agent.workers.devices.visible import visible

NO_PERMISSION, DRIVER_NOT_LOADED, FUNCTION_NOT_FOUND = 4, 9, 13
"""Result codes of NVML."""


def look(environment: Mapping[str, str], host: Host) -> Sighting:
    value = environment.get("CUDA_VISIBLE_DEVICES")
    mig = value[:8] if value and value.startswith("MIG-") else ""
    try:
        devices = _nvml_devices(host.nvml, mig)
        remark = f"{host.nvml} counts no NVIDIA GPU"
    except OSError:
        devices = [] if mig else _proc_devices(host)
        remark = (
            f"there is neither {host.nvml} nor, in {host.path('proc/driver/nvidia/gpus')}, an NVIDIA GPU to be used"
        )
    except _NvmlError as error:
        return Sighting([], f"{host.nvml} says: {error}")
    shown = [devices[index] for index in visible(value, [device.uuid for device in devices])]
    if mig:
        return Sighting(shown[:1], f"{host.nvml} shows no MIG device for CUDA_VISIBLE_DEVICES={value!r}")
    if devices and not shown:
        remark = hidden(devices, "NVIDIA", environment, "CUDA_VISIBLE_DEVICES")
    return Sighting(shown, remark, _doubt_about_order(devices, environment))


def _doubt_about_order(devices: Sequence[Device], environment: Mapping[str, str]) -> str:
    """CUDA puts the fastest GPU first, by a measure of its own; equal ones stay in the bus's order, which is NVML's."""
    models = sorted({device.model for device in devices if device.model})
    by_uuid = environment.get("CUDA_VISIBLE_DEVICES", "").startswith("GPU-")
    if len(models) < 2 or by_uuid or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return ""
    return f"the GPUs differ ({', '.join(models)}) and CUDA orders them by speed: set CUDA_DEVICE_ORDER=PCI_BUS_ID"


class _NvmlError(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} (NVML error {code})")
        self.code = code


class _Nvml:
    """NVIDIA's management library. Its functions return a result code and write their answer where the last argument
    points to. Raises OSError if there is no such library, `_NvmlError` when one of its functions fails.
    """

    def __init__(self, library: str) -> None:
        import ctypes

        self._ctypes = ctypes
        self._library = ctypes.CDLL(library)
        self._library.nvmlErrorString.restype = ctypes.c_char_p

    def call(self, function: str, *arguments: Any) -> None:
        if not hasattr(self._library, function):
            raise _NvmlError(FUNCTION_NOT_FOUND, f"an old driver, without {function}")
        if code := self._library[function](*arguments):
            raise _NvmlError(code, self._library.nvmlErrorString(code).decode())

    def number(self, function: str, *arguments: Any) -> int:
        answer = self._ctypes.c_uint()
        self.call(function, *arguments, self._ctypes.byref(answer))
        return answer.value

    def handle(self, function: str, *arguments: Any) -> Any:
        answer = self._ctypes.c_void_p()
        self.call(function, *arguments, self._ctypes.byref(answer))
        return answer

    def text(self, function: str, handle: Any) -> str:
        answer = self._ctypes.create_string_buffer(96)
        self.call(function, handle, answer, len(answer))
        return answer.value.decode()

    def address(self, handle: Any) -> str:
        answer = (self._ctypes.c_uint * 17)()  # nvmlPciInfo_t: 16 characters, domain, bus, device, ...
        self.call("nvmlDeviceGetPciInfo_v3", handle, answer)
        return "{:04x}:{:02x}:{:02x}.0".format(*answer[4:7])


def _nvml_devices(library: str, mig: str) -> list[Device]:
    """The GPUs of this host; their MIG devices if `mig` is how names of such begin."""
    nvml = _Nvml(library)
    try:
        nvml.call("nvmlInit_v2")
    except _NvmlError as error:
        if error.code == DRIVER_NOT_LOADED:
            return []
        raise
    try:
        found = [_nvml_device(nvml, index, mig) for index in range(nvml.number("nvmlDeviceGetCount_v2"))]
    finally:
        nvml.call("nvmlShutdown")
    return [device for devices in found for device in devices]


def _nvml_device(nvml: _Nvml, index: int, mig: str) -> list[Device]:
    try:
        gpu = nvml.handle("nvmlDeviceGetHandleByIndex_v2", index)
        uuid, address = nvml.text("nvmlDeviceGetUUID", gpu), nvml.address(gpu)
        model = nvml.text("nvmlDeviceGetName", gpu)
    except _NvmlError as error:
        if error.code == NO_PERMISSION:  # kept from this process, as a scheduler does: CUDA does not count it either
            return []
        return [Device("", "", trouble=f"NVIDIA GPU {index} does not answer: {error}")]
    if not mig:
        return [Device(uuid, address, model)]
    return [Device(name, address, model) for name in _mig_names(nvml, gpu, uuid, mig)]


def _mig_names(nvml: _Nvml, gpu: Any, uuid: str, mig: str) -> Iterator[str]:
    """As NVML names a GPU's MIG devices, or by their parent if that is the form which `mig` begins."""
    try:
        slots = nvml.number("nvmlDeviceGetMaxMigDeviceCount", gpu)
    except _NvmlError:
        return
    for slot in range(slots):
        try:
            device = nvml.handle("nvmlDeviceGetMigDeviceHandleByIndex", gpu, slot)
        except _NvmlError:  # an empty slot
            continue
        if mig == "MIG-GPU-":
            instance = nvml.number("nvmlDeviceGetGpuInstanceId", device)
            yield f"MIG-{uuid}/{instance}/{nvml.number('nvmlDeviceGetComputeInstanceId', device)}"
        else:
            yield nvml.text("nvmlDeviceGetUUID", device)


def _proc_devices(host: Host) -> list[Device]:
    """What the driver tells without NVML, as in a container that was given CUDA alone."""
    folder = host.path("proc/driver/nvidia/gpus")
    devices = []
    for address in names_in(folder):
        lines = (line.partition(":") for line in read(os.path.join(folder, address, "information")).splitlines())
        facts = {name.strip(): value.strip() for name, _, value in lines}
        if facts.get("GPU Excluded") != "Yes" and may_use(host.path(f"dev/nvidia{facts.get('Device Minor')}")):
            devices.append(Device(facts.get("GPU UUID", ""), address, facts.get("Model", "")))
    return devices
