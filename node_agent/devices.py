"""How many workers `--nproc-per-node auto|cpu|gpu|xpu` means, and which PCI device stands behind each GPU.

torchrun asks torch. The agent never imports it, and reads what torch's runtimes read: NVML for NVIDIA's GPUs, the
kernel's compute topology for AMD's and its graphics devices for Intel's, and the variables that hide some of them. For
which of these torch was built stands in its `version.py`; where no torch is to be found, each of them counts.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

BACKENDS = {"gpu": ("cuda", "hip"), "xpu": ("xpu",), "auto": ("cuda", "hip", "xpu")}
"""What torch must be built for; the first of them that has a device decides."""
LABELS = {"cuda": "CUDA", "hip": "ROCm", "xpu": "XPU"}

NO_PERMISSION, DRIVER_NOT_LOADED, FUNCTION_NOT_FOUND = 4, 9, 13
"""Result codes of NVML."""
INTEL, INTEGRATED = "0x8086", "0000:00:02.0"
"""The vendor, and where all its integrated GPUs are."""


class DeviceError(Exception):
    """No such devices, or no way to tell. One line: what was looked for, what was found, what to do."""


@dataclass(frozen=True, slots=True)
class Host:
    """Where a machine tells what it has."""

    root: str = "/"
    """The folder that holds `dev`, `proc` and `sys`."""
    nvml: str = "libnvidia-ml.so.1"
    python_path: Sequence[str] | None = None
    """Where the workers' torch may be; None: where this process would import it from."""

    def path(self, *parts: str) -> str:
        return os.path.join(self.root, *parts)


THIS_HOST = Host()


@dataclass(frozen=True, slots=True)
class Device:
    """One device that a worker can compute on."""

    uuid: str
    address: str
    """On the PCI bus, as sysfs writes it."""
    model: str = ""
    trouble: str = ""
    """Why it cannot be used."""
    integrated: bool = False


@dataclass(frozen=True, slots=True)
class Sighting:
    """The devices of one vendor that a worker sees, in the order in which it counts them."""

    devices: list[Device]
    remark: str
    """What there was to see; it explains why there may be no device."""
    doubt: str = ""
    """Why the order may be another one."""


def count_workers(wanted: str, environment: Mapping[str, str], host: Host = THIS_HOST) -> int:
    """How many workers `wanted` (auto, cpu, gpu or xpu) means here, as torch 2.13 counts. Raises `DeviceError`.

    `environment` is what the workers inherit: its variables hide devices from them. cpu counts the CPUs that this
    process may run on. auto counts devices if a worker sees any, else CPUs. A visible GPU that does not answer is an
    error for auto too: a node with a broken GPU is not a CPU node.
    """
    if wanted == "cpu":
        return _cpu_count()
    if wanted not in BACKENDS:
        raise DeviceError(f"{wanted!r} is not a number of workers: give a number, auto, cpu, gpu or xpu")
    if wanted == "auto":
        sightings = _look(wanted, environment, host)
        return next((len(_sound(sighting).devices) for sighting in sightings if sighting.devices), _cpu_count())
    return len(_see(wanted, environment, host, "give a number of workers, or cpu, to do without").devices)


def gpu_pci_addresses(environment: Mapping[str, str], host: Host = THIS_HOST) -> list[str]:
    """The PCI addresses of the GPUs that a worker sees, by its index of them: "0000:3b:00.0". Raises `DeviceError`.

    The function number is always 0, as torch writes it. MIG devices have their GPU's address.
    """
    sighting = _see("gpu", environment, host, "only workers with GPUs can be bound to the CPUs near them")
    if sighting.doubt:
        raise DeviceError(sighting.doubt)
    return [device.address for device in sighting.devices]


def visible(value: str | None, uuids: Sequence[str]) -> list[int]:
    """Which devices a value of CUDA_VISIBLE_DEVICES leaves, in its order, as indices into `uuids`.

    Numbers, or beginnings of UUIDs that fit one device only; what follows the first entry that names none is ignored. A
    device named twice leaves none, as in torch. None leaves all.
    """
    if value is None:
        return list(range(len(uuids)))
    entries: Sequence[object]
    if value.startswith(("GPU-", "MIG-")):
        entries = names = list(takewhile(lambda entry: entry.startswith(value[:4]), value.split(",")))
        indices = [_only_match(name, uuids) for name in names]
    else:
        entries = indices = list(takewhile(lambda number: number >= 0, map(_leading_number, value.split(","))))
    chosen = list(takewhile(lambda index: 0 <= index < len(uuids), indices))
    return chosen if _distinct(entries) and _distinct(chosen) else []


