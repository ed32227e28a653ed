"""Built-in checks of a node, as a program of its own: `--check gpus,disk=20`. It needs only Python and the sentences.

Its argument is JSON with the fields of `NodeChecks`, `seen`, `is_brief` and `sysfs`. It prints one line a check: its
name, `ok`, `UNFIT`, `warn` or `unknown`, and the finding. The exit code is 71 if a check has found the node unfit,
otherwise 0. `is_brief` leaves out checks that pass, and adds a line for the next look (see `links.SEEN`).

A check that cannot run, for lack of a permission or a program, does not make the node unfit. The GPU checks are an
exception: a user who asks for them expects GPUs.
"""

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from node_agent.features.checks import links as of_links
    from node_agent.features.checks import storage_helper, words
else:  # isolated and run by its path: the package itself needs more than Python
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import links as of_links
    import storage_helper
    import words

GIB = 1 << 30
PORTS = 8
"""Ports that an agent and its workers use at a time, with a margin."""
FEWEST_INODES = 1_000
ANSWER_S = 20.0
"""Seconds in which nvidia-smi and the server must answer."""
GPU_FIELDS = (
    "index", "name", "memory.total", "ecc.errors.uncorrected.volatile.total", "remapped_rows.failure"
)  # fmt: skip
_XID = re.compile(r"NVRM: Xid \((PCI:)?([0-9a-fA-F:.]+)\): (\d+)")


MOST_ERRORS = 10
"""Errors of a link between two looks that are not mentioned."""
Limit = float | str | None


class Unfit(Exception):
    """The node is not fit, with the reason in one line. `condition`: its name, one of `words.CONDITIONS`."""

    def __init__(self, condition: str, text: str) -> None:
        super().__init__(words.classified(text, condition))


class Suspect(Exception):
    """The node is fit, but something has happened that people should know. Arguments as for `Unfit`."""

    def __init__(self, condition: str, text: str) -> None:
        super().__init__(words.classified(text, condition))


class Unknown(Exception):
    """A check that cannot run here, with the reason in one line."""


class Asked:
    """Request of the agent: which checks, with which limits, and against which server."""

    def __init__(self, text: str) -> None:
        given = json.loads(text)
        self.checks: dict[str, Limit] = given["check"]
        self.server: tuple[str, int] | None = given["server"]
        self.tls: tuple[str, str | None, str | None] | None = given["tls"]
        self.folder: str = given["folder"] or tempfile.gettempdir()
        self.is_brief: bool = given["is_brief"]
        self.answer_s = min(ANSWER_S, given["pre_join_check_timeout"] / 2)
        self.sysfs: str = given["sysfs"]
        self.seen_before: dict[str, list[int]] = given["seen"]
        """How often each link had gone down at the last look, and its errors."""
        self.seen: dict[str, list[int]] = {}
        """The same now."""


def gpus(asked: Asked, number: float | None) -> str:
    """Check that the GPUs exist, are of one kind, and number as many as requested."""
    found = _gpus(asked)
    kinds = sorted({words.gpu(name, memory) for _, name, memory, *_ in found})
    if number is not None and len(found) != number:
        raise Unfit("GpuMissing", words.wrong_number(len(found), number))
    if not found:
        raise Unfit("GpuMissing", words.NO_GPU)
    if len(kinds) > 1:
        raise Unfit("GpuKindsDiffer", words.several_kinds(kinds))
    return words.gpus(len(found), kinds[0])


def ecc(asked: Asked, most: float | None) -> str:
    """Check that no GPU has had uncorrectable memory errors since the driver was loaded, or lacks spare rows."""
    counted = 0
    for index, _, _, errors, remapping in _gpus(asked):
        if remapping not in ("0", "No") and remapping.isalnum():
            raise Unfit("GpuMemoryBroken", words.not_remapped(index))
        if errors.isdigit():
            counted += 1
            if int(errors) > (most or 0):
                raise Unfit("GpuMemoryBroken", words.ecc_errors(index, errors))
    if not counted:
        raise Unknown(words.NO_ECC)
    return words.no_ecc_error(counted)


def xid(asked: Asked, most: float | None) -> str:
    """Check that the kernel's log since boot has no Xid that NVIDIA attributes to the hardware."""
    done = _run(["dmesg"], asked.answer_s)
    if done is None:
        raise Unknown(words.NO_DMESG)
    found = [(place, int(number)) for _, place, number in _XID.findall(done)]
    bad = [(place, number) for place, number in found if number in words.HARDWARE_XIDS]
    if len(bad) > (most or 0):
        place, number = bad[-1]
        raise Unfit("GpuXid", words.xid(number, place))
    return words.no_xid(len(found))


def disk(asked: Asked, gib: float | None) -> str:
    """Check the free space for log files, which grow during the run (default: 1 GiB)."""
    return _room(asked.folder, 1.0 if gib is None else gib, words.MAKE_ROOM)


