"""The helper process beside group rank 0's agent that hosts the workers' store: see node_agent/workers/store.py.

A program of its own: it imports torch, and nothing of ours. Its stdin is a socket to the agent. "open" brings a
listening socket, on which it serves a fresh store; "close" ends that store; the socket's end is the agent's end.

It ends with its agent, not before: signals that ask every process of a node to end, as a scheduler's do, are for the
workers, who may need the store for what they do last.
"""

import os
import signal
import socket
import sys

LONGEST_ORDER = 16


def main() -> int:
    """Serve one store after another until the agent is gone."""
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_IGN)
    orders = socket.socket(fileno=os.dup(0))
    store = None
    while True:
        order, descriptors, _, _ = socket.recv_fds(orders, LONGEST_ORDER, maxfds=1)
        store = None  # the old one lets go of its clients before the new one takes any
        if not order:
            return 0
        if descriptors:
            store = _serve(descriptors[0])  # noqa: F841 - it serves for as long as it is referred to


def _serve(listener: int) -> object:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    with socket.socket(fileno=os.dup(listener)) as copy:
        port = copy.getsockname()[1]
    return TCPStore("localhost", port, is_master=True, wait_for_workers=False, master_listen_fd=listener)


if __name__ == "__main__":
    sys.exit(main())
