"""A worker with torch: takes steps together with its peers, as training does, until all are told to finish.

It fails when a peer is gone. It reports to the hub once the first collective has worked.
"""

import os
import sys
import threading
import time

import torch
import torch.distributed as dist

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from worker import ORDERS, obey, report

STEP_S = 0.02


def main() -> None:
    dist.init_process_group("gloo")
    assert together(1) == dist.get_world_size()
    told_to_finish = threading.Event()
    threading.Thread(target=listen, args=(told_to_finish,), daemon=True).start()
    while together(int(told_to_finish.is_set())) < dist.get_world_size():
        time.sleep(STEP_S)
    dist.destroy_process_group()


def together(share: int) -> int:
    total = torch.tensor([share])
    dist.all_reduce(total)
    return int(total)


def listen(told_to_finish: threading.Event) -> None:
    def leave(code: str) -> None:
        told_to_finish.set() if code == "0" else os._exit(int(code))

    obey(report(), {**ORDERS, "exit": leave})


if __name__ == "__main__":
    main()
