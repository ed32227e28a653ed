"""Built-in checks of a node, run as the agent runs them, with simulated driver tools."""

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
from rdzv_protocol.node_conditions import condition

from node_agent.features.checks import CHECKS, NodeChecks, checks, storage_helper, words
from node_agent.features.checks.pre_join import built_in
from tests.support.hanging_disk import Disk, why_no_fuse
from tests.support.message_search import has_message
from tests.support.programs import Program

UNFIT = os.EX_OSERR
H100 = "{}, NVIDIA H100 80GB HBM3, 81559, {}, {}"
EIGHT = [H100.format(index, 0, 0) for index in range(8)]
XID = "[  1.5] NVRM: Xid (PCI:0000:3b:00): {}, pid='<unknown>', name=<unknown>, GPU is off."


def pretend(folder: Path, name: str, *lines: str, code: int = 0, first: str = "") -> dict[str, str]:
    """Return an environment in which this program prints these lines, as recorded from the real one."""
    program = folder / name
    program.write_text("\n".join(["#!/bin/sh", first, "cat <<'EOF'", *lines, "EOF", f"exit {code}", ""]))
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


async def checked(*names: str, env: dict[str, str] | None = None, **more: object) -> tuple[int, list[str]]:
    """Return the exit code and the lines of these checks."""
    program = await Program.start(*built_in(NodeChecks(check=checks(",".join(names)), **more)), env=env)
    return await program.exit_code(), program.out


classified = words.classified
H100_KIND = words.gpu("NVIDIA H100 80GB HBM3", "81559")
FAILED = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
LOST = "Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error"


def line_of(check: str, verdict: str, text: str) -> str:
    """Return the line about a check, as people read it."""
    return f"{check.partition('=')[0]:<6} {verdict:<8} {text}"


GPUS = {  # the rows of nvidia-smi, its exit code, the check, its verdict, and the finding
    "eight of one kind": (EIGHT, 0, "gpus", "ok", words.gpus(8, H100_KIND)),
    "as many as asked for": (EIGHT, 0, "gpus=8", "ok", words.gpus(8, H100_KIND)),
    "one is lost": (EIGHT[1:], 0, "gpus=8", "UNFIT", classified(words.wrong_number(7, 8), "GpuMissing")),
    "more than asked for": (EIGHT, 0, "gpus=7", "UNFIT", classified(words.wrong_number(8, 7), "GpuMissing")),
    "none": ([], 0, "gpus", "UNFIT", classified(words.NO_GPU, "GpuMissing")),
    "of two kinds": ([*EIGHT, "8, NVIDIA A100, 40960, 0, 0"], 0, "gpus", "UNFIT",
                     classified(words.several_kinds([words.gpu("NVIDIA A100", "40960"), H100_KIND]), "GpuKindsDiffer")),
    "the driver is gone": ([FAILED], 9, "gpus", "UNFIT", classified(words.driver_fails(9, FAILED), "GpuDriverFailed")),
    "a lost one is named": ([LOST], 0, "gpus", "UNFIT", classified(words.driver_says(LOST), "GpuMissing")),
    "no errors": (EIGHT, 0, "ecc", "ok", words.no_ecc_error(8)),
    "an uncorrectable error": ([*EIGHT[1:], H100.format(0, 2, 0)], 0, "ecc", "UNFIT",
                               classified(words.ecc_errors("0", "2"), "GpuMemoryBroken")),
    "which may be allowed": ([*EIGHT[1:], H100.format(0, 2, 0)], 0, "ecc=2", "ok", words.no_ecc_error(8)),
    "no spare rows": ([*EIGHT[1:], H100.format(0, 0, 1)], 0, "ecc", "UNFIT",
                      classified(words.not_remapped("0"), "GpuMemoryBroken")),
    "memory that counts none": ([H100.format(0, "[N/A]", "[N/A]")], 0, "ecc", "unknown", words.NO_ECC),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "code", "check", "verdict", "text"), GPUS.values(), ids=GPUS)
