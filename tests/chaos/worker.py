"""A worker that trains in lock-step with its peers: they agree on every step and on what it has taught them.

It begins where the newest checkpoint ends. Rank 0 saves checkpoints and keeps the journal.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import training
from training import CHECKPOINT_EVERY, Folder, learn

sys.path.insert(0, str(Path(__file__).parents[1] / "hosts"))
from lockstep_worker import MASTER, RANK, STEP_S, WORLD_SIZE, Progress, as_master, as_member, connect, listen, meet

BASE = 1_000
"""Above the number of workers: a worker's share in a sum is what it has learned and whether it was told to finish."""

FOLDER = Folder(Path(os.environ["TEST_TRAINING"]))
CLIENTS: list[socket.socket] = []
"""Connections to the store, for as long as this worker lives."""
LIFE = f"{os.getpid()}-{time.monotonic_ns()}"


def main() -> None:
    together = meet_beside_the_store() if os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True" else meet()
    step, value = together_from_rank_0(together, FOLDER.checkpoint())
    if RANK == 0:
        FOLDER.note(LIFE, step)
    progress = Progress(step)
    threading.Thread(target=listen, args=(progress,), daemon=True).start()
    all_told = False
    while not all_told:
        time.sleep(training.STEP_S)
        step = progress.advance()
        value = learn(value, step)
        all_told = agree(together, value, progress.told_to_finish)
        if RANK == 0:
            write_down(step, value)
    FOLDER.end(RANK, step, value)


def meet_beside_the_store() -> Callable[[int], int]:
    """MASTER_PORT is the store's, of which each rank is a client: rank 0 says on the shared disk where it listens."""
    CLIENTS.append(connect())
    place = Path(os.environ["TEST_TRAINING"], f"meet-{MASTER[0]}-{MASTER[1]}")
    if RANK > 0:
        return as_member(connect_to_rank_0(place).makefile("rw"))
    with socket.create_server(("", 0), backlog=WORLD_SIZE) as listener:
        new = place.with_suffix(".new")
        new.write_text(str(listener.getsockname()[1]))
        new.replace(place)
        return as_master([listener.accept()[0].makefile("rw") for _ in range(WORLD_SIZE - 1)])


def connect_to_rank_0(place: Path) -> socket.socket:
    while True:
        try:
            return socket.create_connection((MASTER[0], int(place.read_text())))
        except OSError:  # it is not there yet
            time.sleep(STEP_S)


def together_from_rank_0(together: Callable[[int], int], start: tuple[int, int]) -> tuple[int, int]:
    """What rank 0 has read: a rank that reads later might find another checkpoint."""
    step, value = (together(share if RANK == 0 else 0) for share in start)
    return step, value


def agree(together: Callable[[int], int], value: int, told: bool) -> bool:
    """Whether all were told to finish; fails if not all have learned the same."""
    total, number_told = divmod(together(BASE * value + told), BASE)
    if total != value * WORLD_SIZE:
        sys.exit(f"out of step: {total} is not {WORLD_SIZE} times {value}")
    return number_told == WORLD_SIZE


def write_down(step: int, value: int) -> None:
    if step % CHECKPOINT_EVERY == 0:
        FOLDER.save(step, value)
    FOLDER.note(LIFE, step)


if __name__ == "__main__":
    main()
