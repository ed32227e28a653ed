"""Built-in checks of a node, each as the program that the agent runs, with a driver's tools that a test plays."""

import asyncio
import os
import re
import socket
import sys
import time
from email.utils import formatdate
from pathlib import Path

import msgspec
import pytest

from node_agent.checks.pre_join import NodeCheck, built_in
from node_agent.features.checks import checks
from tests.support.programs import Program

UNFIT = os.EX_OSERR
H100 = "{}, NVIDIA H100 80GB HBM3, 81559, {}, {}"
EIGHT = [H100.format(index, 0, 0) for index in range(8)]
XID = "[  1.5] NVRM: Xid (PCI:0000:3b:00): {}, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def pretend(folder: Path, name: str, *lines: str, code: int = 0, first: str = "") -> dict[str, str]:
    """Environment in which this program writes these lines, as the real one was recorded."""
    program = folder / name
    program.write_text("\n".join(["#!/bin/sh", first, "cat <<'EOF'", *lines, "EOF", f"exit {code}", ""]))
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


async def checked(*names: str, env: dict[str, str] | None = None, **more: object) -> tuple[int, list[str]]:
    """Exit code and lines of these checks."""
    program = await Program.start(*built_in(NodeCheck(built_in=checks(",".join(names)), **more)), env=env)
    return await program.exit_code(), program.out


GPUS = {  # the rows of nvidia-smi, its exit code, the check, and what is found
    "eight of one kind": (EIGHT, 0, "gpus", "gpus   ok       8 x NVIDIA H100 80GB HBM3 with 81559 MiB"),
    "as many as asked for": (EIGHT, 0, "gpus=8", "gpus   ok       8 x NVIDIA H100"),
    "one is lost": (EIGHT[1:], 0, "gpus=8", "gpus   UNFIT    7 GPUs, not 8"),
    "none": ([], 0, "gpus", "gpus   UNFIT    nvidia-smi lists no GPU"),
    "of two kinds": ([*EIGHT, "8, NVIDIA A100, 40960, 0, 0"], 0, "gpus", "gpus   UNFIT    GPUs of several kinds"),
    "the driver is gone": (["NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."], 9, "gpus",
                           "gpus   UNFIT    nvidia-smi fails with 9: NVIDIA-SMI has failed because"),
    "a lost one is named": (["Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error"], 0, "gpus",
                            "gpus   UNFIT    nvidia-smi says: Unable to determine the device handle"),
    "no errors": (EIGHT, 0, "ecc", "ecc    ok       no uncorrectable error on 8 GPUs"),
    "an uncorrectable error": ([*EIGHT[1:], H100.format(0, 2, 0)], 0, "ecc", "ecc    UNFIT    GPU 0 has had 2 unc"),
    "which may be allowed": ([*EIGHT[1:], H100.format(0, 2, 0)], 0, "ecc=2", "ecc    ok "),
    "no spare rows": ([*EIGHT[1:], H100.format(0, 0, 1)], 0, "ecc", "ecc    UNFIT    GPU 0 could not remap a row"),
    "memory that counts none": ([H100.format(0, "[N/A]", "[N/A]")], 0, "ecc", "ecc    unknown  no GPU here counts"),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "code", "check", "line"), GPUS.values(), ids=GPUS)
async def test_gpus(rows: list[str], code: int, check: str, line: str, tmp_path: Path) -> None:
    exit_code, lines = await checked(check, env=pretend(tmp_path, "nvidia-smi", *rows, code=code))
    assert lines[0].startswith(line)
    assert exit_code == (UNFIT if "UNFIT" in line else 0)


async def test_a_driver_that_hangs(tmp_path: Path) -> None:
    env = pretend(tmp_path, "nvidia-smi", first="exec sleep 60")
    assert await checked("gpus", env=env, limit_s=0.4) == (
        UNFIT, ["gpus   UNFIT    nvidia-smi has not answered within 0.2 s: the driver hangs"]
    )  # fmt: skip


async def test_a_node_without_a_driver(tmp_path: Path) -> None:
    exit_code, (line,) = await checked("gpus", env={"PATH": str(tmp_path)})
    assert exit_code == UNFIT
    assert "there is no nvidia-smi on PATH" in line


XIDS = {
    "broken hardware": (
        XID.format(79),
        0,
        "xid    UNFIT    Xid 79 of GPU 0000:3b:00 since boot: a GPU that has",
    ),
    "a program's own fault": (XID.format(31), 0, "xid    ok       no Xid of broken hardware since boot (1 others)"),
    "a log that may not be read": ("", 1, "xid    unknown  dmesg is not there, or may not read"),
}


@pytest.mark.parametrize(("text", "code", "line"), XIDS.values(), ids=XIDS)
async def test_xids_since_boot(text: str, code: int, line: str, tmp_path: Path) -> None:
    exit_code, lines = await checked("xid", env=pretend(tmp_path, "dmesg", text, code=code))
    assert lines[0].startswith(line)
    assert exit_code == (UNFIT if "UNFIT" in line else 0)


async def test_room_for_log_files_also_in_a_folder_that_is_yet_to_be_made(tmp_path: Path) -> None:
    folder = str(tmp_path / "logs" / "run")
    exit_code, (line,) = await checked("disk=0", folder=folder)
    assert (exit_code, line[:15]) == (0, "disk   ok      ")
    assert line.endswith(f"free in {tmp_path}")
    exit_code, (line,) = await checked("disk=9999999", folder=folder)
    assert exit_code == UNFIT
    assert f"free in {tmp_path}, fewer than 1e+07: remove what is not needed there" in line


async def test_shared_memory_and_ports() -> None:
    exit_code, lines = await checked("shm=0", "ports=3")
    assert (exit_code, [line.split()[:2] for line in lines]) == (0, [["shm", "ok"], ["ports", "ok"]])


async def test_what_is_not_well_alone_is_written_for_the_agent(tmp_path: Path) -> None:
    command = built_in(NodeCheck(built_in={"ports": None, "disk": 9999999}, folder=str(tmp_path)), is_brief=True)
    program = await Program.start(*command)
    assert await program.exit_code() == UNFIT
    (line,) = program.out
    assert line.startswith("disk: ")


@pytest.mark.parametrize(
    ("ahead_s", "verdict"),
    [(0, r"ok       within \d+ s of"), (90, r"UNFIT    this node's clock is (89|90) s behind the server's"),
     (-90, r"UNFIT    this node's clock is \d+ s ahead of the server's")],
)  # fmt: skip
async def test_the_clock_is_compared_with_the_servers(ahead_s: float, verdict: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        date = formatdate(time.time() + ahead_s, usegmt=True)
        writer.write(f"HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, family=socket.AF_INET)
    async with server:
        exit_code, (line,) = await checked("clock", server=server.sockets[0].getsockname()[:2])
    assert re.match(f"clock  {verdict}", line), line
    assert exit_code == (UNFIT if ahead_s else 0)


async def test_a_clock_with_nothing_to_compare_says_nothing_about_the_node() -> None:
    assert await checked("clock") == (0, ["clock  unknown  there is no server to compare with: give --endpoint"])
    exit_code, (line,) = await checked("clock", server=("127.0.0.1", 1))
    assert exit_code == 0
    assert "the server at 127.0.0.1:1 does not say what time it is" in line


def test_the_helper_needs_no_package_of_ours() -> None:
    command = built_in(NodeCheck(built_in={"ports": None}))
    assert command[:2] == (sys.executable, "-IS")
    assert msgspec.json.decode(command[-1])["built_in"] == {"ports": None}