def shm(asked: Asked, gib: float | None) -> str:
    """Check the free space in /dev/shm, which data loaders and NCCL use (default: 1 GiB)."""
    return _room("/dev/shm", 1.0 if gib is None else gib, words.ENLARGE_SHM)


def clock(asked: Asked, most_s: float | None) -> str:
    """Check that this node's clock agrees with the server's: certificates, tokens and logs depend on it."""
    if asked.server is None:
        raise Unknown(words.NO_SERVER)
    most_s = 5.0 if most_s is None else most_s
    asked_at, served_at, answered_at = _server_time(asked)
    early, late = asked_at - served_at, answered_at - served_at - 1.0  # whole seconds, rounded down
    ahead = late if late > 0 else min(0.0, early)
    if abs(ahead) > most_s:
        raise Unfit("ClockWrong", words.clock_wrong(ahead))
    return words.clock_right(max(abs(ahead), 1.0))


def ports(asked: Asked, number: float | None) -> str:
    """Check that the requested number of ports is free (default: `PORTS`), and that this node can reach itself over
    one.
    """
    wanted, opened = int(number or PORTS), []
    try:
        for _ in range(wanted):
            opened.append(socket.create_server(("", 0)))
        with socket.create_connection(("127.0.0.1", opened[0].getsockname()[1]), asked.answer_s):
            pass
    except OSError as error:
        why = words.too_few_ports(len(opened), wanted, error.strerror or str(error))
        raise Unfit("PortsExhausted", why) from None
    finally:
        for each in opened:
            each.close()
    return words.free_ports(wanted)


def links(asked: Asked, wanted: str | None) -> str:
    """Check that network links are up and as fast as expected, and whether they had errors since the last look.

    `wanted`: links to check, each perhaps with its Gbit/s, such as `eth0+mlx5_0:400`. If it is None, check all links
    that have been up before. Of InfiniBand ports of one kind, all must be as fast as the fastest.
    """
    checked: list[of_links.Link] = []
    for each in wanted.split("+") if wanted else ():
        name, _, least = each.partition(":")
        if not (found := of_links.named(asked.sysfs, name)):
            raise Unfit("LinkMissing", words.no_link(name))
        for link in found:
            _require_up(link)
            if least and (link.gbit_s or 0) < float(least):
                raise Unfit("LinkSlow", words.link_slow(link.name, link.gbit_s, float(least)))
        checked += found
    if not wanted:
        checked = [link for link in of_links.hardware(asked.sysfs) if link.is_on and link.was_up]
        for link in checked:
            _require_up(link)
        _require_equal_rates(checked)
    if not checked:
        raise Unknown(words.NO_LINKS)
    asked.seen = {link.name: [link.downs, link.errors] for link in checked}
    _compare(checked, asked.seen_before)
    return words.links_up([link.name for link in checked])


def _require_up(link: of_links.Link) -> None:
    if not link.is_up:
        raise Unfit("LinkDown", words.link_down(link.name, link.state))


def _require_equal_rates(checked: list[of_links.Link]) -> None:
    for link in checked:
        rates = [other.gbit_s for other in checked if other.kind == link.kind and link.kind and other.gbit_s]
        if link.gbit_s and link.gbit_s < max(rates, default=0.0):
            raise Unfit("LinkSlow", words.link_slow(link.name, link.gbit_s, max(rates)))


def _compare(checked: list[of_links.Link], before: dict[str, list[int]]) -> None:
    for link in checked:
        downs, errors = before.get(link.name, [link.downs, link.errors])
        if link.downs > downs:
            raise Suspect("LinkFlapped", words.link_flapped(link.name, link.downs - downs))
        if link.errors - errors > MOST_ERRORS:
            raise Suspect("LinkErrors", words.link_errors(link.name, link.errors - errors))


def storage(asked: Asked, folders: str) -> str:
    """Check that each of these folders, separated by colons, takes a file and returns the same bytes in time."""
    took_s = [_store(asked, folder) for folder in folders.split(":")]
    return words.stored(folders.split(":"), max(took_s))


def _store(asked: Asked, folder: str) -> float:
    """Return the seconds that it took."""
    command = (sys.executable, "-IS", storage_helper.__file__, folder)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        printed = process.communicate(timeout=asked.answer_s)[0].decode(errors="replace").strip()
    except subprocess.TimeoutExpired:
        process.kill()  # without a wait: it may be in uninterruptible sleep
        raise Unfit("StorageHangs", words.storage_hangs(folder, asked.answer_s)) from None
    if process.returncode == storage_helper.OTHER_BYTES:
        raise Unfit("StorageCorrupt", words.storage_corrupt(folder))
    if process.returncode:
        raise Unfit("StorageFailed", words.storage_fails(folder, printed.rpartition("\n")[2][:300]))
    return float(printed)