async def test_the_gpus_check_reports_the_number_and_kind_of_gpus(
    rows: list[str], code: int, check: str, verdict: str, text: str, tmp_path: Path
) -> None:
    exit_code, lines = await checked(check, env=pretend(tmp_path, "nvidia-smi", *rows, code=code))
    assert lines == [line_of(check, verdict, text)]
    assert exit_code == (UNFIT if verdict == "UNFIT" else 0)


async def test_a_driver_that_hangs(tmp_path: Path) -> None:
    env = pretend(tmp_path, "nvidia-smi", first="exec sleep 60")
    hangs = classified(words.driver_hangs(0.2), "GpuDriverFailed")
    assert await checked("gpus", env=env, pre_join_check_timeout=0.4) == (UNFIT, [line_of("gpus", "UNFIT", hangs)])


async def test_a_node_without_a_driver(tmp_path: Path) -> None:
    found = await checked("gpus", env={"PATH": str(tmp_path)})
    assert found == (UNFIT, [line_of("gpus", "UNFIT", classified(words.NO_DRIVER, "GpuDriverFailed"))])


XIDS = {
    "broken hardware": (XID.format(79), 0, "UNFIT", classified(words.xid(79, "0000:3b:00"), "GpuXid")),
    "a program's own fault": (XID.format(31), 0, "ok", words.no_xid(1)),
    "a log that may not be read": ("", 1, "unknown", words.NO_DMESG),
}


@pytest.mark.parametrize(("text", "code", "verdict", "found"), XIDS.values(), ids=XIDS)
async def test_xids_since_boot(text: str, code: int, verdict: str, found: str, tmp_path: Path) -> None:
    exit_code, lines = await checked("xid", env=pretend(tmp_path, "dmesg", text, code=code))
    assert lines == [line_of("xid", verdict, found)]
    assert exit_code == (UNFIT if verdict == "UNFIT" else 0)


async def test_room_for_log_files_also_in_a_folder_that_is_yet_to_be_made(tmp_path: Path) -> None:
    folder = str(tmp_path / "logs" / "run")
    exit_code, (line,) = await checked("disk=0", folder=folder)
    assert (exit_code, line[:15]) == (0, "disk   ok      ")
    assert has_message(line, words.room, folder=str(tmp_path))
    exit_code, (line,) = await checked("disk=9999999", folder=folder)
    assert exit_code == UNFIT
    assert has_message(line, words.no_room, folder=str(tmp_path), least_gib=9999999.0, advice=words.MAKE_ROOM)


async def test_a_file_system_without_a_limit_has_room() -> None:
    """As with a tmpfs of size=0, /proc has no blocks, and none are free."""
    exit_code, (line,) = await checked("disk=9999999", folder="/proc/1")
    assert (exit_code, line[:15]) == (0, "disk   ok      ")
    assert has_message(line, words.room_unlimited, folder="/proc/1")


async def test_shared_memory_and_ports() -> None:
    exit_code, lines = await checked("shm=0", "ports=3")
    assert (exit_code, [line.split()[:2] for line in lines]) == (0, [["shm", "ok"], ["ports", "ok"]])


async def test_only_checks_that_do_not_pass_are_written_for_the_agent(tmp_path: Path) -> None:
    command = built_in(NodeChecks(check={"ports": None, "disk": 9999999}, folder=str(tmp_path)), is_brief=True)
    program = await Program.start(*command)
    assert await program.exit_code() == UNFIT
    (line,) = program.out
    assert line.startswith("disk: ")


