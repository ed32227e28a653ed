"""Intel's GPUs, as the kernel's graphics devices tell of them."""

import os
import re
from collections.abc import Mapping

from node_agent.workers.devices.host import Device, Host, Sighting, hidden, may_use, names_in, read
from node_agent.workers.devices.visible import leading_number

INTEL, INTEGRATED = "0x8086", "0000:00:02.0"
"""The vendor, and where all its integrated GPUs are."""


def look(environment: Mapping[str, str], host: Host) -> Sighting:
    """Level Zero's devices: each tile of a GPU unless ZE_FLAT_DEVICE_HIERARCHY says otherwise, and those of
    ZE_AFFINITY_MASK alone. Integrated ones count only where there is no other, as in torch.
    """
    by_tile = environment.get("ZE_FLAT_DEVICE_HIERARCHY") != "COMPOSITE"
    devices = [device for device, tiles in _intel_devices(host) for _ in range(tiles if by_tile else 1)]
    mask = environment.get("ZE_AFFINITY_MASK")
    chosen = {leading_number(entry) for entry in mask.split(",")} if mask is not None else range(len(devices))
    shown = [device for index, device in enumerate(devices) if index in chosen]
    remark = f"{host.path('sys/class/drm')} shows no Intel GPU that this process may use"
    if devices and not shown:
        remark = hidden(devices, "Intel", environment, "ZE_AFFINITY_MASK")
    return Sighting([device for device in shown if not device.integrated] or shown, remark)


def _intel_devices(host: Host) -> list[tuple[Device, int]]:
    """Each GPU with the number of its tiles, discrete ones first."""
    folder = host.path("sys/class/drm")
    found = []
    for card in names_in(folder):
        device = os.path.join(folder, card, "device")
        nodes = [name for name in names_in(os.path.join(device, "drm")) if name.startswith("renderD")]
        usable = any(may_use(host.path("dev/dri", name)) for name in nodes)
        if re.fullmatch(r"card\d+", card) and read(os.path.join(device, "vendor")).strip() == INTEL and usable:
            address = os.path.basename(os.path.realpath(device))
            integrated = address == INTEGRATED
            # The xe driver shows tiles; to i915 each tile of a discrete GPU is a gt.
            tiles = [name for name in names_in(device) if name.startswith("tile")] or names_in(
                os.path.join(folder, card, "gt")
            )
            found.append((Device("", address, integrated=integrated), 1 if integrated else max(len(tiles), 1)))
    return sorted(found, key=lambda pair: (pair[0].integrated, pair[0].address))
