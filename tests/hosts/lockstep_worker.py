"""A worker that trains in lock-step with its peers over the network, without torch: every step needs all of them.

Rank 0 listens at MASTER_ADDR:MASTER_PORT. It writes a checkpoint now and then, from which the next round goes on, and
enters each step into a journal, so that the test can count those that were taken twice. Like a worker with torch it
fails when a peer's connection breaks, and waits for a peer that merely says nothing. It reports to the hub once all
have met.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support" / "workers"))
from worker import carry_out, report

STEP_S = 0.02

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
MASTER = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
EVERY = int(os.environ["TEST_CHECKPOINT_EVERY"])
CHECKPOINT = Path(os.environ["TEST_TRAINING"], "checkpoint")
JOURNAL = Path(os.environ["TEST_TRAINING"], "journal")


def main() -> None:
    together = meet()
    together(0)
    progress = Progress(last_checkpoint())
    threading.Thread(target=listen, args=(progress,), daemon=True).start()
    all_told = False
    while not all_told:  # every round takes a step
        step = progress.advance()
        if RANK == 0:
            write_down(step)
        time.sleep(STEP_S)
        all_told = together(int(progress.told_to_finish)) == WORLD_SIZE


class Progress:
    """How far the training has come; orders come in another thread."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._news = threading.Condition()
        self.told_to_finish = False

    def advance(self) -> int:
        with self._news:
            self._step += 1
            self._news.notify_all()
            return self._step

    def further(self, steps: int) -> None:
        """Return after so many more steps."""
        with self._news:
            goal = self._step + steps
            self._news.wait_for(lambda: self._step >= goal)


def last_checkpoint() -> int:
    return int(CHECKPOINT.read_text()) if CHECKPOINT.exists() else 0


def write_down(step: int) -> None:
    with JOURNAL.open("a") as journal:
        journal.write(f"{os.getpid()} {step}\n")
    if (
        step % EVERY == 0 and step > last_checkpoint()
    ):  # one that was cut off may end its last step when others are ahead
        new = CHECKPOINT.with_suffix(".new")
        new.write_text(str(step))
        new.replace(CHECKPOINT)


def meet() -> Callable[[int], int]:
    """Returns the sum over all ranks of what each one gives."""
    if RANK > 0:
        return as_member(connect().makefile("rw"))
    family = socket.AF_INET6 if ":" in MASTER[0] else socket.AF_INET
    with socket.create_server(("", MASTER[1]), family=family, backlog=WORLD_SIZE) as listener:
        return as_master([listener.accept()[0].makefile("rw") for _ in range(WORLD_SIZE - 1)])


def as_master(peers: "list[socket.SocketIO]") -> Callable[[int], int]:
    def together(share: int) -> int:
        total = share + sum(heard(peer) for peer in peers)
        for peer in peers:
            say(peer, total)
        return total

    return together


def as_member(master: "socket.SocketIO") -> Callable[[int], int]:
    def together(share: int) -> int:
        say(master, share)
        return heard(master)

    return together


def heard(peer: "socket.SocketIO") -> int:
    try:
        return int(peer.readline())
    except (ValueError, OSError):
        sys.exit("a peer is gone")


def say(peer: "socket.SocketIO", number: int) -> None:
    try:
        peer.write(f"{number}\n")
        peer.flush()
    except OSError:
        sys.exit("a peer is gone")


def connect() -> socket.socket:
    while True:
        try:
            return socket.create_connection(MASTER)
        except OSError:  # rank 0 is not there yet
            time.sleep(STEP_S)


def listen(progress: Progress) -> None:
    """`exit 0` lets all finish together, `exit N` fails at once, `steps N` is done after so many more steps."""
    hub = report()
    for line in hub:
        order, _, argument = str(line).strip().partition(" ")
        if order == "exit" and argument == "0":
            progress.told_to_finish = True
        elif order == "exit":
            os._exit(int(argument))
        elif order == "steps":
            progress.further(int(argument))
            hub.write("done\n")
        else:
            hub.write(f"done {carry_out(order, argument)}\n")
        hub.flush()


if __name__ == "__main__":
    main()
