"""The helper that watches GPUs: the real program and a stand-in of NVML, with real processes."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from node_agent.features.free_gpus.feature import PROGRAM
from node_agent.features.free_gpus.gpus_helper import Gpu, visible
from node_agent.kernel.processes.orphans_helper import limit_for, mark_descendants
from tests.support import leaderless
from tests.support.nvml import UNKNOWN, PlayedDriver

MARK = "NODE_AGENT_ID=mine"
MIB = 1 << 20
PATIENCE_S = 20.0


class Looking:
    """A running helper."""

    def __init__(self, driver: PlayedDriver, command: Sequence[str] = ()) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(PATIENCE_S)
        self._lines = self.socket.makefile("rb")
        with theirs:
            self.process = subprocess.Popen(
                [*command, sys.executable, "-IS", PROGRAM, str(theirs.fileno())],
                env={**os.environ, **driver.environment}, pass_fds=[theirs.fileno()],
            )  # fmt: skip

    def orders(self, **what: object) -> None:
        order = {
            "mark": MARK,
            "survivors": [],
            "kept": [],
            "known": [],
            "is_first": False,
            "devices": None,
            "order": "",
        } | what
        self.socket.sendall(json.dumps(order).encode() + b"\n")

    def hears(self) -> dict[str, Any]:
        """Return its next report, empty if it has ended."""
        return json.loads(self._lines.readline() or b"{}")

    def holders(self, **what: object) -> list[dict[str, Any]]:
        """Give the order, and return the processes for which it waits."""
        self.orders(**what)
        assert "before" in self.hears()
        return self.hears()["holders"]

    def exit_code(self) -> int:
        return self.process.wait(PATIENCE_S)


@contextmanager
def looking(driver: PlayedDriver, *command: str) -> Iterator[Looking]:
    made = Looking(driver, command)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()
        made._lines.close()
        made.socket.close()


@contextmanager
def living(mark: str = "", command: Sequence[str] = ("sleep", "60")) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process, with the mark of a worker or without."""
    name, _, value = mark.partition("=")
    environment = {"PATH": os.environ["PATH"], **({name: value} if mark else {})}
    with subprocess.Popen(command, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def without_main_thread(mark: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process whose main thread has ended, while another one runs."""
    with living(mark, leaderless.COMMAND) as process:
        leaderless.until_leaderless(process.pid)
        yield process


def ended() -> int:
    """Return the pid of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def place(pid: int, *, mib: int | None = 512, command: str = "", gpu: int = 0, uuid: str = "GPU-0") -> dict[str, Any]:
    return {"gpu": uuid, "index": gpu, "pid": pid, "mib": mib, "command": command}


@pytest.mark.parametrize("version", ["_v3", "_v2"])
def test_it_waits_until_the_memory_of_a_dead_process_is_free(tmp_path: Path, version: str) -> None:
    driver, pid = PlayedDriver(tmp_path, version=version), ended()
    driver.says(f"holds 0 {pid} {512 * MIB}")
    with looking(driver) as look:
        assert look.holders() == [place(pid)]
        driver.says(f"holds 0 {pid} {UNKNOWN}")
        assert look.hears() == {"holders": [place(pid, mib=None)]}
        driver.says()
        assert look.hears() == {"holders": []}
        assert look.exit_code() == 0


def test_a_process_with_the_workers_mark_is_named_and_its_end_is_noticed_at_once(tmp_path: Path) -> None:
    driver = PlayedDriver(tmp_path)
    with living(MARK) as worker, looking(driver) as look:
        driver.says(f"lives 0 {worker.pid} {512 * MIB}")
        assert look.holders() == [place(worker.pid, command="sleep 60")]
        worker.kill()
        worker.wait()
        last: dict[str, Any] = {}
        while report := look.hears():  # between its end and its reaping it has no command
            last = report
        assert last == {"holders": []}


def test_a_process_that_has_cleared_its_environment_still_has_the_mark(tmp_path: Path) -> None:
    driver, limit = PlayedDriver(tmp_path), limit_for(MARK.encode())
    with subprocess.Popen(("sleep", "60"), env={}, preexec_fn=lambda: mark_descendants(limit)) as worker:
        try:
            driver.says(f"lives 0 {worker.pid} {512 * MIB}")
            with looking(driver) as look:
                (holder,) = look.holders()
        finally:
            worker.kill()
    assert holder["pid"] == worker.pid


def test_a_zombie_is_a_process_that_has_ended(tmp_path: Path) -> None:
    driver = PlayedDriver(tmp_path)
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    driver.says(f"holds 0 {zombie.pid} {512 * MIB}")
    with looking(driver) as look:
        (holder,) = look.holders()
        assert holder["pid"] == zombie.pid
    zombie.wait()


def test_a_process_whose_main_thread_has_ended_still_runs(tmp_path: Path) -> None:
    driver = PlayedDriver(tmp_path)
    with without_main_thread() as others, without_main_thread(MARK) as worker, looking(driver) as look:
        driver.says(*(f"lives 0 {each.pid} {MIB}" for each in (others, worker)))
        look.orders()
        assert look.hears() == {"before": [["GPU-0", others.pid]]}
        (holder,) = look.hears()["holders"]
        assert holder["pid"] == worker.pid
        worker.kill()
        worker.wait()
        last: dict[str, Any] = {}
        while report := look.hears():
            last = report
        assert last == {"holders": []}


def test_a_killed_process_is_waited_for_until_its_last_thread_has_ended(tmp_path: Path) -> None:
    driver = PlayedDriver(tmp_path)
    with without_main_thread() as killed, looking(driver) as look:
        held = leaderless.HeldThread(killed.pid)
        killed.kill()
        driver.says(f"lives 0 {killed.pid} {MIB}")
        (holder,) = look.holders()
        assert holder["pid"] == killed.pid
        held.release()
        killed.wait()
        last: dict[str, Any] = {}
        while report := look.hears():
            last = report
        assert last == {"holders": []}


def test_it_does_not_wait_for_the_processes_of_other_people_or_of_the_agent(tmp_path: Path) -> None:
    driver = PlayedDriver(tmp_path)
    with living() as others, living(MARK) as kept, living(MARK) as known, looking(driver) as look:
        driver.says(*(f"holds 0 {each.pid} {MIB}" for each in (others, kept, known)))
        look.orders(kept=[kept.pid], known=[["GPU-0", known.pid]])
        assert look.hears() == {"before": [["GPU-0", each.pid] for each in (others, kept, known)]}
        assert look.hears() == {"holders": []}


def test_without_a_mark_a_living_process_is_not_awaited(tmp_path: Path) -> None:
    driver = PlayedDriver(tmp_path)
    with living() as process, looking(driver) as look:
        driver.says(f"holds 0 {process.pid} {MIB}")
        assert look.holders(mark="") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a pid namespace")
def test_in_a_container_unknown_pids_count_unless_they_were_there_before_the_workers(tmp_path: Path) -> None:
    container = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--mount")
    driver = PlayedDriver(tmp_path)
    driver.says(f"holds 0 4000000 {512 * MIB}")
    with looking(driver, *container) as look:
        look.orders(is_first=True)
        assert [look.hears(), look.hears()] == [{"before": [["GPU-0", 4_000_000]]}, {"holders": []}]
    with looking(driver, *container) as look:
        assert look.holders() == [place(4_000_000)]
    with looking(driver, *container) as look:
        assert look.holders(known=[["GPU-0", 4_000_000]]) == []


def test_only_the_workers_gpus_count(tmp_path: Path) -> None:
    pid, driver = ended(), PlayedDriver(tmp_path, "gpu GPU-0 H100", "gpu GPU-1 H100", "mig 1 MIG-5")
    driver.says(f"holds 0 {pid} {512 * MIB}", f"holds 1 {pid} {512 * MIB}")
    with looking(driver) as look:
        assert look.holders(devices="0", order="PCI_BUS_ID") == [place(pid)]
    with looking(driver) as look:
        assert look.holders(devices="MIG-5") == [place(pid, gpu=1, uuid="MIG-5")]
    with looking(driver) as look:
        assert look.holders() == [place(pid), place(pid, gpu=1, uuid="MIG-5")]


VISIBLE = {  # CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER, whether the GPUs are of one kind: those that workers see
    "all": (None, "", True, "abc"),
    "none": ("", "", True, ""),
    "by number": ("2,0", "", True, "ca"),
    "up to the first wrong one": ("1,-1,0", "", True, "b"),
    "a number of several kinds": ("1", "", False, "abc"),
    "a number in the order of addresses": ("1", "PCI_BUS_ID", False, "b"),
    "by the beginning of an id": ("GPU-b,GPU-a", "", False, "ba"),
    "by an id that is not there": ("GPU-x", "", True, "abc"),
}


@pytest.mark.parametrize(("devices", "order", "is_one_kind", "found"), VISIBLE.values(), ids=VISIBLE)
def test_visible_devices(devices: str | None, order: str, is_one_kind: bool, found: str) -> None:
    names = ("H100",) * 3 if is_one_kind else ("H100", "A100", "H100")
    gpus = [Gpu(index, f"GPU-{'abc'[index]}1", name, None) for index, name in enumerate(names)]
    assert "".join(gpu.uuid[4] for gpu in visible(gpus, devices, order)) == found


def test_a_driver_that_fails_is_reported_without_a_wait(tmp_path: Path) -> None:
    driver = PlayedDriver(tmp_path)
    driver.says("fails 9")
    with looking(driver) as look:
        look.orders()
        assert look.hears() == {"problem": "Driver Not Loaded"}
        assert look.exit_code() == 0
    driver.environment["LD_LIBRARY_PATH"] = ""
    with looking(driver) as look:
        look.orders()
        assert "libnvidia-ml.so.1" in look.hears()["problem"]


def test_it_ends_when_the_agent_hangs_up(tmp_path: Path) -> None:
    driver = PlayedDriver(tmp_path)
    driver.says(f"holds 0 {ended()} {MIB}")
    with looking(driver) as look:
        look.holders()
        look.socket.shutdown(socket.SHUT_RDWR)
        assert look.exit_code() == 0
