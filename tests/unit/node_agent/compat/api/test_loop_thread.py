"""Waits of a program's main thread, which any signal ends at once."""

import asyncio
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from node_agent import words
from node_agent.compat.api import signals
from node_agent.compat.api.loop_thread import Awaited, LoopThread

LONG_S = 60.0


@contextmanager
def when_main_waits(act: Callable[[], object]) -> Iterator[None]:
    """Act in another thread when the main thread waits for a descriptor, or when it sleeps if the kernel hides that."""
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            with open(f"/proc/self/task/{os.getpid()}/stat") as stat:
                state = stat.read().rpartition(")")[2].split()[0]
            with open(f"/proc/self/task/{os.getpid()}/wchan") as wchan:
                place = wchan.read()
            if state == "S" and ("poll" in place or place == "0"):
                act()
                return
            time.sleep(0.001)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    """Check that no wakeup descriptor and no file is left."""
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before


@contextmanager
def handled(handler: Callable[[int, object], object]) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def to_this_thread() -> None:
    """Send a signal that the kernel delivers to this thread, which it may do for any signal of the process."""
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)


def test_a_signal_to_another_thread_ends_the_wait_at_once() -> None:
    class Told(Exception):
        pass

    def tell(*_: object) -> None:
        raise Told

    began, awaited = time.monotonic(), Awaited[int]()
    with handled(tell), when_main_waits(to_this_thread), pytest.raises(Told):
        awaited.wait(LONG_S)
    assert time.monotonic() - began < LONG_S / 2
    assert signal.set_wakeup_fd(-1) == -1
    awaited.set_result(1)
    assert awaited.wait()


def test_a_result_ends_the_wait_also_one_in_a_signals_handler() -> None:
    awaited, seen = Awaited[int](), []

    def wait_as_well(*_: object) -> None:
        with when_main_waits(lambda: awaited.set_result(7)):
            seen.append(awaited.wait(LONG_S))

    with handled(wait_as_well), when_main_waits(to_this_thread):
        assert awaited.wait(LONG_S)
    assert (seen, awaited.result()) == ([True], 7)
    assert signal.set_wakeup_fd(-1) == -1


def test_the_time_of_a_wait_may_be_up_in_any_thread() -> None:
    awaited, seen = Awaited[int](), []
    thread = threading.Thread(target=lambda: seen.extend([awaited.wait(0), awaited.wait(0.01), awaited.wait()]))
    thread.start()
    assert not awaited.wait(0)
    assert not awaited.wait(0.01)
    awaited.set_result(7)
    thread.join()
    assert seen[::2] == [False, True]
    assert awaited.wait(0)


async def test_an_event_loop_whose_thread_has_waited_hears_of_the_signal_afterwards() -> None:
    loop, told, awaited = asyncio.get_running_loop(), asyncio.Event(), Awaited[int]()
    loop.add_signal_handler(signal.SIGUSR1, told.set)

    def act() -> None:
        to_this_thread()
        awaited.set_result(7)

    with when_main_waits(act):
        awaited.wait(LONG_S)
    async with asyncio.timeout(LONG_S):
        await told.wait()
    loop.remove_signal_handler(signal.SIGUSR1)


async def test_a_forked_childs_signals_are_not_those_of_its_parents_event_loop() -> None:
    loop, told, own = asyncio.get_running_loop(), list[int](), asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, told.append, 1)
    loop.add_signal_handler(signal.SIGUSR2, own.set)
    child = os.fork()
    if child == 0:
        signals.undo_in_child()
        signal.signal(signal.SIGUSR1, lambda *_: None)
        os.kill(os.getpid(), signal.SIGUSR1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # noqa: ASYNC222
    os.kill(os.getpid(), signal.SIGUSR2)
    await own.wait()  # the child's report came before
    assert told == []
    for signum in (signal.SIGUSR1, signal.SIGUSR2):
        loop.remove_signal_handler(signum)


def test_a_program_that_ignores_the_ends_of_its_children_does_not_start_workers():
    """The kernel does not keep exit codes for it. A worker that has failed would look as if it was gone."""

    async def main() -> None:
        raise AssertionError("it has begun")

    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(RuntimeError, match=re.escape(words.api.CHILDREN_IGNORED)):
            LoopThread("workers", main)
    finally:
        signal.signal(signal.SIGCHLD, before)
