"""Built-in checks of a node, as a program of its own that needs Python and our sentences alone: `--check gpus,disk=20`.

Its argument is JSON: `names`, `server`, `tls`, `folder`, `limit_s`, `is_brief`. It writes one line a check: its name,
`ok`, `UNFIT` or `unknown`, and what was found. Exit code 71 if a check has found the node unfit, else 0. What cannot be
looked at, for want of a permission or a program, says nothing about the node, but for GPUs: whoever asks for them has
some.
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

if not __package__:  # run by its path, and isolated: nothing of ours would be found
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from node_agent.features.node_checks import words

GIB = 1 << 30
PORTS = 8
"""Ports that an agent and its workers use at a time, and some more."""
FEWEST_INODES = 1_000
ANSWER_S = 20.0
"""Time within which nvidia-smi and the server answer, if they are well."""
GPU_FIELDS = (
    "index", "name", "memory.total", "ecc.errors.uncorrected.volatile.total", "remapped_rows.failure"
)  # fmt: skip
_XID = re.compile(r"NVRM: Xid \((PCI:)?([0-9a-fA-F:.]+)\): (\d+)")


class Unfit(Exception):
    """The node is not fit, in one line."""


class Unknown(Exception):
    """A check that cannot be made here, and why, in one line."""


class Asked:
    """Request of the agent: which checks, with what limits, and against which server."""

    def __init__(self, text: str) -> None:
        given = json.loads(text)
        self.checks: dict[str, float | None] = given["built_in"]
        self.server: tuple[str, int] | None = given["server"]
        self.tls: tuple[str, str | None, str | None] | None = given["tls"]
        self.folder: str = given["folder"] or tempfile.gettempdir()
        self.is_brief: bool = given["is_brief"]
        self.answer_s = min(ANSWER_S, given["limit_s"] / 2)


def gpus(asked: Asked, number: float | None) -> str:
    """The GPUs are there, so many of them if that was asked for, and of one kind."""
    found = _gpus(asked)
    kinds = sorted({words.gpu(name, memory) for _, name, memory, *_ in found})
    if number is not None and len(found) != number:
        raise Unfit(words.wrong_number(len(found), number))
    if not found:
        raise Unfit(words.NO_GPU)
    if len(kinds) > 1:
        raise Unfit(words.several_kinds(kinds))
    return words.gpus(len(found), kinds[0])


def ecc(asked: Asked, most: float | None) -> str:
    """No GPU has had uncorrectable memory errors since the driver was loaded, or has run out of spare rows."""
    counted = 0
    for index, _, _, errors, remapping in _gpus(asked):
        if remapping not in ("0", "No") and remapping.isalnum():
            raise Unfit(words.not_remapped(index))
        if errors.isdigit():
            counted += 1
            if int(errors) > (most or 0):
                raise Unfit(words.ecc_errors(index, errors))
    if not counted:
        raise Unknown(words.NO_ECC)
    return words.no_ecc_error(counted)


def xid(asked: Asked, most: float | None) -> str:
    """The kernel's log has no Xid since boot that NVIDIA puts down to the hardware."""
    done = _run(["dmesg"], asked.answer_s)
    if done is None:
        raise Unknown(words.NO_DMESG)
    found = [(place, int(number)) for _, place, number in _XID.findall(done)]
    bad = [(place, number) for place, number in found if number in words.HARDWARE_XIDS]
    if len(bad) > (most or 0):
        place, number = bad[-1]
        raise Unfit(words.xid(number, place))
    return words.no_xid(len(found))


def disk(asked: Asked, gib: float | None) -> str:
    """Free space for log files, which are written while the run goes on, is enough (default: 1 GiB)."""
    return _room(asked.folder, 1.0 if gib is None else gib, words.MAKE_ROOM)


def shm(asked: Asked, gib: float | None) -> str:
    """Free space in /dev/shm, which data loaders and NCCL use, is enough (default: 1 GiB)."""
    return _room("/dev/shm", 1.0 if gib is None else gib, words.ENLARGE_SHM)


