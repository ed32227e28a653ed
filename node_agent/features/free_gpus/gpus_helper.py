"""Watches which processes hold NVIDIA's GPUs, in a process of its own: a call into a sick driver may never return.

It reads one line of JSON from its socket, with the arguments of `Processes` and `visible`, and then loads NVML.
It writes a line of JSON whenever its finding changes:

- `{"before": [[GPU, PID], ...]}`: processes on the GPUs for which it does not wait. This is its first line.
- `{"holders": [{"gpu", "index", "pid", "mib", "command"}, ...]}`: processes for which it waits. If there are none, it
  exits.
- `{"problem": "..."}`: NVML cannot be used. It exits.

It imports only the standard library. NVML reports no event for a process that ends. The helper therefore looks at once
when a process for which it waits has ended, and otherwise at intervals.
"""

import ctypes
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from ctypes import POINTER, byref, c_char_p, c_uint, c_ulonglong, c_void_p
from typing import Any

if not __package__:  # isolated and run by its path: this package would not be found
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from node_agent.kernel.processes.orphans_helper import is_marked, look_at
from node_agent.kernel.processes.system_calls import pidfd_open

LIBRARY = "libnvidia-ml.so.1"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.005, 0.25
"""Least seconds between two checks: at first, and after repeated doubling. The driver frees what a dead process held
within milliseconds, or for much memory within tenths of a second. Four checks a second take less than 1 % of a CPU."""
MOST_PROCESSES = 1_024
"""Most processes on one GPU."""
MOST_HOLDERS, COMMAND_BYTES = 64, 200
UUID_BYTES = 96
"""Size of NVML's buffers for a UUID or a name."""
MIB = 1 << 20
_NOT_AVAILABLE = 2**64 - 1
"""NVML's value for an amount of memory that the driver does not know."""
_FIRST_NAMESPACE = 0xEFFFFFFC
"""Inode of the machine's first pid namespace (PROC_PID_INIT_INO)."""
_ENDED = ([b"Z"], [b"X"])
"""States of a thread that has ended."""
_FLAGS, _PF_EXITING, _KILLED = 6, 0x4, 1 << (signal.SIGKILL - 1)
"""Place of a thread's flags in its stat, counted from the state; the flag of one that is ending; and SIGKILL in a mask.
"""
GpuProcess = tuple[str, int]
"""UUID of a GPU or MIG device, and a pid as NVML reports it."""
Holder = dict[str, Any]


class NvmlError(Exception):
    """NVML cannot be used, with the reason in one line."""


class _Process(ctypes.Structure):
    """`nvmlProcessInfo_t` of versions 2 and 3."""

    _fields_ = (("pid", c_uint), ("used", c_ulonglong), ("gpu_instance", c_uint), ("compute_instance", c_uint))


class Gpu:
    """One GPU, or one of its MIG devices."""

    def __init__(self, index: int, uuid: str, name: str, handle: c_void_p) -> None:
        self.index, self.uuid, self.name, self.handle = index, uuid, name, handle


