"""Worker that is connected with its peers, as in training, and fails when one of them is gone.

Argument: the socket to which it reports its first line. Each rank listens on a socket beside that.
"""

import time

AT_NS = time.monotonic_ns()

import os  # noqa: E402
import select  # noqa: E402
import socket  # noqa: E402
import sys  # noqa: E402

RETRY_S = 0.005
RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FOLDER, ARRIVALS = os.path.split(sys.argv[1])


def listen() -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    staged = f"{name_of(RANK)}.new"
    listener.bind(staged)
    listener.listen()
    os.rename(staged, name_of(RANK))  # replaces the listener of the round before
    return listener


def connect(rank: int) -> socket.socket:
    """Connect to a peer, whose process may not have started yet."""
    while True:
        line = socket.socket(socket.AF_UNIX)
        try:
            line.connect(name_of(rank))
        except OSError:
            line.close()
            time.sleep(RETRY_S)
        else:
            return line


def name_of(rank: int) -> str:
    return f"worker.{WORLD_SIZE}.{rank}"


os.chdir(FOLDER)  # a socket's path must be short
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as arrivals:
    arrivals.sendto(f"{RANK} {os.getpid()} {AT_NS}".encode(), ARRIVALS)
listener = listen()
peers = [connect(rank) for rank in range(RANK)]
peers += [listener.accept()[0] for _ in range(RANK + 1, WORLD_SIZE)]
if peers:
    select.select(peers, [], [])
    sys.exit("a peer is gone")
listener.accept()