def clock(asked: Asked, most_s: float | None) -> str:
    """The clocks of this node and of the server agree: certificates, tokens and people's logs depend on it."""
    if asked.server is None:
        raise Unknown(words.NO_SERVER)
    most_s = 5.0 if most_s is None else most_s
    asked_at, served_at, answered_at = _server_time(asked)
    early, late = asked_at - served_at, answered_at - served_at - 1.0  # whole seconds, rounded down
    ahead = late if late > 0 else min(0.0, early)
    if abs(ahead) > most_s:
        raise Unfit(words.clock_wrong(ahead))
    return words.clock_right(max(abs(ahead), 1.0))


def ports(asked: Asked, number: float | None) -> str:
    """The wanted number of ports is free (default: `PORTS`), and this node can reach itself over one."""
    wanted, opened = int(number or PORTS), []
    try:
        for _ in range(wanted):
            opened.append(socket.create_server(("", 0)))
        with socket.create_connection(("127.0.0.1", opened[0].getsockname()[1]), asked.answer_s):
            pass
    except OSError as error:
        raise Unfit(words.too_few_ports(len(opened), wanted, error.strerror or str(error))) from None
    finally:
        for each in opened:
            each.close()
    return words.free_ports(wanted)


def network(asked: Asked, least: float | None) -> str:
    """Enough bandwidth between this node and others: see `node_agent.features.node_checks.network`."""
    raise Unknown(words.TESTED_BY_SERVER)


CHECKS: dict[str, Callable[[Asked, float | None], str]] = {
    "gpus": gpus, "ecc": ecc, "xid": xid, "disk": disk, "shm": shm, "clock": clock, "ports": ports,
    "network": network,
}  # fmt: skip
"""Checks by name. Each is given its limit, if the user named one: GPUs, errors, GiB, seconds, ports or MB/s."""


def main(argument: str) -> int:
    """Run the checks that are asked for, write what they have found, and return the exit code."""
    asked = Asked(argument)
    verdicts = list(_verdicts(asked))
    for name, verdict, text in verdicts:
        if verdict == "UNFIT" or not asked.is_brief:
            line = f"{name}: {text}" if asked.is_brief else f"{name:<6} {verdict:<8} {text}"
            print(line, flush=True)  # noqa: T201
    return os.EX_OSERR if any(verdict == "UNFIT" for _, verdict, _ in verdicts) else os.EX_OK


def _verdicts(asked: Asked) -> Iterator[tuple[str, str, str]]:
    for name, limit in asked.checks.items():
        try:
            yield name, "ok", CHECKS[name](asked, limit)
        except Unfit as unfit:
            yield name, "UNFIT", str(unfit)
        except Unknown as unknown:
            yield name, "unknown", str(unknown)


def _gpus(asked: Asked) -> list[list[str]]:
    """Values of `GPU_FIELDS`, one row a GPU."""
    if shutil.which("nvidia-smi") is None:
        raise Unfit(words.NO_DRIVER)
    query = ["nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits"]
    process = subprocess.Popen(query, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        output = process.communicate(timeout=asked.answer_s)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        process.kill()  # and nobody waits for it: it may be in uninterruptible sleep
        raise Unfit(words.driver_hangs(asked.answer_s)) from None
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if process.returncode:
        said = " ".join(lines)[:300]
        raise Unfit(words.driver_fails(process.returncode, said))
    rows = [[value.strip() for value in line.split(",")] for line in lines]
    if lost := [line for line, row in zip(lines, rows, strict=True) if len(row) != len(GPU_FIELDS)]:
        raise Unfit(words.driver_says(lost[0][:300]))
    return rows


def _run(command: list[str], within_s: float) -> str | None:
    """Output of a program; None if it is not there, fails, or takes too long."""
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
        raise Unfit(f"{folder}: {error.strerror}") from None
    free = found.f_bavail * found.f_frsize / GIB
    if free < gib:
        raise Unfit(words.no_room(free, folder, gib, advice))
    if found.f_files and found.f_favail < FEWEST_INODES:
        raise Unfit(words.no_inodes(found.f_favail, folder, advice))
    return words.room(free, folder)


def _server_time(asked: Asked) -> tuple[float, float, float]:
    """The node's clock before the question, the server's in between, and the node's again. Seconds since 1970."""
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
