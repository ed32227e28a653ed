"""The worker that fails when a peer is gone."""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from benchmarks.stage import NOTICING_WORKER, Arrivals

PATIENCE_S = 30.0
LOOK_S = 0.01


@pytest.fixture
def arrivals(tmp_path):
    desk = Arrivals(str(tmp_path))
    yield desk
    desk.close()


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_every_other_worker_fails_when_one_is_killed(arrivals, gone):
    began_s = time.monotonic()
    with ExitStack() as stack:
        workers = [stack.enter_context(_worker(rank, 3, arrivals.path)) for rank in range(3)]
        stack.callback(lambda: [worker.kill() for worker in workers])
        lines = arrivals.gather(3, began_s, PATIENCE_S)
        assert {rank: line.pid for rank, line in lines.items()} == {r: w.pid for r, w in enumerate(workers)}
        _await_connections(workers)
        workers[gone].send_signal(signal.SIGKILL)
        others = [worker for rank, worker in enumerate(workers) if rank != gone]
        assert [worker.wait(PATIENCE_S) for worker in others] == [1, 1]


def _worker(rank, world_size, path):
    environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world_size)}
    return subprocess.Popen([sys.executable, NOTICING_WORKER, path], env=environment, stderr=subprocess.DEVNULL)


def _await_connections(workers):
    """Return once each has its listener and a connection with every other."""
    deadline_s = time.monotonic() + PATIENCE_S
    while any(_sockets(worker.pid) < len(workers) for worker in workers):
        assert time.monotonic() < deadline_s, "they are not connected"
        time.sleep(LOOK_S)


def _sockets(pid):
    folder = f"/proc/{pid}/fd"
    return sum(os.readlink(f"{folder}/{fd}").startswith("socket:") for fd in os.listdir(folder))
