"""Every test runs with each start method that it lists, and leaves nothing behind."""

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.api.worker_listener import WorkerListener
from tests.support import forked

METHODS = ("spawn", "fork", "forkserver")


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check that no thread, descriptor or child is left. Tests of programs check files: some end with the program."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    _start_what_stays()
    gc.collect()  # so that gRPC channels that an earlier test of etcd has left in a cycle close their sockets
    threads, fds = _threads(), _open_descriptors()
    yield
    assert _threads() <= threads
    assert _open_descriptors().items() <= fds.items()  # gRPC may still close channels of an earlier test


def _start_what_stays() -> None:
    """Start the processes that stay: fork servers (multiprocessing's, and our servers') and the resource tracker."""
    from multiprocessing import forkserver, resource_tracker

    forked.ensure_running(forked.SERVER)
    forkserver.ensure_running()
    resource_tracker.ensure_running()


def _threads() -> set[threading.Thread]:
    """Return the threads, except those in which the test's own event loop waits for servers and workers."""
    return {thread for thread in threading.enumerate() if not thread.name.startswith("asyncio")}


def _open_descriptors() -> dict[str, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:  # the listing's own
            continue
    return found


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[WorkerListener]:
    listener = WorkerListener(tmp_path / "listener")
    yield listener
    listener.close()
