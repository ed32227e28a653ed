"""A worker that trains: reports steps at its own pace to the agent, and a checkpoint whenever the test orders one.

It reports the phases of its start. A step takes STEP_S. A checkpoint takes SAVE_S: rank 0 writes it to CHECKPOINT, and
steps begin after it. It takes the orders of any worker, and `save`.
"""

import os
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from worker import ORDERS, obey, report

from node_agent import progress

STEP_S, SAVE_S = float(os.environ["STEP_S"]), float(os.environ["SAVE_S"])
CHECKPOINT = Path(os.environ["CHECKPOINT"])


class Training:
    """Steps of the main thread, and orders that another thread carries out between them."""

    def __init__(self) -> None:
        self._step = int(CHECKPOINT.read_text()) if CHECKPOINT.exists() else 0
        self._between_steps = threading.Lock()
        self._is_over = threading.Event()

    def go(self) -> None:
        progress(self._step)  # the next report takes the time since then, also a checkpoint that is ordered at once
        hub = report()
        orders = {**ORDERS, "save": self.save, "exit": lambda _: self._is_over.set()}
        threading.Thread(target=obey, args=(hub, orders), daemon=True).start()
        while not self._is_over.wait(STEP_S):
            with self._between_steps:
                self._step += 1
                progress(self._step)

    def save(self, _: str) -> None:
        with self._between_steps:
            time.sleep(SAVE_S)
            if os.environ["RANK"] == "0":
                CHECKPOINT.write_text(str(self._step))
            progress(self._step, "checkpoint")


if __name__ == "__main__":
    progress(kind="imported")
    training = Training()
    progress(kind="loaded")
    training.go()
