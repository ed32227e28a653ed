"""A worker that trains in lock-step with its peers over the network, without torch: every step needs all of them.

They agree on every step and its result. Rank 0 saves checkpoints, from which the next round continues, and keeps the
journal. Like a worker with torch, it fails when a peer's connection breaks, and waits for a peer that is only silent.

It reports to the test's hub once all have met. With `TEST_SURVIVORS`, workers that survive a round save its last step.
With `TEST_LISTENS`, a worker acknowledges a notice after its step.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from training import CHECKPOINT_EVERY, STEP_S, Folder, learn, replace, write

sys.path.insert(0, str(Path(__file__).parents[1] / "support" / "workers"))
from worker import ORDERS, obey, report

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
MASTER = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
HAS_STORE = os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True"
"""Whether MASTER_PORT is the store's, with each rank as a client. Rank 0 then listens at another port."""
FOLDER = Folder(Path(os.environ["TEST_TRAINING"]))
MEETING_PLACE = FOLDER.path / f"meet-{MASTER[0]}-{MASTER[1]}"
LIFE = f"{os.getpid()}-{time.monotonic_ns()}"
SURVIVORS = os.environ.get("TEST_SURVIVORS", "")
"""Folder for the last step of workers that survive a round; empty if they do not save it."""
BASE = 1_000
"""More than the number of workers. A worker's share of a sum combines its result and whether it was told to finish."""

Sum = Callable[[int], int]
"""Return the sum of all ranks' values."""


def main() -> None:
    can_be_held()
    if code := os.environ.get("TEST_EXIT_ON_SIGTERM"):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(code)) if SURVIVORS else os._exit(int(code)))
    store = [connect(lambda: MASTER)] if HAS_STORE else []
    together = meet()
    # The values that rank 0 has read: a rank that reads later might find another checkpoint.
    step, value = (together(share if RANK == 0 else 0) for share in FOLDER.newest(SURVIVORS))
    if RANK == 0:
        FOLDER.note(LIFE, step)
    progress, heed_notice = Progress(step), notices()
    threading.Thread(target=listen, args=(progress,), daemon=True).start()
    all_told, state = False, State(value)
    with state:
        while not all_told:  # every round takes a step
            time.sleep(STEP_S)
            step = progress.advance()
            value = learn(state.value, step)
            all_told = agree(together, value, progress.told_to_finish)
            state.change(step, value)
            if RANK == 0:
                if step % CHECKPOINT_EVERY == 0:
                    FOLDER.save(step, value)
                FOLDER.note(LIFE, step)
            heed_notice()
    FOLDER.end(RANK, step, state.value)
    del store


def can_be_held() -> None:
    """Let SIGUSR1 hold this worker until SIGUSR2. SIGTERM takes effect after that.

    SIGSTOP would not hold it, since the agent continues a worker that it tells to stop. A survivor's thread reads the
    signals that Python writes to a pipe, so nothing is written there meanwhile.
    """
    released, told = [], []

    def hold(*_: object) -> None:
        pipe = signal.set_wakeup_fd(-1)
        before = signal.signal(signal.SIGTERM, lambda *_: told.append(True))
        while not released:
            time.sleep(0.01)
        released.clear()
        signal.signal(signal.SIGTERM, before)
        signal.set_wakeup_fd(pipe, warn_on_full_buffer=False)
        if told:
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGUSR2, lambda *_: released.append(True))
    signal.signal(signal.SIGUSR1, hold)


def notices() -> Callable[[], None]:
    """Return a function that acknowledges the agent's notice, if there is one and this worker listens to notices.

    The import takes a while, so other workers leave it out.
    """
    if "TEST_LISTENS" not in os.environ:
        return lambda: None
    from node_agent import acknowledge, notice

    notice()
    return lambda: acknowledge() if notice() else None


class PeerGone(ConnectionError):
    """The message is that of gloo, so that survivors save."""

    def __init__(self) -> None:
        super().__init__("[gloo] Connection closed by peer")


class State:
    """State of the training, which survivors save if they shall. Their import takes a while, so others leave it out."""

    def __init__(self, value: int) -> None:
        self.value = value
        self._guard: AbstractContextManager[object] = nullcontext()
        self._update: Callable[[int], AbstractContextManager[None]] = lambda step: nullcontext()
        if SURVIVORS:
            from node_agent import saved_by_survivors

            guard = saved_by_survivors(SURVIVORS, lambda path, step: write(Path(path), step, self.value))
            self._guard, self._update = guard, guard.update

    def change(self, step: int, value: int) -> None:
        with self._update(step):
            self.value = value

    def __enter__(self) -> None:
        self._guard.__enter__()

    def __exit__(self, *error: object) -> bool | None:
        return self._guard.__exit__(*error)


class Progress:
    """Progress of the training. Another thread receives orders."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._changed = threading.Condition()
        self.told_to_finish = False

    def advance(self) -> int:
        with self._changed:
            self._step += 1
            self._changed.notify_all()
            return self._step

    def further(self, steps: int) -> None:
        """Return after this number of further steps."""
        with self._changed:
            goal = self._step + steps
            self._changed.wait_for(lambda: self._step >= goal)


def agree(together: Sum, value: int, told: bool) -> bool:
    """Return whether all were told to finish. Fail if not all have the same result."""
    total, number_told = divmod(together(BASE * value + told), BASE)
    if total != value * WORLD_SIZE:
        sys.exit(f"out of step: {total} is not {WORLD_SIZE} times {value}")
    return number_told == WORLD_SIZE


def meet() -> Sum:
    """Meet the other ranks: rank 0 listens, and writes its address to the shared disk."""
    if RANK > 0:
        return as_member(connect(lambda: (MASTER[0], int(MEETING_PLACE.read_text()))).makefile("rw"))
    family = socket.AF_INET6 if ":" in MASTER[0] else socket.AF_INET
    with socket.create_server(("", 0 if HAS_STORE else MASTER[1]), family=family, backlog=WORLD_SIZE) as listener:
        replace(MEETING_PLACE, str(listener.getsockname()[1]))
        return as_master([listener.accept()[0].makefile("rw") for _ in range(WORLD_SIZE - 1)])


def as_master(peers: "list[socket.SocketIO]") -> Sum:
    def together(share: int) -> int:
        total = share + sum(heard(peer) for peer in peers)
        for peer in peers:
            say(peer, total)
        return total

    return together


def as_member(master: "socket.SocketIO") -> Sum:
    def together(share: int) -> int:
        say(master, share)
        return heard(master)

    return together


def heard(peer: "socket.SocketIO") -> int:
    try:
        return int(peer.readline())
    except (ValueError, OSError):
        raise PeerGone from None


def say(peer: "socket.SocketIO", number: int) -> None:
    try:
        peer.write(f"{number}\n")
        peer.flush()
    except OSError:
        raise PeerGone from None


def connect(address: Callable[[], tuple[str, int]]) -> socket.socket:
    """Return a connection, once a process listens at the address."""
    while True:
        try:
            return socket.create_connection(address())
        except OSError:
            time.sleep(STEP_S)


def listen(progress: Progress) -> None:
    """Carry out orders: `exit 0` lets all finish together, `exit N` fails at once, `steps N` returns after N more
    steps.
    """

    def leave(code: str) -> None:
        if code != "0":
            os._exit(int(code))
        progress.told_to_finish = True

    obey(report(), {**ORDERS, "exit": leave, "steps": lambda steps: progress.further(int(steps))})


if __name__ == "__main__":
    main()