class Nvml:
    """NVIDIA's management library. Raises `NvmlError` if it cannot be used."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
            self._processes = self._function("nvmlDeviceGetComputeRunningProcesses_v3", "_v2")
        except (OSError, AttributeError) as error:
            raise NvmlError(str(error)) from None
        self._call("nvmlInit_v2")

    def gpus(self) -> Iterator[Gpu]:
        """Yield the GPUs in the order of their PCI addresses. MIG devices take the place of their GPU.

        A GPU that does not answer is left out.
        """
        count = c_uint()
        self._call("nvmlDeviceGetCount_v2", byref(count))
        for index in range(count.value):
            with suppress(NvmlError):
                gpu = c_void_p()
                self._call("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(gpu))
                yield from [*self._parts(index, gpu)] or [self._gpu(index, gpu)]

    def processes(self, gpu: Gpu) -> list[tuple[int, int | None]]:
        """Return the processes with a context on this GPU, each with its MiB, None if unknown.

        A GPU that does not answer, or not to this user, has none.
        """
        count, found = c_uint(MOST_PROCESSES), (_Process * MOST_PROCESSES)()
        if self._processes(gpu.handle, byref(count), found):
            return []
        return [(each.pid, None if each.used == _NOT_AVAILABLE else each.used // MIB) for each in found[: count.value]]

    def _parts(self, index: int, gpu: c_void_p) -> Iterator[Gpu]:
        most = c_uint()
        with suppress(NvmlError, AttributeError):  # not a GPU with MIG, or a driver without it
            self._call("nvmlDeviceGetMaxMigDeviceCount", gpu, byref(most))
        for number in range(most.value):
            part = c_void_p()
            with suppress(NvmlError):  # this place is empty
                self._call("nvmlDeviceGetMigDeviceHandleByIndex", gpu, c_uint(number), byref(part))
                yield self._gpu(index, part)

    def _gpu(self, index: int, handle: c_void_p) -> Gpu:
        return Gpu(index, self._text("UUID", handle), self._text("Name", handle), handle)

    def _text(self, what: str, handle: c_void_p) -> str:
        buffer = ctypes.create_string_buffer(UUID_BYTES)
        self._call(f"nvmlDeviceGet{what}", handle, buffer, c_uint(UUID_BYTES))
        return buffer.value.decode(errors="replace")

    def _call(self, name: str, *args: Any) -> None:
        if code := getattr(self._library, name)(*args):
            raise NvmlError(self._what(code))

    def _function(self, name: str, older: str) -> Any:
        """Return NVML's function of this name, otherwise its older version."""
        function = getattr(self._library, name, None) or getattr(self._library, name[:-3] + older)
        function.argtypes = (c_void_p, POINTER(c_uint), POINTER(_Process))
        return function

    def _what(self, code: int) -> str:
        text = self._library.nvmlErrorString
        text.restype = c_char_p
        return (text(code) or b"").decode(errors="replace") or f"NVML error {code}"


def visible(gpus: Sequence[Gpu], devices: str | None, order: str) -> list[Gpu]:
    """Return the GPUs that workers see. Return all if that is uncertain.

    `devices`, `order`: CUDA_VISIBLE_DEVICES, None if not set, and CUDA_DEVICE_ORDER. CUDA numbers GPUs as NVML does if
    they are of one kind, or by that order.
    """
    if devices is None:
        return [*gpus]
    found: list[Gpu] = []
    is_numbered = order == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) == 1
    for each in filter(None, map(str.strip, devices.split(","))):
        if each.lstrip("-").isdigit():
            if int(each) < 0:  # CUDA ignores the rest
                break
            if not is_numbered:
                return [*gpus]
            named = [gpu for gpu in gpus if gpu.index == int(each)]
        else:
            named = [gpu for gpu in gpus if gpu.uuid.startswith(each)]
            if not named:
                return [*gpus]
        found += named
    return found


class Processes:
    """Decides for which processes to wait.

    It waits for processes with the workers' mark, and for processes that have ended: their memory is about to be freed.
    It does not wait for living processes without the mark, which belong to other people or programs.

    In a container, NVML may report pids of the machine instead of the container's own. Then it
    waits for the processes that were not there before this agent's workers.
    """

    def __init__(
        self,
        mark: str,
        survivors: Collection[int],
        kept: Collection[int],
        known: Collection[GpuProcess],
        *,
        is_first: bool,
    ) -> None:
        """`mark`: mark of each worker and its descendants, as an entry of the environment; empty for none.

        `survivors`: workers of ended rounds that SIGKILL did not end. `kept`: living processes of the agent with the
        mark. `known`: processes for which not to wait. `is_first`: whether no worker has run yet.
        """
        self._mark, self._survivors, self._is_first = os.fsencode(mark), survivors, is_first
        self._kept, self._known = kept, known
        self._has_own_pids = os.stat("/proc/self/ns/pid").st_ino == _FIRST_NAMESPACE

    def awaits(self, gpu: Gpu, pid: int) -> bool:
        """Return whether to wait until this process does not hold the GPU."""
        if pid in self._kept or (gpu.uuid, pid) in self._known:
            return False
        if not exists(pid):
            return self._has_own_pids or not self._is_first
        return pid in self._survivors or is_ending(pid) or self._is_marked(pid)

    def _is_marked(self, pid: int) -> bool:
        process = look_at(pid) if self._mark else None
        return process is not None and is_marked(pid, self._mark, is_leaderless=process.is_leaderless)


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def is_ending(pid: int) -> bool:
    """Return whether the process has ended, even if it is not reaped yet or some of its threads cannot end.

    The main thread may also end alone: such a process continues with its other threads.
    """
    if _stat(str(pid))[:1] not in _ENDED:
        return False
    with suppress(OSError):
        return not any(_continues(f"{pid}/task/{thread}") for thread in os.listdir(f"/proc/{pid}/task"))
    return True


