"""Messages of a node's checks: their flags, the built-in ones, the user's own, and the test of the network.

The program of the built-in checks loads this file too, so it imports only the standard library.
"""

from collections.abc import Iterable

# The flags.


def not_a_check(names: Iterable[str], given: str) -> str:
    """For a wrong value of `--check`."""
    return f"expected names of checks ({', '.join(names)}), such as gpus or disk=20, not {given!r:.60}"


def needs_folder() -> str:
    return "storage needs folders, separated by colons, such as storage=/data:/checkpoints"


def nothing_to_check(source: str) -> str:
    """For `--check-only` without a check. `source`: the flag or variable."""
    return f"{source} has nothing to check: give --check or --pre-join-check"


# `--check-only`.


def check_too_slow(limit_s: float) -> str:
    return f"node-agent: a check took more than {limit_s:g} s"


def check_broken(exit_code: int) -> str:
    return f"node-agent: a check is broken (exit code {exit_code}): it cannot tell whether this node is fit"


def verdict(node_id: str, is_unfit: bool) -> str:
    return f"node {node_id} is {'unfit: replace it' if is_unfit else 'fit'}"


# A check, before the node joins.


def checking(name: str, limit_s: float) -> str:
    return f"checking this node before it joins: running {name} for at most {limit_s:g} s"


def checked(took_s: float) -> str:
    return f"checked this node in {took_s:.1f} s"


def too_slow(node_id: str, name: str, limit_s: float, evidence: str) -> str:
    return f"node {node_id} is unfit: {name} took more than {limit_s:g} s{_behind(evidence)}"


def rejected(node_id: str, name: str, evidence: str) -> str:
    return f"node {node_id} is unfit: {name} rejected it{_behind(evidence)}"


def not_started(name: str, why: str, code: int) -> str:
    """`code`: the exit code of an unfit node."""
    return f"could not start {name}: {why}; {_joins(code)}"


def broken(name: str, cause: str, evidence: str, code: int) -> str:
    """`code`: the exit code of an unfit node."""
    return f"{name} failed ({cause}){_behind(evidence)}; {_joins(code)}"


def _joins(code: int) -> str:
    return f"the node joins, because only exit code {code} means that a node is unfit"


def _behind(evidence: str) -> str:
    return f": {evidence}" if evidence else ""


# The network.

OTHER_ENDED = "the other node ended the test"


def network_tested(peer: str, mb_per_s: float, latency_s: float | None) -> str:
    figures = f"{mb_per_s:.0f} MB/s" + (f", {latency_s * 1000:.2f} ms" if latency_s else "")
    return f"network test with node {peer}: {figures}"


def network_test_failed(peer: str, problem: str) -> str:
    return f"network test with node {peer}: {problem}"


def packets_lost(peer: str, latency_s: float) -> str:
    return f"a byte to node {peer} and back takes {latency_s * 1000:.0f} ms: packets are lost"


def broke_off(peer: str, limit_s: float) -> str:
    return f"the test with node {peer} took more than {limit_s:g} s"


def broke(peer: str, why: str) -> str:
    return f"the connection with node {peer} broke: {why}"


def no_connection(peer: str, where: str, within_s: float) -> str:
    return f"no connection from node {peer} arrived at {where} within {within_s:g} s"


def cannot_listen(peer: str, where: str, why: str) -> str:
    return f"no connection from node {peer} arrived at {where}: {why}"


def no_answer(peer: str, where: str, within_s: float) -> str:
    return f"no connection to node {peer} at {where} within {within_s:g} s"


def cannot_connect(peer: str, where: str, why: str) -> str:
    return f"no connection to node {peer} at {where}: {why}"


def too_little(peer: str, mb_per_s: float, least_mb_per_s: float) -> str:
    return f"{mb_per_s:.1f} MB/s from node {peer}, less than {least_mb_per_s:g} MB/s"


# Findings of a built-in check, for schedulers.

CONDITIONS = {
    "GpuMissing": "permanent",
    "GpuKindsDiffer": "permanent",
    "GpuDriverFailed": "permanent",
    "GpuMemoryBroken": "permanent",
    "GpuXid": "permanent",
    "LinkMissing": "permanent",
    "LinkDown": "permanent",
    "LinkSlow": "permanent",
    "StorageCorrupt": "permanent",
    "LinkFlapped": "temporary",
    "LinkErrors": "temporary",
    "StorageHangs": "temporary",
    "StorageFailed": "temporary",
    "DiskFull": "temporary",
    "DiskFailed": "permanent",
    "ClockWrong": "temporary",
    "PortsExhausted": "temporary",
}
"""Conditions that checks find, each with its class as node-problem-detector uses it. A permanent one stays until
somebody repairs or restarts the node. A temporary one may be gone at the next look."""


def classified(text: str, condition: str) -> str:
    """`rdzv_protocol.node_conditions` finds the condition in a reason."""
    return f"{text} ({condition}, {CONDITIONS[condition]})"


def suspect(name: str, evidence: str) -> str:
    return f"{name} found a fit node, but: {evidence}"


# The built-in checks: GPUs.