def network(asked: Asked, least: float | None) -> str:
    """Check the bandwidth between this node and others: see `node_agent.features.checks.network`."""
    raise Unknown(words.TESTED_BY_SERVER)


CHECKS: dict[str, Callable[[Asked, Any], str]] = {
    "gpus": gpus, "ecc": ecc, "xid": xid, "disk": disk, "shm": shm, "clock": clock, "ports": ports, "links": links,
    "storage": storage, "network": network,
}  # fmt: skip
"""Checks by name. Each takes its limit if the user set one: GPUs, errors, GiB, seconds, ports, links, folders or MB/s.
"""


def main(argument: str) -> int:
    """Run the requested checks, print their findings, and return the exit code."""
    asked = Asked(argument)
    verdicts = list(_verdicts(asked))
    width = max(6, *(len(name) for name in asked.checks))
    for name, verdict, text in verdicts:
        if verdict in ("UNFIT", "warn") or not asked.is_brief:
            line = f"{name}: {text}" if asked.is_brief else f"{name:<{width}} {verdict:<8} {text}"
            _say(line)
    if asked.is_brief and asked.seen:
        _say(of_links.SEEN + json.dumps(asked.seen))
    return os.EX_OSERR if any(verdict == "UNFIT" for _, verdict, _ in verdicts) else os.EX_OK


def _say(line: str) -> None:
    """Print a line. A verdict counts even if stdout accepts no lines, as on a full disk."""
    try:
        print(line, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _verdicts(asked: Asked) -> Iterator[tuple[str, str, str]]:
    for name, limit in asked.checks.items():
        try:
            yield name, "ok", CHECKS[name](asked, limit)
        except Unfit as unfit:
            yield name, "UNFIT", str(unfit)
        except Suspect as suspect:
            yield name, "warn", str(suspect)
        except Unknown as unknown:
            yield name, "unknown", str(unknown)


def _gpus(asked: Asked) -> list[list[str]]:
    """Return the values of `GPU_FIELDS`, one row a GPU."""
    if shutil.which("nvidia-smi") is None:
        raise Unfit("GpuDriverFailed", words.NO_DRIVER)
    query = ["nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits"]
    process = subprocess.Popen(query, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        output = process.communicate(timeout=asked.answer_s)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        process.kill()  # without a wait: it may be in uninterruptible sleep
        raise Unfit("GpuDriverFailed", words.driver_hangs(asked.answer_s)) from None
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if process.returncode:
        output = " ".join(lines)[:300]
        raise Unfit("GpuDriverFailed", words.driver_fails(process.returncode, output))
    rows = [[value.strip() for value in line.split(",")] for line in lines]
    if lost := [line for line, row in zip(lines, rows, strict=True) if len(row) != len(GPU_FIELDS)]:
        raise Unfit("GpuMissing", words.driver_says(lost[0][:300]))
    return rows


def _run(command: list[str], within_s: float) -> str | None:
    """Return the output of a program, None if it is missing, fails, or takes too long."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=within_s)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def _room(folder: str, gib: float, advice: str) -> str:
    try:
        while not os.path.exists(folder):
            folder = os.path.dirname(folder) or "."
        found = os.statvfs(folder)
    except OSError as error:
        raise Unfit("DiskFailed", f"{folder}: {error.strerror}") from None
    free = found.f_bavail * found.f_frsize / GIB
    if found.f_blocks == 0:  # such as a tmpfs without a limit
        return words.room_unlimited(folder)
    if free < gib:
        raise Unfit("DiskFull", words.no_room(free, folder, gib, advice))
    if found.f_files and found.f_favail < FEWEST_INODES:
        raise Unfit("DiskFull", words.no_inodes(found.f_favail, folder, advice))
    return words.room(free, folder)


def _server_time(asked: Asked) -> tuple[float, float, float]:
    """Return three times in seconds since 1970: the node's before the request, the server's, the node's after it."""
    assert asked.server
    host, port = asked.server
    http = HTTPConnection(host, port, timeout=asked.answer_s)
    if asked.tls:
        http = HTTPSConnection(host, port, timeout=asked.answer_s, context=_tls(*asked.tls))
    try:
        http.connect()
        asked_at = time.time()
        http.request("GET", "/healthz")
        date = http.getresponse().headers["Date"]
        return asked_at, parsedate_to_datetime(date or "").timestamp(), time.time()
    except (OSError, HTTPException, ValueError, TypeError) as error:
        raise Unknown(words.no_time(f"{host}:{port}", str(error))) from None
    finally:
        http.close()


def _tls(ca: str, cert: str | None, key: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=None if ca == "system" else ca)
    if cert:
        context.load_cert_chain(cert, key)
    return context


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
