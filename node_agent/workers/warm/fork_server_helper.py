"""The process that has imported what the workers need, and forks the workers: see pool.py beside it.

A program of its own, run by the workers' interpreter: it imports what it is told to, and nothing else of ours. A fork
copies one thread, and no GPU context: a module that starts threads which do not survive a fork, or opens a GPU, is
refused.

On its control socket, in single packets: "ready SECONDS" or "refused WHY" comes first. Each order is a number of
processes to fork; for each there is an answer, its pid with a socket, or "failed". Over that socket the process is
given, once, its task: a map in JSON, and with it stdin, stdout and stderr. Until then it waits, and ignores the signals
that a scheduler sends to every process of a node: they are for the workers and the agent.
"""

import ctypes
import gc
import importlib
import importlib.util
import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from typing import Any

Pair = tuple[socket.socket, socket.socket]
"""The agent's end, and that of the process."""

FORKED = struct.Struct("ii")
"""A process's place among those that are forked together, and its pid."""
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
LONGEST_ORDER = 16
LONGEST_REFUSAL = 4_096
CHUNK = 65_536
DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel")


def main() -> None:
    """argv: the control descriptor, the modules with commas, and the command that the workers seem to be."""
    control, agent = socket.socket(fileno=int(sys.argv[1])), os.getppid()
    name, handlers = _name(str(os.getpid())), _ignore_signals()
    interpreter = _beside("interpreter")
    interpreter.find_modules_for(sys.argv[3:])
    began = time.monotonic()
    for module in sys.argv[2].split(","):
        if refusal := _load(module):
            control.send(f"refused {refusal}".encode(errors="replace")[:LONGEST_REFUSAL])
            return
    _set_name("fork-server")
    gc.collect()
    gc.freeze()  # collections in the workers leave alone, and so unshared, what was imported here
    control.send(b"ready %.2f" % (time.monotonic() - began))
    task = _serve(control, agent)
    _set_name(name)
    for signum, handler in handlers.items():
        if signal.getsignal(signum) is signal.SIG_IGN:  # else a module has put its own there
            signal.signal(signum, handler)
    interpreter.run_command(**task)


def _ignore_signals() -> dict[int, Any]:
    """Handlers that they had before."""
    signums = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    return {signum: signal.signal(signum, signal.SIG_IGN) for signum in signums}


def _beside(name: str) -> Any:
    """The file of this name in this one's folder, under a name that nobody else has."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"_node_agent_{name}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Importing.


def _load(module: str) -> str:
    """Why it cannot be loaded here; empty if it is."""
    try:
        importlib.import_module(module)
    except BaseException as error:
        return f"{module} cannot be imported: {type(error).__name__}: {error}"
    if device := _open_device():
        return f"{module} opens {device} when it is imported, and a fork cannot share it"
    if threads := _threads_after_a_fork():
        return f"{module} starts {len(threads)} threads when it is imported ({', '.join(threads)}), which a fork loses"
    return ""


def _open_device() -> str | None:
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:  # the listing's own
            continue
        if path.startswith(DEVICES):
            return path
    return None


def _threads_after_a_fork() -> list[str]:
    """Besides the main one. Those of libraries that provide for forks, as OpenBLAS does, end, and begin anew."""
    if not (pid := os.fork()):
        os._exit(0)
    os.waitpid(pid, 0)
    others = set(os.listdir("/proc/self/task")) - {str(os.getpid())}
    return [_name(thread) for thread in sorted(others)]


def _name(thread: str) -> str:
    try:
        with open(f"/proc/self/task/{thread}/comm") as comm:
            return comm.read().strip()
    except FileNotFoundError:  # ended this moment
        return "?"


# Forking.


def _serve(control: socket.socket, agent: int) -> dict[str, Any]:
    """Fork as often as the agent asks. Returns, in a process that has been given one, its task; ends with the agent."""
    while order := control.recv(LONGEST_ORDER):
        if mine := _fork(int(order), control, agent):
            control.close()
            return _receive(mine)
    os._exit(0)


def _fork(count: int, control: socket.socket, agent: int) -> socket.socket | None:
    """Fork so many children of the agent. None here; in each of them its socket.

    A process in between forks them and ends, so that the agent, which adopts whoever loses its parent, has them as its
    own: to wait for, and to take along when it dies. None of them goes on before that.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(count)]
    forked, report = os.pipe()
    adopted, adopt = os.pipe()
    if between := os.fork():
        _close(report)
        os.waitpid(between, 0)
        _close(adopted, adopt)
        _announce(forked, pairs, control)
        return None
    for place in range(count):
        if not os.fork():
            _start_session(place, report)
            _close(adopt, forked)
            os.read(adopted, 1)  # its end: nobody holds it but those who wait for it
            _close(adopted)
            _tie_to(agent)
            _set_name("warm-process")
            return _keep(place, pairs)
    os._exit(0)


def _start_session(place: int, report: int) -> None:
    """Lead a group, so that a signal to it arrives from the moment in which anybody knows of this process."""
    os.setsid()
    os.write(report, FORKED.pack(place, os.getpid()))
    os.close(report)


def _announce(forked: int, pairs: Sequence[Pair], control: socket.socket) -> None:
    """Tell the agent of its children: fewer than it asked for, if the system has no room for more."""
    with os.fdopen(forked, "rb") as reports:
        pids = dict(FORKED.iter_unpack(reports.read()))
    for place, (agents, theirs) in enumerate(pairs):
        if place in pids:
            socket.send_fds(control, [b"%d" % pids[place]], [agents.fileno()])
        else:
            control.send(b"failed")
        agents.close()
        theirs.close()


def _keep(place: int, pairs: Sequence[Pair]) -> socket.socket:
    """The socket of this process alone."""
    for index, (agents, theirs) in enumerate(pairs):
        agents.close()
        if index != place:
            theirs.close()
    return pairs[place][1]


def _tie_to(agent: int) -> None:
    """The kernel kills this process when the agent dies, also if it is dead already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != agent:
        os._exit(1)


def _set_name(name: str) -> None:
    """Name in ps and top."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _receive(orders: socket.socket) -> dict[str, Any]:
    """The task. Ends if there is none."""
    text, descriptors = bytearray(), list[int]()
    while True:
        chunk, given, _, _ = socket.recv_fds(orders, CHUNK, maxfds=3)
        descriptors += given
        text += chunk
        if not chunk:
            break
    orders.close()
    if not text:
        os._exit(0)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    task: dict[str, Any] = json.loads(text)
    return task


if __name__ == "__main__":
    main()