NO_DRIVER = "nvidia-smi is not on PATH: no NVIDIA driver is installed, or this container does not see it"
NO_GPU = "nvidia-smi lists no GPU"
NO_ECC = "no GPU here counts ECC errors"
NO_DMESG = "dmesg is missing, or may not read the kernel's log"
HARDWARE_XIDS = {
    48: "a double-bit ECC error",
    64: "a failed row remapping",
    74: "an NVLink error",
    79: "a GPU that has fallen off the bus",
    95: "an uncontained ECC error",
    119: "a GPU whose firmware does not answer",
    120: "an error of a GPU's firmware",
}
"""Xids that NVIDIA's catalogue attributes to the GPU or its link. 13, 31, 43, 45 and the like are the program's."""


def driver_hangs(within_s: float) -> str:
    return f"nvidia-smi did not answer within {within_s:g} s: the driver hangs"


def driver_fails(exit_code: int, output: str) -> str:
    return f"nvidia-smi failed with exit code {exit_code}: {output}"


def driver_says(line: str) -> str:
    return f"nvidia-smi says: {line}"


def gpu(name: str, memory_mib: str) -> str:
    return f"{name} with {memory_mib} MiB"


def gpus(number: int, kind: str) -> str:
    return f"{number} x {kind}"


def wrong_number(found: int, expected: float) -> str:
    count = f"found {_count(found, 'GPU')}, expected {expected:g}"
    if found > expected:
        return f"{count}: change gpus={expected:g}, or hide the other GPUs from this process"
    return f"{count}: a GPU is lost, or hidden from this process"


def several_kinds(kinds: list[str]) -> str:
    return f"GPUs of several kinds: {', '.join(kinds)}"


def not_remapped(gpu: str) -> str:
    return f"GPU {gpu} could not remap a row of its memory: replace it"


def ecc_errors(gpu: str, errors: str) -> str:
    return f"GPU {gpu} has had {errors} uncorrectable ECC errors since its driver was loaded"


def no_ecc_error(gpus: int) -> str:
    return f"no uncorrectable error on {_count(gpus, 'GPU')}"


def xid(number: int, gpu: str) -> str:
    """`number`: an Xid for which the hardware is to blame."""
    return f"Xid {number} of GPU {gpu} since boot: {HARDWARE_XIDS[number]}"


def no_xid(others: int) -> str:
    return f"no Xid of broken hardware since boot ({others} others)"


# Links and shared storage.

NO_LINKS = "no link of this machine has been up: name the links, such as links=eth0+mlx5_0:400"


def no_link(name: str) -> str:
    return f"there is no network interface or InfiniBand device {name}"


def link_down(link: str, state: str) -> str:
    return f"link {link} is down ({state})"


def link_slow(link: str, gbit_s: float | None, expected_gbit_s: float) -> str:
    """`gbit_s`: None if the kernel does not know the rate."""
    rate = "an unknown rate" if gbit_s is None else f"{gbit_s:g} Gbit/s"
    return f"link {link} runs at {rate} instead of {expected_gbit_s:g} Gbit/s"


def link_flapped(link: str, times: int) -> str:
    return f"link {link} went down {times} time{'s' if times != 1 else ''} since the last check"


def link_errors(link: str, errors: int) -> str:
    return f"link {link} had {_count(errors, 'error')} since the last check"


def links_up(links: list[str]) -> str:
    return f"{', '.join(links)} up"


def stored(folders: list[str], took_s: float) -> str:
    return f"wrote and read 1 MiB in {', '.join(folders)} within {took_s:.2f} s"


def storage_hangs(folder: str, within_s: float) -> str:
    return f"writing and reading 1 MiB in {folder} took more than {within_s:g} s: the disk or its server hangs"


def storage_fails(folder: str, why: str) -> str:
    return f"could not write and read a file in {folder}: {why}"


def storage_corrupt(folder: str) -> str:
    return f"a file in {folder} returned different bytes than were written: do not trust this disk"


# Disks, clock and ports.

MAKE_ROOM = "free space there"
ENLARGE_SHM = "enlarge it with docker run --shm-size, or an emptyDir of medium Memory"
NO_SERVER = "there is no server to compare with: give --endpoint"
TESTED_BY_SERVER = "the server runs this test between two nodes when they join"


def room(free_gib: float, folder: str) -> str:
    return f"{free_gib:.1f} GiB free in {folder}"


def room_unlimited(folder: str) -> str:
    return f"the file system of {folder} has no limit"


def no_room(free_gib: float, folder: str, least_gib: float, advice: str) -> str:
    return f"{free_gib:.2f} GiB free in {folder}, less than {least_gib:g} GiB: {advice}"


def no_inodes(left: int, folder: str, advice: str) -> str:
    return f"only {_count(left, 'more file')} can be created in {folder} (df -i): {advice}"


def clock_right(within_s: float) -> str:
    return f"within {within_s:.0f} s of the server's"


def clock_wrong(ahead_s: float) -> str:
    """`ahead_s`: seconds ahead of the server, negative for a clock that is behind."""
    way = "ahead of" if ahead_s > 0 else "behind"
    return f"this node's clock is {abs(ahead_s):.0f} s {way} the server's: set it (chronyc makestep)"


def no_time(server: str, why: str) -> str:
    return f"could not read the clock of the server at {server}: {why}"


def free_ports(number: int) -> str:
    return _count(number, "free port")


def too_few_ports(had: int, wanted: int, why: str) -> str:
    return f"only {had} of {wanted} ports are free: {why}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
