"""Signal handlers of the Python API are set only if the program has none, and removed afterwards."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from node_agent.compat.api import signals
from node_agent.compat.api.signals import SignalWatch

NAMES = ("SIGUSR1", "SIGUSR2", "SIGINT")


@pytest.fixture(autouse=True)
def default_handlers() -> Iterator[None]:
    before = {signum: signal.signal(signum, signal.SIG_DFL) for signum in (signal.SIGUSR1, signal.SIGUSR2)}
    yield
    for signum, handler in before.items():
        assert signal.getsignal(signum) is signal.SIG_DFL
        signal.signal(signum, handler)
    assert not any(signals._listeners.values())


def test_a_signal_calls_back_until_the_watch_stops() -> None:
    seen: list[signal.Signals] = []
    watch = SignalWatch(NAMES, seen.append)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert seen == [signal.SIGUSR1]
    watch.close()
    watch.close()


def test_ctrl_c_stays_pythons() -> None:
    watch = SignalWatch(NAMES, lambda signum: None)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    watch.close()


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda signum, frame: None])
def test_signals_that_the_program_handles_or_ignores_are_left_alone(handler: object) -> None:
    signal.signal(signal.SIGUSR1, handler)
    watch = SignalWatch(NAMES, lambda signum: None)
    assert signal.getsignal(signal.SIGUSR1) is handler
    watch.close()
    assert signal.getsignal(signal.SIGUSR1) is handler
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def test_several_watches_share_a_signal() -> None:
    seen: list[str] = []
    one = SignalWatch(NAMES, lambda signum: seen.append("one"))
    other = SignalWatch(NAMES, lambda signum: seen.append("other"))
    os.kill(os.getpid(), signal.SIGUSR1)
    one.close()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert seen == ["one", "other", "other"]
    other.close()


def test_a_handler_that_the_program_sets_meanwhile_stays() -> None:
    watch = SignalWatch(("SIGUSR1",), lambda signum: None)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    watch.close()
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def test_only_the_main_thread_watches_signals() -> None:
    watches: list[SignalWatch] = []
    thread = threading.Thread(target=lambda: watches.append(SignalWatch(NAMES, lambda signum: None)))
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    watches[0].close()


def test_a_watch_that_stopped_in_another_thread_lets_the_next_signal_through() -> None:
    """Only the main thread can restore a handler. It does so when the signal comes, which then has its usual effect."""
    child = os.fork()
    if child == 0:
        watch = SignalWatch(("SIGUSR2",), lambda signum: None)
        thread = threading.Thread(target=watch.close)
        thread.start()
        thread.join()
        os.kill(os.getpid(), signal.SIGUSR2)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGUSR2


def test_a_forked_child_has_the_programs_handlers_again() -> None:
    watch = SignalWatch(("SIGUSR1",), lambda signum: None)
    child = os.fork()
    if child == 0:
        signals.undo_in_child()
        again = SignalWatch(("SIGUSR2",), lambda signum: os._exit(7))  # and may watch its own signals
        assert again
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGUSR2)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    watch.close()


async def test_a_forked_child_has_no_handlers_of_an_event_loop() -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR2, lambda: None)
    child = os.fork()
    if child == 0:
        signals.undo_in_child()
        ours = signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
        os._exit(0 if ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # noqa: ASYNC222
    loop.remove_signal_handler(signal.SIGUSR2)
