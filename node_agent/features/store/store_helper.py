"""The helper process beside group rank 0's agent that hosts the workers' store: see node_agent/features/store/host.py.

It is a program of its own that loads torch, and nothing of this package. Its stdin is a socket to the agent. "open N"
brings a listening socket. The helper sends it back first, so that the agent knows which process has the socket, and
then serves a fresh store on it. "close" ends that store.

The helper exits when the socket ends, because the agent is then gone.

It exits only with its agent, which starts it with the signals of an eviction ignored.
"""

import os
import socket
import sys
from importlib.util import find_spec, module_from_spec
from typing import Any

LONGEST_ORDER = 64
WHOLE = "--import-torch"
"""Argument: import all of torch."""
TAKES_LISTENERS = (2, 8)
"""First release of torch whose default server takes a listening socket. Earlier releases have an older server that
does."""


def main() -> int:
    """Serve one store after another until the agent is gone."""
    make_store = _store_type()
    orders = socket.socket(fileno=os.dup(0))
    store = None
    while True:
        order, descriptors, _, _ = socket.recv_fds(orders, LONGEST_ORDER, maxfds=1)
        store = None  # the old store releases its clients before the new one accepts any
        if not order:
            return 0
        if descriptors:
            orders.send(order)
            store = _serve(make_store, descriptors[0])  # noqa: F841 - it serves for as long as it is referred to


def _store_type() -> Any:
    """Return torch's `TCPStore` from the compiled part of torch. Importing all of torch takes a second and 70 MB more.

    If that part cannot be loaded by itself, restart and import all of torch.
    """
    if WHOLE in sys.argv:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        return TCPStore
    try:
        for package in ("torch", "torch.distributed"):
            sys.modules[package] = module_from_spec(find_spec(package))  # type: ignore[arg-type]
        import torch._C

        torch._C._c10d_init()
        from torch._C._distributed_c10d import TCPStore

        return TCPStore
    except Exception:
        os.execv(sys.executable, [sys.executable, "-P", __file__, WHOLE])


def _serve(make_store: Any, listener: int) -> object:
    from torch.version import __version__

    with socket.socket(fileno=os.dup(listener)) as copy:
        port = copy.getsockname()[1]
    major, minor, *_ = __version__.split(".")
    how = {} if (int(major), int(minor)) >= TAKES_LISTENERS else {"use_libuv": False}
    return make_store("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener, **how)


if __name__ == "__main__":
    sys.exit(main())
