"""A worker that uses the workers' store as torch's `env://` does, and does with it what it is told."""

import os
import signal
import sys

import torch.distributed as dist

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from worker import report


def main() -> None:
    store, _, _ = next(dist.rendezvous("env://"))
    hub = report()
    for line in hub:
        order, *arguments = str(line).split()
        if order == "exit":
            sys.exit(int(arguments[0]))
        if order == "ignore":
            signal.signal(getattr(signal, arguments[0]), signal.SIG_IGN)
            answer = ""
        else:
            answer = {"set": store.set, "get": store.get, "has": lambda key: store.check([key])}[order](*arguments)
        hub.write(f"done {answer.decode() if isinstance(answer, bytes) else answer}\n")
        hub.flush()


if __name__ == "__main__":
    main()
