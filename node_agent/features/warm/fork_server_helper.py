"""The process that has imported what the workers need, and forks the workers: see pool.py beside it.

It is a program of its own, run by the workers' interpreter. It imports the modules that it is told to, and nothing else
of this package. A fork copies one thread and no GPU context. So the fork server refuses a module that opens a GPU, or
that starts threads which do not survive a fork.

Messages on its control socket are single packets. The first is "ready SECONDS" or "refused WHY". Each order then
requests a process, and brings a socket for it. Over that socket the process sends its pid and gets its task once: a
JSON object, with stdin, stdout and stderr. Until then it waits, and ignores the signals that a scheduler sends to every
process of a node. These are for the workers and the agent.
"""

import ctypes
import gc
import importlib
import importlib.util
import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
LONGEST_ORDER = 16
LONGEST_REFUSAL = 4_096
CHUNK = 65_536
DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel")


def main() -> None:
    """Run the fork server. argv: control descriptor, agent's pid, signals to ignore and modules, both separated by
    commas, the workers' command.
    """
    control, agent = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    name = _name(str(os.getpid()))
    handlers = {signum: signal.signal(signum, signal.SIG_IGN) for signum in map(int, sys.argv[3].split(","))}
    interpreter = _beside("interpreter")
    interpreter.find_modules_for(sys.argv[5:])
    began = time.monotonic()
    for module in sys.argv[4].split(","):
        if refusal := _load(module):
            control.send(f"refused {refusal}".encode(errors="replace")[:LONGEST_REFUSAL])
            return
    _set_name("fork-server")
    gc.collect()
    gc.freeze()  # collections in the workers then leave the imported objects alone, so that their memory stays shared
    control.send(b"ready %.2f" % (time.monotonic() - began))
    task = _receive(_serve(control, agent))
    _set_name(name)
    for signum, handler in handlers.items():
        if signal.getsignal(signum) is signal.SIG_IGN:  # otherwise a module has set its own handler
            signal.signal(signum, handler)
    interpreter.run_command(**task)


def _beside(name: str) -> Any:
    """Load the file of this name in this folder, under a module name that no other module has."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"_node_agent_{name}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _words() -> Any:
    return _beside("words")


# Importing.


def _load(module: str) -> str:
    """Load a module. Return why it cannot be preloaded, empty if it can."""
    try:
        importlib.import_module(module)
    except BaseException as error:
        return str(_words().cannot_import(module, f"{type(error).__name__}: {error}"))
    if device := _open_device():
        return str(_words().opens_device(module, device))
    try:
        threads = _threads_after_a_fork()
    except OSError as error:  # at a limit of processes
        return str(_words().cannot_fork(error.strerror))
    return str(_words().starts_threads(module, threads)) if threads else ""


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
    """Return the names of the other threads after a fork. Some libraries, such as OpenBLAS, end theirs for it."""
    if not (pid := os.fork()):
        os._exit(0)
    os.waitpid(pid, 0)
    others = set(os.listdir("/proc/self/task")) - {str(os.getpid())}
    return [_name(thread) for thread in sorted(others)]


def _name(thread: str) -> str:
    try:
        with open(f"/proc/self/task/{thread}/comm") as comm:
            return comm.read().strip()
    except FileNotFoundError:  # just ended
        return "?"


# Forking.


def _serve(control: socket.socket, agent: int) -> int:
    """Fork for each order of the agent. Return the socket in a forked process; exit when the agent is gone."""
    while descriptors := socket.recv_fds(control, LONGEST_ORDER, maxfds=1)[1]:
        try:
            if _fork(agent):
                control.close()
                return descriptors[0]
        except OSError as error:
            control.send(f"refused {_words().cannot_fork(error.strerror)}".encode())
            break
        os.close(descriptors[0])
    os._exit(0)


def _fork(agent: int) -> bool:
    """Fork a child of the agent. Return whether this process is the child.

    A process in between forks the child and exits. The agent adopts the child, so that it can wait for the child and
    the child dies with it. The child does not continue before that.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    adopted, adopt = os.pipe()
    if between := os.fork():
        os.waitpid(between, 0)
        os.close(adopted)
        os.close(adopt)
        return False
    if os.fork():
        os._exit(0)
    os.setsid()  # a signal to its group arrives as soon as any process knows the group
    os.close(adopt)
    os.read(adopted, 1)  # ends when the fork server has seen the exit of the process in between
    os.close(adopted)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != agent:  # already dead, or in another PID namespace
        os._exit(1)
    _set_name("warm-process")
    return True


def _set_name(name: str) -> None:
    """Set the process's name for ps and top."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())


def _receive(descriptor: int) -> dict[str, Any]:
    """Return the task from this socket, once the agent knows the process. Exit if there is none."""
    text, streams = b"", list[int]()
    with socket.socket(fileno=descriptor) as orders, suppress(ConnectionError):  # the agent may not need it any more
        orders.send(b"%d" % os.getpid())
        text, streams, _, _ = socket.recv_fds(orders, CHUNK, maxfds=3)
        while chunk := orders.recv(CHUNK):
            text += chunk
    if not text:
        os._exit(0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    task: dict[str, Any] = json.loads(text)
    return task


if __name__ == "__main__":
    main()