def _only_match(beginning: str, uuids: Sequence[str]) -> int:
    matches = [index for index, uuid in enumerate(uuids) if uuid.startswith(beginning)]
    return matches[0] if len(matches) == 1 else -1


def _leading_number(entry: str) -> int:
    """As C's strtoul: 1 for "1st"; -1 where there is no number."""
    match = re.match(r"[+-]?[0-9]+", entry.strip())
    return int(match[0]) if match else -1


def _distinct(values: Sequence[object]) -> bool:
    return len(set(values)) == len(values)


def _cpu_count() -> int:
    return len(os.sched_getaffinity(0))


# What workers see.


def _see(wanted: str, environment: Mapping[str, str], host: Host, advice: str) -> Sighting:
    remarks = []
    for sighting in _look(wanted, environment, host):
        if sighting.devices:
            return _sound(sighting)
        remarks.append(sighting.remark)
    raise DeviceError(f"workers would see no {wanted.upper()}: {', and '.join(remarks)}; {advice}")


def _sound(sighting: Sighting) -> Sighting:
    for device in sighting.devices:
        if device.trouble:
            raise DeviceError(f"{device.trouble}; mend it, or leave it out with CUDA_VISIBLE_DEVICES")
    return sighting


def _look(wanted: str, environment: Mapping[str, str], host: Host) -> Iterator[Sighting]:
    torch = None if environment.get("PYTHON_EXEC") else _find_torch(host)
    backends = [name for name in BACKENDS[wanted] if torch is None or name in torch[1]]
    for name in backends:
        sighting = _LOOK[name](environment, host)
        if wanted == "auto" and torch is None:  # most hosts with an integrated GPU have no torch that could use it
            sighting = replace(sighting, devices=[device for device in sighting.devices if not device.integrated])
        yield sighting
    if torch and not backends:
        missing = " and ".join(LABELS[name] for name in BACKENDS[wanted])
        yield Sighting([], f"torch in {torch[0]} is built without {missing}")


def _find_torch(host: Host) -> tuple[str, set[str]] | None:
    """Where torch is and what it was built for; None where there is none."""
    for folder in sys.path if host.python_path is None else host.python_path:
        if text := _read(os.path.join(folder, "torch", "version.py")):
            return os.path.join(folder, "torch"), set(re.findall(r"^(cuda|hip|xpu)\b.*= *['\"]", text, re.MULTILINE))
    return None


