"""Built-in checks of a node, as a program of its own: `--check gpus,disk=20`. It needs only Python and the sentences.

Its argument is JSON with `names`, `server`, `tls`, `folder`, `limit_s` and `is_brief`. It prints one line a check: its
name, `ok`, `UNFIT` or `unknown`, and the finding. The exit code is 71 if a check has found the node unfit, otherwise 0.

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

if not __package__:  # isolated and run by its path: this package would not be found
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from node_agent.features.node_checks import words

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


class Unfit(Exception):
    """The node is not fit, with the reason in one line."""


class Unknown(Exception):
    """A check that cannot run here, with the reason in one line."""


class Asked:
    """Request of the agent: which checks, with which limits, and against which server."""

    def __init__(self, text: str) -> None:
        given = json.loads(text)
        self.checks: dict[str, float | None] = given["built_in"]
        self.server: tuple[str, int] | None = given["server"]
        self.tls: tuple[str, str | None, str | None] | None = given["tls"]
        self.folder: str = given["folder"] or tempfile.gettempdir()
        self.is_brief: bool = given["is_brief"]
        self.answer_s = min(ANSWER_S, given["limit_s"] / 2)


def gpus(asked: Asked, number: float | None) -> str:
    """Check that the GPUs exist, are of one kind, and number as many as requested."""
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
    """Check that no GPU has had uncorrectable memory errors since the driver was loaded, or lacks spare rows."""
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
    """Check that the kernel's log since boot has no Xid that NVIDIA attributes to the hardware."""
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
        raise Unfit(words.clock_wrong(ahead))
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
        raise Unfit(words.too_few_ports(len(opened), wanted, error.strerror or str(error))) from None
    finally:
        for each in opened:
            each.close()
    return words.free_ports(wanted)


def network(asked: Asked, least: float | None) -> str:
    """Check the bandwidth between this node and others: see `node_agent.features.node_checks.network`."""
    raise Unknown(words.TESTED_BY_SERVER)


CHECKS: dict[str, Callable[[Asked, float | None], str]] = {
    "gpus": gpus, "ecc": ecc, "xid": xid, "disk": disk, "shm": shm, "clock": clock, "ports": ports,
    "network": network,
}  # fmt: skip
"""Checks by name. Each takes its limit if the user set one: GPUs, errors, GiB, seconds, ports or MB/s."""


def main(argument: str) -> int:
    """Run the requested checks, print their findings, and return the exit code."""
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
    """Return the values of `GPU_FIELDS`, one row a GPU."""
    if shutil.which("nvidia-smi") is None:
        raise Unfit(words.NO_DRIVER)
    query = ["nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits"]
    process = subprocess.Popen(query, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        output = process.communicate(timeout=asked.answer_s)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        process.kill()  # without a wait: it may be in uninterruptible sleep
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
        raise Unfit(f"{folder}: {error.strerror}") from None
    free = found.f_bavail * found.f_frsize / GIB
    if free < gib:
        raise Unfit(words.no_room(free, folder, gib, advice))
    if found.f_files and found.f_favail < FEWEST_INODES:
        raise Unfit(words.no_inodes(found.f_favail, folder, advice))
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
