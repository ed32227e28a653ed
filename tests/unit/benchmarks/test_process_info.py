"""Facts of processes, which come and go while they are asked for."""

import os
import subprocess
import sys
import threading

import pytest

from tests.support.process_info import children


@pytest.fixture
def threads_come_and_go():
    """Meanwhile threads of this process begin and end all the time."""
    done = threading.Event()

    def start_others():
        while not done.is_set():
            others = [threading.Thread(target=lambda: None) for _ in range(4)]
            for other in others:
                other.start()
            for other in others:
                other.join()

    starting = threading.Thread(target=start_others)
    starting.start()
    yield
    done.set()
    starting.join()


def test_children_are_found_while_threads_end(threads_come_and_go):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert all(child.pid in children(os.getpid()) for _ in range(1_000))
        child.communicate(b"\n")