def _read(path: str) -> str:
    """What stands in a file; nothing if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _list(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _may_use(path: str) -> bool:
    return os.access(path, os.R_OK | os.W_OK)


def _hidden(devices: Sequence[Device], vendor: str, environment: Mapping[str, str], *variables: str) -> str:
    count = f"1 {vendor} GPU is" if len(devices) == 1 else f"{len(devices)} {vendor} GPUs are"
    values = " and ".join(f"{name}={environment[name]!r}" for name in variables if name in environment)
    return f"{count} there but hidden by {values}"


# NVIDIA.


def _look_for_nvidia(environment: Mapping[str, str], host: Host) -> Sighting:
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
        remark = _hidden(devices, "NVIDIA", environment, "CUDA_VISIBLE_DEVICES")
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
    for address in _list(folder):
        lines = (line.partition(":") for line in _read(os.path.join(folder, address, "information")).splitlines())
        facts = {name.strip(): value.strip() for name, _, value in lines}
        if facts.get("GPU Excluded") != "Yes" and _may_use(host.path(f"dev/nvidia{facts.get('Device Minor')}")):
            devices.append(Device(facts.get("GPU UUID", ""), address, facts.get("Model", "")))
    return devices


# AMD.


def _look_for_amd(environment: Mapping[str, str], host: Host) -> Sighting:
    """ROCR_VISIBLE_DEVICES goes first; HIP's variable, or CUDA's where that is not set, counts what it leaves."""
    devices = _amd_devices(host)
    values = [environment.get(name) for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")]
    shown = [devices[index] for index in _visible_to_rocr(values[0], [device.uuid for device in devices])]
    value = values[2] if values[1] is None else values[1]
    shown = [shown[index] for index in visible(value, [device.uuid for device in shown])]
    remark = f"{host.path('sys/class/kfd')} shows no AMD GPU"
    if devices and not shown:
        names = "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES" if values[1] is None else "HIP_VISIBLE_DEVICES"
        remark = _hidden(devices, "AMD", environment, *names)
    return Sighting(shown, remark)


def _amd_devices(host: Host) -> list[Device]:
    folder = host.path("sys/class/kfd/kfd/topology/nodes")
    devices = []
    for node in sorted(_list(folder), key=int) if _may_use(host.path("dev/kfd")) else ():
        # The kernel lets nobody read the node of a GPU that is kept from this process.
        lines = (line.partition(" ") for line in _read(os.path.join(folder, node, "properties")).splitlines())
        facts = {name: int(value) for name, _, value in lines}
        if facts.get("simd_count"):  # others are CPUs
            place = facts.get("location_id", 0)
            address = f"{facts.get('domain', 0):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.0"
            number = facts.get("unique_id")
            devices.append(Device(f"GPU-{number:016x}" if number else "", address))
    return devices


def _visible_to_rocr(value: str | None, uuids: Sequence[str]) -> list[int]:
    """Unlike CUDA, ROCr takes numbers and UUIDs in one list, in any case, and a device named twice ends the list."""
    if value is None:
        return list(range(len(uuids)))
    chosen: list[int] = []
    for entry in value.lower().split(","):
        name = entry.strip().replace("gpu-", "GPU-")
        index = _only_match(name, uuids) if name.startswith("GPU-") else int(name) if name.isdecimal() else -1
        if not 0 <= index < len(uuids) or index in chosen:
            break
        chosen.append(index)
    return chosen


# Intel.


def _look_for_intel(environment: Mapping[str, str], host: Host) -> Sighting:
    """Level Zero's devices: each tile of a GPU unless ZE_FLAT_DEVICE_HIERARCHY says otherwise, and those of
    ZE_AFFINITY_MASK alone. Integrated ones count only where there is no other, as in torch.
    """
    by_tile = environment.get("ZE_FLAT_DEVICE_HIERARCHY") != "COMPOSITE"
    devices = [device for device, tiles in _intel_devices(host) for _ in range(tiles if by_tile else 1)]
    mask = environment.get("ZE_AFFINITY_MASK")
    chosen = {_leading_number(entry) for entry in mask.split(",")} if mask is not None else range(len(devices))
    shown = [device for index, device in enumerate(devices) if index in chosen]
    remark = f"{host.path('sys/class/drm')} shows no Intel GPU that this process may use"
    if devices and not shown:
        remark = _hidden(devices, "Intel", environment, "ZE_AFFINITY_MASK")
    return Sighting([device for device in shown if not device.integrated] or shown, remark)


def _intel_devices(host: Host) -> list[tuple[Device, int]]:
    """Each GPU with the number of its tiles, discrete ones first."""
    folder = host.path("sys/class/drm")
    found = []
    for card in _list(folder):
        device = os.path.join(folder, card, "device")
        nodes = [name for name in _list(os.path.join(device, "drm")) if name.startswith("renderD")]
        may_use = any(_may_use(host.path("dev/dri", name)) for name in nodes)
        if re.fullmatch(r"card\d+", card) and _read(os.path.join(device, "vendor")).strip() == INTEL and may_use:
            address = os.path.basename(os.path.realpath(device))
            integrated = address == INTEGRATED
            # The xe driver shows tiles; to i915 each tile of a discrete GPU is a gt.
            tiles = [name for name in _list(device) if name.startswith("tile")] or _list(
                os.path.join(folder, card, "gt")
            )
            found.append((Device("", address, integrated=integrated), 1 if integrated else max(len(tiles), 1)))
    return sorted(found, key=lambda pair: (pair[0].integrated, pair[0].address))


_LOOK: dict[str, Callable[[Mapping[str, str], Host], Sighting]] = {
    "cuda": _look_for_nvidia,
    "hip": _look_for_amd,
    "xpu": _look_for_intel,
}