@pytest.mark.parametrize(
    ("ahead_s", "verdict", "found"),
    [(0, "ok", [words.clock_right(seconds) for seconds in range(1, 5)]),
     (90, "UNFIT", [classified(words.clock_wrong(-seconds), "ClockWrong") for seconds in (89, 90)]),
     (-90, "UNFIT", [classified(words.clock_wrong(seconds), "ClockWrong") for seconds in range(80, 100)])],
    ids=["right", "behind", "ahead"],
)  # fmt: skip
async def test_the_clock_is_compared_with_the_servers(ahead_s: float, verdict: str, found: list[str]) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        date = formatdate(time.time() + ahead_s, usegmt=True)
        writer.write(f"HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, family=socket.AF_INET)
    async with server:
        exit_code, (line,) = await checked("clock", server=server.sockets[0].getsockname()[:2])
    assert line in [line_of("clock", verdict, text) for text in found]
    assert exit_code == (UNFIT if ahead_s else 0)


async def test_a_clock_check_without_a_reachable_server_is_unknown() -> None:
    assert await checked("clock") == (0, [line_of("clock", "unknown", words.NO_SERVER)])
    exit_code, (line,) = await checked("clock", server=("127.0.0.1", 1))
    assert exit_code == 0
    assert has_message(line, words.no_time, server="127.0.0.1:1")


async def test_a_folder_that_takes_and_returns_a_file(tmp_path: Path) -> None:
    (other := tmp_path / "other").mkdir()
    exit_code, (line,) = await checked(f"storage={tmp_path}:{other}")
    assert exit_code == 0
    assert has_message(line, words.stored, folders=[str(tmp_path), str(other)])
    assert os.listdir(tmp_path) == ["other"]
    assert os.listdir(other) == []


async def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    exit_code, (line,) = await checked(f"storage={folder}")
    assert exit_code == UNFIT
    assert line == line_of(
        "storage", "UNFIT", classified(words.storage_fails(str(folder), "No such file or directory"), "StorageFailed")
    )


async def test_a_folder_that_returns_other_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_helper, "BYTES", 3)
    monkeypatch.setattr(os, "urandom", lambda number: bytearray(number))
    monkeypatch.setattr(os, "fsync", lambda file: os.pwrite(file, b"x", 0))
    assert storage_helper.main(str(tmp_path)) == storage_helper.OTHER_BYTES
    monkeypatch.setattr(os, "fsync", lambda file: None)
    assert storage_helper.main(str(tmp_path)) == 0


@pytest.mark.skipif(bool(why_no_fuse()), reason=why_no_fuse())
async def test_a_disk_that_hangs_is_named_within_the_limit(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    check = NodeChecks(check=checks(f"storage={disk.path}"), pre_join_check_timeout=2.0)
    hang = ("sh", "-c", f'printf h >{tmp_path}/control; exec "$@"', "sh")
    program = await Program.start(*disk.command(*hang, *built_in(check)))
    assert await program.exit_code() == UNFIT
    hangs = classified(words.storage_hangs(str(disk.path), 1.0), "StorageHangs")
    assert line_of("storage", "UNFIT", hangs) in program.out


def test_values_that_are_not_numbers() -> None:
    assert checks("links,storage=/a:/b") == {"links": None, "storage": "/a:/b"}
    assert checks("links=eth0+mlx5_0:400+mlx5_1/1:400") == {"links": "eth0+mlx5_0:400+mlx5_1/1:400"}
    for bad in ("storage", "storage=", "storage=/a:"):
        with pytest.raises(ValueError, match=re.escape(words.needs_folder())):
            checks(bad)
    for bad in ("links=", "links=eth0:fast", "links=eth0+"):
        with pytest.raises(ValueError, match=re.escape(words.not_a_check(CHECKS, bad))):
            checks(bad)


def test_each_condition_is_read_by_the_server() -> None:
    for name, kind in words.CONDITIONS.items():
        assert condition(f"node a is unfit: {classified('too (little) room', name)}") == (name, kind)
    assert condition("worker rank 0 failed: exit code 3 (1)") == ("", "")


def test_the_helper_needs_no_package_of_ours() -> None:
    command = built_in(NodeChecks(check={"ports": None}))
    assert command[:2] == (sys.executable, "-IS")
    assert msgspec.json.decode(command[-1])["check"] == {"ports": None}
