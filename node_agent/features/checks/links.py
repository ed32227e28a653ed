"""Network links of this machine from sysfs: Ethernet ports and InfiniBand ports, their states, rates and errors.

The program of the built-in checks loads this file too, so it imports only the standard library.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

SEEN = "\x1eseen "
"""Beginning of the check's line with what its next look compares: JSON with each link's downs and errors."""
IS_UP = 1
"""IFF_UP in an interface's flags: somebody has turned it on."""
ETHERNET = 1
"""ARPHRD_ETHER."""
DOWNS, ERRORS = "carrier_down_count", ("rx_crc_errors", "rx_frame_errors", "tx_carrier_errors")
"""Files of an interface with how often it went down, and with its errors on the wire."""
PORT_DOWNS, PORT_ERRORS = (
    "link_downed", ("symbol_error", "link_error_recovery", "local_link_integrity_errors", "port_rcv_errors"),
)  # fmt: skip
"""The same of an InfiniBand port."""
ACTIVE = "ACTIVE"


class Link(NamedTuple):
    """One link. `is_on`: whether somebody has turned it on. `was_up`: whether it has been up since its driver was
    loaded.
    """

    name: str
    kind: str
    """Kind of hardware. Links of one kind have the same rate. Empty if unknown."""
    is_on: bool
    is_up: bool
    state: str
    was_up: bool
    gbit_s: float | None
    downs: int
    errors: int


def interface(sysfs: str, name: str) -> Link | None:
    """Return a network interface, None if there is none of this name."""
    folder = f"{sysfs}/class/net/{name}"
    if not os.path.isdir(folder):
        return None
    carrier, downs = _text(f"{folder}/carrier"), _number(f"{folder}/{DOWNS}")
    speed = _number(f"{folder}/speed", -1)
    is_on = bool(int(_text(f"{folder}/flags") or "0", 16) & IS_UP)
    return Link(
        name=name,
        kind="",
        is_on=is_on,
        is_up=is_on and carrier == "1",
        state=(_text(f"{folder}/operstate") or "unknown") if is_on else "turned off",
        was_up=bool(_number(f"{folder}/carrier_up_count") or downs),
        gbit_s=speed / 1000 if speed > 0 else None,
        downs=downs,
        errors=sum(_number(f"{folder}/statistics/{each}") for each in ERRORS),
    )


def port(sysfs: str, device: str, number: str) -> Link | None:
    """Return a port of an InfiniBand or RoCE device, None if there is none."""
    folder = f"{sysfs}/class/infiniband/{device}/ports/{number}"
    if not os.path.isdir(folder):
        return None
    state, physical = (_text(f"{folder}/{each}").partition(": ")[2] for each in ("state", "phys_state"))
    downs = _number(f"{folder}/counters/{PORT_DOWNS}")
    rate = re.match(r"[\d.]+", _text(f"{folder}/rate"))
    return Link(
        name=f"{device}/{number}",
        kind=_text(f"{sysfs}/class/infiniband/{device}/hca_type"),
        is_on=physical != "Disabled",
        is_up=state == ACTIVE,
        state=f"{state or 'unknown'}, {physical or 'unknown'}",
        was_up=bool(downs) or state == ACTIVE or physical == "LinkUp",
        gbit_s=float(rate[0]) if rate and state == ACTIVE else None,
        downs=downs,
        errors=sum(_number(f"{folder}/counters/{each}") for each in PORT_ERRORS),
    )


def hardware(sysfs: str) -> Iterator[Link]:
    """Yield the machine's Ethernet interfaces and InfiniBand ports, without virtual and wireless ones."""
    for name in _names(f"{sysfs}/class/net"):
        folder = f"{sysfs}/class/net/{name}"
        is_wired = os.path.exists(f"{folder}/device") and not os.path.exists(f"{folder}/phy80211")
        if is_wired and _number(f"{folder}/type") == ETHERNET and (link := interface(sysfs, name)):
            yield link
    for device in _names(f"{sysfs}/class/infiniband"):
        for number in _names(f"{sysfs}/class/infiniband/{device}/ports"):
            layer = _text(f"{sysfs}/class/infiniband/{device}/ports/{number}/link_layer")
            if layer == "InfiniBand" and (link := port(sysfs, device, number)):
                yield link


def named(sysfs: str, name: str) -> list[Link]:
    """Return the link of this name: an interface, a device with all its ports, or one port such as mlx5_0/1."""
    if link := interface(sysfs, name):
        return [link]
    device, _, number = name.partition("/")
    numbers = [number] if number else _names(f"{sysfs}/class/infiniband/{device}/ports")
    return [found for each in numbers if (found := port(sysfs, device, each))]


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _text(path: str) -> str:
    with suppress(OSError), open(path, encoding="ascii", errors="replace") as file:  # EINVAL while it is turned off
        return file.read().strip()
    return ""


def _number(path: str, missing: int = 0) -> int:
    try:
        return int(_text(path))
    except ValueError:
        return missing
