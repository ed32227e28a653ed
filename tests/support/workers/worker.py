"""A worker without torch: reports to the test's hub, then does what it is told, line by line."""

import json
import os
import signal
import socket
import subprocess
import sys


def report() -> "socket.SocketIO":
    hub = socket.socket(socket.AF_UNIX)
    hub.connect(os.environ["TEST_WORKER_HUB"])
    hub.sendall((json.dumps({"pid": os.getpid(), "argv": sys.argv[1:], "env": dict(os.environ)}) + "\n").encode())
    return hub.makefile("rw")  # type: ignore[return-value]


def obey(hub: "socket.SocketIO") -> None:
    for line in hub:
        order, _, argument = str(line).strip().partition(" ")
        if order == "exit":
            sys.exit(int(argument))
        hub.write(f"done {carry_out(order, argument)}\n")
        hub.flush()


def carry_out(order: str, argument: str) -> str:
    if order == "say":
        print(argument, flush=True)
    elif order == "complain":
        print(argument, file=sys.stderr, flush=True)
    elif order == "ignore":
        signal.signal(getattr(signal, argument), signal.SIG_IGN)
    elif order == "unset":
        del os.environ[argument]
    elif order == "fork":
        child = os.fork()
        if child == 0:
            signal.pause()
        return str(child)
    elif order == "daemon":
        return str(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid)
    elif order == "double-fork":
        return subprocess.check_output("setsid sleep 1000 >/dev/null 2>&1 & echo $!", shell=True, text=True).strip()
    elif order == "close":
        os.close(1)
        os.close(2)
    return argument


if __name__ == "__main__":
    obey(report())
