"""AMD's GPUs, as the kernel's compute topology tells of them."""

import os
from collections.abc import Mapping, Sequence

from node_agent.workers.devices.host import Device, Host, Sighting, hidden, may_use, names_in, read
from node_agent.workers.devices.visible import only_match, visible


def look(environment: Mapping[str, str], host: Host) -> Sighting:
    """ROCR_VISIBLE_DEVICES goes first; HIP's variable, or CUDA's where that is not set, counts what it leaves."""
    devices = _amd_devices(host)
    values = [environment.get(name) for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")]
    shown = [devices[index] for index in _visible_to_rocr(values[0], [device.uuid for device in devices])]
    value = values[2] if values[1] is None else values[1]
    shown = [shown[index] for index in visible(value, [device.uuid for device in shown])]
    remark = f"{host.path('sys/class/kfd')} shows no AMD GPU"
    if devices and not shown:
        names = "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES" if values[1] is None else "HIP_VISIBLE_DEVICES"
        remark = hidden(devices, "AMD", environment, *names)
    return Sighting(shown, remark)


def _amd_devices(host: Host) -> list[Device]:
    folder = host.path("sys/class/kfd/kfd/topology/nodes")
    devices = []
    for node in sorted(names_in(folder), key=int) if may_use(host.path("dev/kfd")) else ():
        # The kernel lets nobody read the node of a GPU that is kept from this process.
        lines = (line.partition(" ") for line in read(os.path.join(folder, node, "properties")).splitlines())
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
        index = only_match(name, uuids) if name.startswith("GPU-") else int(name) if name.isdecimal() else -1
        if not 0 <= index < len(uuids) or index in chosen:
            break
        chosen.append(index)
    return chosen
