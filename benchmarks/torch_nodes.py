"""Nodes of torchrun's c10d rendezvous, without agents and workers.

`torch_nodes.py PORT`: their store.

`torch_nodes.py PORT NODES`: NODES nodes in one process. It prints `joining`, and then how many seconds passed until
every node knew its rank.
"""

import os
import sys
import threading
import time
from datetime import timedelta

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

ADDRESS = "127.0.0.1"
STACK_BYTES = 512 * 1024
CONNECT_TIMEOUT_S = 60.0


def host(port: int) -> None:
    store = TCPStore(ADDRESS, port, is_master=True, wait_for_workers=False)
    threading.Event().wait()
    del store


def meet(port: int, nodes: int) -> float:
    handlers = [_handler(port, nodes) for _ in range(nodes)]
    threading.stack_size(STACK_BYTES)
    threads = [threading.Thread(target=handler.next_rendezvous, daemon=True) for handler in handlers]
    print("joining", flush=True)
    began_s = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - began_s


def _handler(port: int, nodes: int) -> RendezvousHandler:
    """Return a node with a connection of its own, as each agent has."""
    timeout = timedelta(seconds=CONNECT_TIMEOUT_S)
    store = TCPStore(ADDRESS, port, is_master=False, wait_for_workers=False, timeout=timeout)
    parameters = RendezvousParameters("c10d", f"{ADDRESS}:{port}", "benchmark", nodes, nodes, local_addr=ADDRESS)
    return create_handler(store, C10dRendezvousBackend(store, "benchmark"), parameters)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        host(int(sys.argv[1]))
    print(meet(int(sys.argv[1]), int(sys.argv[2])), flush=True)
    os._exit(0)  # the regular end of the handlers takes seconds
