"""Worker that trains in lock-step with its peers over plain sockets: every step needs all of them.

Rank 0 receives from all others and answers; it also writes the journal and the checkpoints, from which the next round
continues. Like a worker with torch, it fails when the connection to a peer breaks. It also fails when a step takes
longer than the timeout of a collective operation. `SECONDS` has the costs, most of them scaled.
"""

import os
import socket
import struct
import sys
import time
from contextlib import suppress

SECONDS = {"step": 0.1, "start": 0.5, "checkpoint every": 5.0, "checkpoint": 0.05, "collective timeout": 20.0}
"""Costs of the training, scaled. The timeout of a collective operation stands for NCCL's 10 minutes: with default
settings every launcher declares a silent node lost earlier."""
SLOW_FACTOR = 3.0
NUMBER = struct.Struct("=q")
HELLO = struct.Struct("=qqq")
RETRY_S = 0.02
BROKEN = "CUDA error: uncorrectable ECC error encountered"

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
NODE, ADDRESS = os.environ["YEAR_NODE"], os.environ["YEAR_ADDRESS"]
ROUND = hash((int(os.environ["MASTER_PORT"]), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))) & 0x7FFF_FFFF


def progress(step: int, kind: str = "step") -> None:
    """Do nothing; node-agent's function replaces this one if it is installed."""


with suppress(ImportError):
    from node_agent.in_worker import progress


def main() -> None:
    os.chdir(os.environ["YEAR_FOLDER"])
    replace(f"worker-{NODE}", f"{os.getpid()} {RANK} {WORLD_SIZE}")
    time.sleep(SECONDS["start"] / 2)  # stands for imports
    if os.path.exists(f"broken-{NODE}"):
        raise RuntimeError(BROKEN)
    peers = meet_all() if RANK == 0 else [meet()]
    time.sleep(SECONDS["start"] / 2)  # stands for reading the checkpoint
    train(peers, together(peers, checkpoint() if RANK == 0 else 0))


def train(peers: list[socket.socket], step: int) -> None:
    every = round(SECONDS["checkpoint every"] / SECONDS["step"])
    attempt = f"{os.getpid()}"
    while True:
        time.sleep(SECONDS["step"] * (SLOW_FACTOR if os.path.exists(f"slow-{NODE}") else 1.0))
        step = together(peers, step + 1)
        progress(step=step)
        if RANK == 0:
            note(f"{time.monotonic():.3f} {step} {attempt}\n")
        if step % every == 0:
            time.sleep(SECONDS["checkpoint"])
            if RANK == 0:
                replace("checkpoint", str(step))
            progress(step=step, kind="checkpoint")


def together(peers: list[socket.socket], number: int) -> int:
    """Perform one collective operation: all ranks wait for each other, and get rank 0's number."""
    try:
        if RANK > 0:
            peers[0].sendall(NUMBER.pack(number))
            return int(NUMBER.unpack(receive(peers[0], NUMBER.size))[0])
        for peer in peers:
            receive(peer, NUMBER.size)
        for peer in peers:
            peer.sendall(NUMBER.pack(number))
    except TimeoutError:
        sys.exit("collective operation timed out")
    except OSError:
        sys.exit("connection reset by peer: a peer is gone")
    return number


def meet_all() -> list[socket.socket]:
    """Rank 0: return the connections of all others, which find its address in a file on the shared disk."""
    peers: dict[int, socket.socket] = {}
    with socket.create_server((ADDRESS, 0), backlog=WORLD_SIZE) as listener:
        replace("meeting-place", f"{ADDRESS} {listener.getsockname()[1]} {ROUND} {WORLD_SIZE}")
        listener.settimeout(SECONDS["collective timeout"])
        while len(peers) < WORLD_SIZE - 1:
            try:
                peer, _ = listener.accept()
            except TimeoutError:
                sys.exit(f"only {len(peers) + 1} of {WORLD_SIZE} ranks came together")
            peer.settimeout(SECONDS["collective timeout"])
            with suppress(OSError):
                rank, round_, world_size = HELLO.unpack(receive(peer, HELLO.size))
                if (round_, world_size) == (ROUND, WORLD_SIZE):
                    peers[rank] = peer
    return list(peers.values())


def meet() -> socket.socket:
    """Other ranks: return the connection to rank 0 of the same round."""
    until_s = time.monotonic() + SECONDS["collective timeout"]
    while time.monotonic() < until_s:
        with suppress(OSError, ValueError):
            with open("meeting-place", encoding="ascii") as file:
                address, *numbers = file.read().split()
            port, *which = map(int, numbers)
            if which == [ROUND, WORLD_SIZE]:
                peer = socket.create_connection((address, port), timeout=SECONDS["collective timeout"])
                peer.sendall(HELLO.pack(RANK, ROUND, WORLD_SIZE))
                return peer
        time.sleep(RETRY_S)
    sys.exit("rank 0 did not come")


def receive(peer: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        part = peer.recv(size - len(got))
        if not part:
            raise ConnectionResetError
        got += part
    return got


def checkpoint() -> int:
    try:
        with open("checkpoint", encoding="ascii") as file:
            return int(file.read())
    except (FileNotFoundError, ValueError):
        return 0


def note(line: str) -> None:
    with open("journal", "a", encoding="ascii") as file:
        file.write(line)


def replace(name: str, text: str) -> None:
    with open(f"{name}.{os.getpid()}", "w", encoding="ascii") as file:
        file.write(text)
    os.rename(f"{name}.{os.getpid()}", name)


if __name__ == "__main__":
    main()
