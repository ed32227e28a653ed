"""A worker that connects to the workers' store as torch's `env://` does, and follows orders about it."""

import os
import sys

import torch.distributed as dist

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from worker import ORDERS, obey, report


def main() -> None:
    store, _, _ = next(dist.rendezvous("env://"))
    orders = {
        **ORDERS,
        "set": lambda words: store.set(*words.split()),
        "get": lambda key: store.get(key).decode(),
        "has": lambda key: store.check([key]),
    }
    obey(report(), orders)


if __name__ == "__main__":
    main()