def _continues(task: str) -> bool:
    """Return whether a thread runs, and is not about to end because its process was killed."""
    stat = _stat(task)
    if not stat or stat[:1] in _ENDED or int(stat[_FLAGS]) & _PF_EXITING:
        return False
    pending = [line for line in _read(task, "status").splitlines() if line.startswith(b"SigPnd:")]
    return not any(int(line.split()[1], 16) & _KILLED for line in pending)


def _stat(task: str) -> list[bytes]:
    """Return the fields after the name in a process's or thread's stat, none if it is gone."""
    return _read(task, "stat").rpartition(b")")[2].split()


def command_of(pid: int) -> str:
    """Return the command of a process, empty if it is not known."""
    command = _read(pid, "cmdline").replace(b"\0", b" ").strip() or _read(pid, "comm").strip()
    return command[:COMMAND_BYTES].decode(errors="replace")


def _read(task: int | str, name: str) -> bytes:
    try:
        with open(f"/proc/{task}/{name}", "rb") as file:
            return file.read()
    except OSError:  # it is gone, or another user's
        return b""


class Watch:
    """Looks at the GPUs until no awaited process holds one."""

    def __init__(self, nvml: Nvml, gpus: Sequence[Gpu], processes: Processes, told: socket.socket) -> None:
        self._nvml, self._gpus, self._processes, self._told = nvml, gpus, processes, told

    def run(self) -> None:
        before, holders = self._look()
        self._tell({"before": before})
        pause_s, last = FIRST_PAUSE_S, None
        while True:
            if holders != last:
                self._tell({"holders": holders[:MOST_HOLDERS]})
            if not holders:
                return
            self._wait({holder["pid"] for holder in holders}, pause_s)
            pause_s, last = min(2 * pause_s, LONGEST_PAUSE_S), holders
            _, holders = self._look()

    def _look(self) -> tuple[list[GpuProcess], list[Holder]]:
        """Return the processes not to wait for, and those to wait for."""
        before, holders = [], []
        for gpu in self._gpus:
            for pid, mib in self._nvml.processes(gpu):
                if self._processes.awaits(gpu, pid):
                    holders.append(
                        {"gpu": gpu.uuid, "index": gpu.index, "pid": pid, "mib": mib, "command": command_of(pid)}
                    )
                else:
                    before.append((gpu.uuid, pid))
        return before, holders

    def _wait(self, pids: Collection[int], pause_s: float) -> None:
        """Wait until one of these processes ends, the agent hangs up, or the pause is over."""
        poll, opened = select.poll(), []
        poll.register(self._told, select.POLLRDHUP)
        for pid in pids:
            with suppress(OSError):
                if look_at(pid):  # otherwise it may only be reaped: the wait would end at once
                    opened.append(pidfd_open(pid))
                    poll.register(opened[-1], select.POLLIN)
        try:
            ready = poll.poll(pause_s * 1000)
        finally:
            for descriptor in opened:
                os.close(descriptor)
        if any(descriptor == self._told.fileno() for descriptor, _ in ready):
            sys.exit(0)

    def _tell(self, what: Mapping[str, object]) -> None:
        self._told.sendall(json.dumps(what).encode() + b"\n")


def main(control: str) -> None:
    """Watch the GPUs. `control`: descriptor of the socket."""
    with socket.socket(fileno=int(control)) as told:
        try:
            if not (line := told.makefile("rb").readline()):
                return
            order, nvml = json.loads(line), Nvml()  # not before: an open driver cannot be reset or replaced
            gpus = [*nvml.gpus()]
            known = {(uuid, pid) for uuid, pid in order["known"]}
            processes = Processes(
                order["mark"], {*order["survivors"]}, {*order["kept"]}, known, is_first=order["is_first"]
            )
            Watch(nvml, visible(gpus, order["devices"], order["order"]), processes, told).run()
        except NvmlError as error:
            told.sendall(json.dumps({"problem": str(error)}).encode() + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
