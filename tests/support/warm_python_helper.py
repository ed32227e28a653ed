"""Interpreter for `PYTHON_EXEC` that has already imported its modules, for tests whose workers would import for long.

Executed with `--serve NAME MODULE ...`, this is a server at an abstract socket. It imports the modules, and exits when
its stdin ends. Executed with other words, by a launcher, this is the interpreter: a small process that represents a
fork of the server that `WARM_PYTHON` names. It passes its descriptors and signals to the fork. When one of the two
ends, the other one ends in the same way.
"""

import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

LONGEST, MOST_DESCRIPTORS, ABOVE_ALL = 1 << 17, 64, 200
HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def stand_for_a_fork(words: Sequence[str]) -> None:
    descriptors = [int(number) for number in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{number}")]
    environment = {**os.environ, "LAUNCHER_PID": str(os.getppid())}
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect("\0" + os.environ["WARM_PYTHON"])
    for signum in HANDED_ON:
        signal.signal(signum, lambda number, _: server.send(bytes([number])))
    order = [[sys.executable, *words], environment, os.getcwd(), descriptors]
    socket.send_fds(server, [json.dumps(order).encode()], descriptors)
    code = os.waitstatus_to_exitcode(int(server.recv(LONGEST) or signal.SIGKILL))
    if code < 0:
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


# The server.


def serve(name: str, modules: Sequence[str]) -> dict[str, Any]:
    """Fork for each process that connects. Return the task in each fork."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind("\0" + name)
    listener.listen()
    print("listening", flush=True)
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # collections in the forks then leave the imported objects alone, so that their memory stays shared
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for the processes in between
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return fork_and_watch(connection)
        connection.close()
    os._exit(0)  # the imported objects need no cleanup


def fork_and_watch(connection: socket.socket) -> dict[str, Any]:
    """Fork, and end the fork together with the process that represents it. Return only in the fork."""
    order, received, _, _ = socket.recv_fds(connection, LONGEST, MOST_DESCRIPTORS)
    if (pid := os.fork()) == 0:
        connection.close()
        return task(received, *json.loads(order))
    for descriptor in received:
        os.close(descriptor)
    ended = os.pidfd_open(pid)
    while ended not in select.select([connection, ended], [], [])[0]:
        if not (signum := connection.recv(1)):
            os.kill(pid, signal.SIGKILL)
            break
        os.kill(pid, signum[0])
    with suppress(ProcessLookupError):  # no session yet
        os.killpg(pid, signal.SIGKILL)  # its remaining processes
    with suppress(OSError):
        connection.send(b"%d" % os.waitpid(pid, 0)[1])
    os._exit(0)


def task(
    received: Sequence[int], command: list[str], environment: dict[str, str], folder: str, descriptors: Sequence[int]
) -> dict[str, Any]:
    """Return the arguments of `run_command`, after setting up session, folder and descriptors."""
    os.setsid()
    os.chdir(folder)
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, ABOVE_ALL) for descriptor in received]
    for descriptor in received:
        os.close(descriptor)
    for descriptor, number in zip(moved, descriptors, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    return {"command": command, "environment": environment, "cpus": [], "stacks": {"path": "", "signum": 0}}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        from node_agent.features.warm import interpreter as python

        order = serve(sys.argv[2], sys.argv[3:])
        python.find_modules_for(order["command"])
        python.run_command(**order)
    else:
        stand_for_a_fork(sys.argv[1:])
